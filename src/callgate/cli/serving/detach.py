"""Runs an instance in the background: `callgate serve --detach` returns once the instance is ready.

started ── fork ──> the instance: its own session, writes to the terminal until it is ready,
   │                then to a log
   └ waits for its word, or for its end, and leaves with 0 or with its exit code
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from callgate.cli.errors import FAILED, OK
from callgate.instance.log_file import write_to


def detach(log: str) -> Callable[[], None]:
    """Go on in a process of its own. What is returned says that it is ready.

    To be called before there are threads: only the one that calls it goes on.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    word, wanted = os.pipe()
    pid = os.fork()
    if pid:
        os.close(wanted)
        os._exit(_await(pid, word))
    os.close(word)
    os.setsid()

    def ready() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        _redirect(log)
        os.write(wanted, b"1")
        os.close(wanted)

    return ready


def _await(pid: int, word: int) -> int:
    try:
        if os.read(word, 1):
            return OK
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) or FAILED
    except KeyboardInterrupt:  # it is in a session of its own, so the terminal did not tell it
        os.kill(pid, 2)
        os.waitpid(pid, 0)
        return 130


def _redirect(log: str) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.close(nothing)
    write_to(log)
