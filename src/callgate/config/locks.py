"""Changing a file of the home while others may."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_HELD = threading.local()
"""What this thread has locked: whoever holds a directory may ask for it again."""


@contextmanager
def alone_in(directory: str) -> Iterator[None]:
    """Two who read, change and write at the same time must not lose anything of each other."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        key = status.st_dev, status.st_ino
        held: set[tuple[int, int]] = _HELD.__dict__.setdefault("directories", set())
        if key in held:
            yield
            return
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        held.add(key)
        try:
            yield
        finally:
            held.discard(key)
    finally:
        os.close(descriptor)
