"""Directories and files that are the user's alone, and the wait until the disk has them."""

from __future__ import annotations

import errno
import fcntl
import os
from functools import partial

from callgate.core.disk.shared_syncs import share_sync

_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
"""macOS: its `fsync` leaves the data in the cache of the drive."""
_UNABLE = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS})
"""The file system has no such operation: there is nothing to wait for."""


def make_private_directory(path: str, *, synced: bool = False) -> None:
    """Make a directory, and what is missing above it, with mode 0700. Idempotent.

    `os.makedirs` gives its mode to the last one only. `synced`: the names of all that were made
    outlive a power cut.
    """
    parent, existed = os.path.dirname(path), os.path.lexists(path)
    if parent and not os.path.lexists(parent):
        make_private_directory(parent, synced=synced)
    os.makedirs(path, mode=0o700, exist_ok=True)
    if synced and not existed:
        sync_directory(parent or ".")


def write_private(path: str, text: str) -> None:
    """Replace a file in one step, readable by its owner only."""
    make_private_directory(os.path.dirname(path))
    temporary = f"{path}.{os.getpid()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def write_private_synced(path: str, text: str) -> None:
    """The same, and the file outlives a power cut once this returns; before, the old one does.

    For one writer at a time: what a killed one left is overwritten by the next."""
    make_private_directory(os.path.dirname(path))
    temporary = f"{path}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            sync_file(descriptor)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    sync_directory(os.path.dirname(path))


def sync_file(fd: int) -> None:
    """Wait until an open file or directory, as it is now, would outlive a power cut."""
    try:
        if _FULL_SYNC is not None:
            fcntl.fcntl(fd, _FULL_SYNC)
        else:
            os.fsync(fd)
    except OSError as error:
        if error.errno not in _UNABLE:
            raise


def sync_directory(path: str) -> None:
    """The same for the names in a directory, together with others who wait for them."""
    share_sync(path, partial(_sync_directory, path))


def _sync_directory(path: str) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return  # it may be written and not be read: the system syncs it within seconds
    try:
        sync_file(fd)
    finally:
        os.close(fd)
