"""The file that an instance in the background writes to: rotated before it grows too large."""

from __future__ import annotations

import os

LOG = "serve.log"
"""In the home: what an instance in the background has to say."""
LARGEST = 1024 * 1024
"""Bytes of a log file; the one before is kept beside it."""


def rotate(path: str, largest: int = LARGEST) -> None:
    """Begin the log file anew that our stdout and stderr go to, if they do and it is large."""
    try:
        status, ours = os.stat(path, follow_symlinks=False), os.fstat(2)
        if not os.path.samestat(status, ours) or status.st_size <= largest:
            return
        os.replace(path, f"{path}.1")
        write_to(path)
    except OSError:  # there is no room for another, or no file can be opened: later
        return


def write_to(path: str) -> None:
    """Have stdout and stderr go to a file."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(path, flags, 0o600)
    for descriptor in (1, 2):
        os.dup2(file, descriptor)
    os.close(file)
