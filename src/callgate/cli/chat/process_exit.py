"""Ends a command in which tools ran, even if the thread of a tool still runs."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable


def close_and_exit(close: Callable[[], object], code: int) -> int:
    """Close, and return the exit code; exit at once if a thread that cannot be stopped still runs.

    Everything that must persist is on the disk by now."""
    here = threading.current_thread()
    others = [each for each in threading.enumerate() if each is not here and not each.daemon]
    if others:
        exit_now(code)
    close()
    return code


def exit_now(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    os._exit(code)
