"""The mark of a command: every process that descends from it carries a number drawn for it.

    environment   CALLGATE_CALL, the numbers of all commands around it, separated by dots
    limit         its soft RLIMIT_LOCKS is that number. No kernel since 2.6 looks at this
                  limit, every process hands it on, and anyone may read it; so it is still
                  there where the environment was cleared or overwritten.

A process that clears the environment and changes the limit on purpose loses the mark.
"""

from __future__ import annotations

import os
import resource
import secrets
import sys

MARK = "CALLGATE_CALL"

_BITS = 60
_LEAST_NUMBER = 1 << (_BITS - 1)
_RLIMIT_LOCKS = 10


def new_mark() -> tuple[int, dict[str, str]]:
    """A number for a new command, and its environment variable behind the marks that we carry."""
    number = secrets.randbits(_BITS) | _LEAST_NUMBER
    outer = os.environ.get(MARK)
    return number, {MARK: f"{outer}.{number}" if outer else str(number)}


def inherited_mark(pid: int = 0) -> bool:
    """Whether a process, or we ourselves, belongs to a command of some runtime, at whatever
    distance. One that cannot be looked at might."""
    if sys.platform != "linux":
        return False
    try:
        soft, _ = resource.prlimit(pid, _RLIMIT_LOCKS)
    except OSError:
        return True
    return _LEAST_NUMBER <= soft < 1 << _BITS


def is_within_a_call() -> bool:
    """Whether we ourselves belong to a command of some runtime, by either mark."""
    return bool(os.environ.get(MARK)) or inherited_mark()
