"""Host process: runs Python tools and plugins, and speaks `protocol.host_v1` with the runtime.

    serving -+-> the main thread: sync work, one call at a time
             +-> `Tasks`, an event loop in its own thread: concurrent async work

Start with `serving`, which handles each request and chooses the thread that reads the next one.
`plugins` loads the tools of a file or module and provides their context, `pipes` is the only
connection to the runtime, from any thread. `scripts` makes a plugin of executables, and `zygote`
is a warm process that forks ready hosts. `take_streams` reserves stdin and stdout for the
protocol: all output of plugins goes to stderr, including output from C code and from child
processes.
"""

from __future__ import annotations

import io
import os
import sys


def take_streams() -> tuple[int, int]:
    """Return the descriptors for requests and answers, which no other code can access."""
    _open_stderr()
    requests, answers = os.dup(0), os.dup(1)  # child processes do not inherit them
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
    """Open a line-buffered text stream that accepts any character."""
    return open(fd, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _open_stderr() -> None:
    """Open stderr if it is closed: otherwise the next opened file would get its number."""
    try:
        os.fstat(2)
    except OSError:
        os.set_inheritable(os.open(os.devnull, os.O_WRONLY), True)  # gets the lowest free number, 2
