"""An order that was prepared within the last minute, used again: `callgate sandbox` in a hurry.

What is around a program follows from the settings and from where protected names are in the
workspace. An instance relies on that for a minute, and so does this. Whatever differs, an option
among it, is prepared anew.
"""

from __future__ import annotations

import marshal
import os
import sys
import time
import zlib

from callgate.config.home_check import home_path
from callgate.core.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from callgate.sandbox.orders import Order

FRESH_S = 60.0
COMMAND = b"@callgate-command@"
"""Stands where the program and its arguments go."""


def try_fast(words: list[str]) -> int | None:
    """Run `-- COMMAND ...`; None where it is to be prepared first."""
    if len(words) < 2 or words[0] != "--" or os.environ.get("CALLGATE_CALL"):
        return None
    order = load(facts_of(os.getcwd(), words[1]))
    if order is None:
        return None
    from callgate.cli.sandboxed_agents import terminal_runs  # lazy: not where nothing is prepared  # noqa: PLC0415

    code = terminal_runs.run(completed(order, words[1:]))
    os._exit(code)  # nothing is left to take apart


def completed(order: Order, argv: list[str]) -> Order:
    """The order with its program, and with our environment as it is now."""
    at = order["argv"].index(COMMAND)
    order["argv"][at : at + 1] = [os.fsencode(word) for word in argv]
    kept = {name: value for name, value in order["env"].items() if name in _OURS}
    order["env"] = {**_environment(), **kept}
    return order


_OURS = (b"CALLGATE_CALL", b"GIT_CONFIG_COUNT")
_WITHHELD = (b"CALLGATE_", b"LD_PRELOAD", b"BASH_ENV")


def _environment() -> dict[bytes, bytes]:
    return {name: value for name, value in os.environb.items() if not name.startswith(_WITHHELD)}


def facts_of(cwd: str, program: str) -> list[str]:
    """All that the order for this program depends on."""
    home = home_path()
    facts = [__version__, cwd, os.path.basename(program), os.environ.get("HOME", "")]
    facts += [os.environ.get("PATH", ""), sys.executable, str(os.geteuid())]
    own = os.path.join(cwd, ".callgate", "settings.toml")
    for name in ("settings.toml", "rules.toml", "trust.json", own):
        try:
            status = os.stat(os.path.join(home, name))
            facts.append(f"{name} {status.st_mtime_ns} {status.st_size} {status.st_ino}")
        except OSError:
            facts.append(name)
    return facts


def path_of(facts: list[str]) -> str:
    """Where an order is kept. Others may have the same name: its facts stand in the file, too."""
    number = zlib.crc32("\0".join(facts).encode("utf-8", "surrogateescape"))
    return os.path.join(home_path(), "run", f"sandbox-{number:08x}.order")


def load(facts: list[str]) -> Order | None:
    """An order that is fresh, was written by us, and is for exactly this."""
    path = path_of(facts)
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            is_ours = status.st_uid == os.geteuid() and not status.st_mode & 0o077
            if not is_ours or not 0 <= time.time() - status.st_mtime < FRESH_S:
                return None
            known, order = marshal.loads(file.read())  # noqa: S302  # a private file of ours
            found: Order | None = order if known == facts else None
            return found
    except (OSError, ValueError, EOFError, TypeError):
        return None


def keep(facts: list[str], order: Order) -> None:
    """Have it used again. Where that cannot be written, it is prepared anew each time."""
    path = path_of(facts)
    try:
        directory = os.path.dirname(path)
        os.makedirs(directory, mode=0o700, exist_ok=True)
        for name in os.listdir(directory):
            other = os.path.join(directory, name)
            if name.endswith(".order") and time.time() - os.stat(other).st_mtime > FRESH_S:
                os.unlink(other)
        descriptor = os.open(f"{path}.{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(marshal.dumps((facts, order)))  # type: ignore[arg-type]
        os.replace(f"{path}.{os.getpid()}", path)
    except (OSError, ValueError):
        pass
