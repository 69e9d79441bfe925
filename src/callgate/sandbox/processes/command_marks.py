"""The mark of a command: a random number that all its descendants inherit.

    environment   CALLGATE_CALL, the numbers of all commands around it, separated by dots
    limit         its soft RLIMIT_LOCKS is that number. No kernel since 2.6 enforces this
                  limit, every process inherits it, and any process may read it. So it
                  remains if the environment was cleared or overwritten.

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
    """Return a number for a new command, and its variable, after the marks that we have."""
    number = secrets.randbits(_BITS) | _LEAST_NUMBER
    outer = os.environ.get(MARK)
    return number, {MARK: f"{outer}.{number}" if outer else str(number)}


def inherited_mark(pid: int = 0) -> bool:
    """Whether a process, or our own, descends from a command of some runtime. True for a process
    that cannot be examined."""
    if sys.platform != "linux":
        return False
    try:
        soft, _ = resource.prlimit(pid, _RLIMIT_LOCKS)
    except OSError:
        return True
    return _LEAST_NUMBER <= soft < 1 << _BITS


def is_within_a_call() -> bool:
    """Whether our own process descends from a command of some runtime, by either mark."""
    return bool(os.environ.get(MARK)) or inherited_mark()
