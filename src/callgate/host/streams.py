"""The standard streams of a host: the runtime's for the protocol alone, the rest for logs.

Whatever plugins print goes to stderr, also below Python and in processes that they start.
Reading from stdin gives them nothing: the next request is not theirs to take.
"""

from __future__ import annotations

import io
import os
import sys


def take_streams() -> tuple[int, int]:
    """Where requests are read and answers written. Nothing else has these two from now on."""
    _open_stderr()
    requests, answers = os.dup(0), os.dup(1)  # not inherited by what plugins start
    os.set_blocking(requests, True)
    os.set_blocking(answers, True)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout, sys.stderr = _printed(1), _printed(2)
    vars(sys).update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)
    return requests, answers


def _printed(fd: int) -> io.TextIOWrapper:
    """Anything can be printed, and is there as soon as its line has ended."""
    return open(fd, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _open_stderr() -> None:
    """Closed by whoever started us, its number would become that of another file."""
    try:
        os.fstat(2)
    except OSError:
        os.set_inheritable(os.open(os.devnull, os.O_WRONLY), True)  # the lowest that is free: 2
