"""The entry point. `callgate call` takes the fast path if an instance can make the call.

    call -> options.read_call -> remote.call (an instance)
    acp  -> options.read_acp  -> feature editor |
               |                                |
               +-- unusual, wrong --------------+-- none there --> dispatch: every command

Imports here are minimal, so that calls through an instance and editors start fast.
"""

from __future__ import annotations

import codecs
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    _open_closed_streams()
    _escape_what_cannot_be_written()
    if sys.platform != "linux":  # `dispatch` prints what the platform lacks
        return _full(given)
    if given[:2] == ["hook", "run"]:
        return _hook(given[2:])
    if given[:1] == ["sandbox"]:
        status = _deferred(given)
        return _end(status) if argv is None else status
    if given[:1] == ["acp"]:
        return _acp(given)
    if given[:1] != ["call"]:
        return _full(given)
    try:
        from callgate.cli.options import read_call  # lazy: not for other commands  # noqa: PLC0415

        options = read_call(given[1:])
        if options is None:
            return _full(given)
        code = None if options.no_instance else _call_instance(options)
        if code is None:
            options.found_none = not options.no_instance
            options.no_instance = True
            code = _deferred(given, options)
            return _end(code) if argv is None else code
        sys.stdout.flush()
        return code
    except BaseException as error:
        return _report_failure(given, error)


def _call_instance(options: Any) -> int | None:
    """Run the call through an instance; return None if there is no instance."""
    from callgate.cli.remote_call import call  # lazy: not for other commands  # noqa: PLC0415

    return call(options)


def _acp(given: list[str]) -> int:
    from callgate.cli.options import read_acp  # lazy: not for other commands  # noqa: PLC0415

    options = read_acp(given[1:])
    if options is None:
        return _full(given)
    try:
        from callgate.feature import load  # lazy: not for other commands  # noqa: PLC0415

        editor = load("editor")
        code = _full(given) if editor is None else editor.commands()["acp"].run(options)
        sys.stdout.flush()
        return code
    except BaseException as error:
        return _report_failure(given, error)


def _hook(words: list[str]) -> int:
    """Replace this process by an agent's hook script, which has a short time limit."""
    from callgate.config.home_check import HOOKS, home_path  # lazy: not for other commands  # noqa: PLC0415

    if len(words) in (1, 2) and words[0].isalpha():
        script = os.path.join(home_path(), HOOKS, words[0], "hook")
        if os.access(script, os.X_OK):
            os.execv(script, [script, *words[1:]])  # noqa: S606
    return _full(["hook", "run", *words])


def _deferred(given: list[str], options: Any = None) -> int:
    """Run a command with modules that are loaded when first used."""
    from callgate.cli.deferred_modules import deferred_modules  # lazy: not with an instance  # noqa: PLC0415

    with deferred_modules():
        return _full(given, options)


def _full(given: list[str], options: Any = None) -> int:
    from callgate.cli.dispatch import run  # lazy: not for calls through an instance  # noqa: PLC0415

    return run(given, options)


def _end(code: int) -> int:
    """End the process without the interpreter's slow cleanup, unless other threads run."""
    import atexit  # lazy: not with an instance  # noqa: PLC0415
    import threading  # lazy: as above  # noqa: PLC0415

    if threading.active_count() > 1:
        return code
    atexit._run_exitfuncs()
    sys.stderr.flush()
    os._exit(code)


def _report_failure(given: list[str], error: BaseException) -> int:
    """Report a fast-path failure through the normal error handler."""

    def fail() -> int:
        raise error

    from callgate.cli.dispatch import guarded  # lazy: only for errors  # noqa: PLC0415

    return guarded(given, fail)


def _escape_what_cannot_be_written() -> None:
    """Print a `\\u` escape for a character that the encoding of the stream lacks."""
    codecs.register_error("escape", _escape)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="escape")


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Return JSON escapes, so that JSON output stays valid."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4)), error.end


def _open_closed_streams() -> None:
    """Open missing standard streams, so that no later file gets their descriptors."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
