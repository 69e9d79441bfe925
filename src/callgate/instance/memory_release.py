"""Returns unused memory of a long-running process to the system."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from typing import Any

_MADE_BEFORE_A_LOOK = 2_000
"""Objects until garbage is looked for: of what comes and goes here some is in cycles."""
_GROWN = 8 * 1024 * 1024
"""Bytes by which memory may grow before it is looked at: few objects can hold many."""
_LONGEST_PAUSE = 64
_SWITCH_S = 0.0005
"""How long a thread that writes to the store may hold up the event loop."""
_M_MMAP_THRESHOLD = -3
_LARGE = 1024 * 1024
"""Bytes of a buffer that goes back to the system as soon as it is freed."""
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Memory:
    """To be made once all is loaded and before anybody is served."""

    def __init__(self) -> None:
        gc.collect()
        gc.freeze()  # what is there now stays: nobody need look through it again
        gc.set_threshold(_MADE_BEFORE_A_LOOK)
        sys.setswitchinterval(_SWITCH_S)
        self._libc: Any = ctypes.CDLL(None) if sys.platform == "linux" else None
        # glibc would learn from the first large buffer to keep those that follow for itself.
        self._tell_libc("mallopt", _M_MMAP_THRESHOLD, _LARGE)
        self._least = self._last = _resident()
        """Bytes when it was smallest, and when it was last tidied."""
        self._pause, self._looks = 1, 0

    def tidy(self) -> None:
        """Collect what is in cycles and give back what is free, if there may be much of it.

        To be called again and again: the less of that was found, the less often it is tried.
        """
        size = _resident()
        self._least = min(self._least, size)
        if size < self._least + _GROWN:
            return
        if size > self._last + _GROWN:
            self._pause = 1
        self._looks += 1
        if self._looks < self._pause:
            return
        gc.collect()
        self._tell_libc("malloc_trim", 0)
        self._last, self._looks = _resident(), 0
        self._pause = 1 if self._last < size - _GROWN else min(self._pause * 2, _LONGEST_PAUSE)

    def _tell_libc(self, function: str, *given: int) -> None:
        found = getattr(self._libc, function, None)  # only glibc has these
        if found is not None:
            found(*given)


def _resident() -> int:
    """Bytes of our memory that are in use; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return 0
