"""Which commands are hosts in our own Python: a warm process can become them.

python -m callgate.host ARGUMENTS ...     also with -P, and also as `callgate host ARGUMENTS`
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence

from callgate.core.commands import Warm

_MODULE = ("-m", "callgate.host")
_SUBCOMMANDS = ("new", "check")


def warm(command: Sequence[str], cwd: str, env: Mapping[str, str]) -> Warm | None:
    """How to become what a command would start; None where only the command itself will do."""
    program = _program(command[0], cwd, env)
    rest = tuple(command[1:])
    if program is None:
        return None
    first: tuple[str, ...]
    if _is_our_python(program):
        first = () if rest[:1] == ("-P",) else (cwd,)
        rest = rest[1:] if rest[:1] == ("-P",) else rest
        arguments = rest[2:] if rest[:2] == _MODULE else ()
    else:
        first = (os.path.dirname(program),)
        is_ours = rest[:1] == ("host",) and rest[1:2] not in [(each,) for each in _SUBCOMMANDS]
        arguments = rest[1:] if _is_our_callgate(program) and is_ours else ()
    if not arguments or (arguments[0].startswith("-") and arguments[0] != "--script"):
        return None
    named = env.get("PYTHONPATH", "")
    path = [os.path.join(cwd, each) for each in named.split(os.pathsep)] if named else []
    return Warm(arguments, (*first, *path))


def _program(name: str, cwd: str, env: Mapping[str, str]) -> str | None:
    if os.path.dirname(name):
        return os.path.normpath(os.path.join(cwd, name))
    return shutil.which(name, path=env.get("PATH", os.defpath))


def _is_our_python(program: str) -> bool:
    """By its place: where it lies decides which packages it finds."""
    if not os.path.basename(program).startswith("python") or not _is_beside_ours(program):
        return False
    return os.path.realpath(program) == os.path.realpath(sys.executable)


def _is_our_callgate(program: str) -> bool:
    return os.path.basename(program) == "callgate" and _is_beside_ours(program)


def _is_beside_ours(program: str) -> bool:
    return os.path.dirname(program) == os.path.dirname(sys.executable)
