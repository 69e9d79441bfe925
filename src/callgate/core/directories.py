"""Directories and files that are the user's alone, and the wait until the disk has them."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable

_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
"""macOS: its `fsync` leaves the data in the cache of the drive."""
_UNABLE = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS})
"""The file system has no such operation: there is nothing to wait for."""
_helpers = threading.Semaphore(4)
"""Of `BackgroundSync`, in the whole process."""


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
    """The same for the names in a directory."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return  # it may be written and not be read: the system syncs it within seconds
    try:
        sync_file(fd)
    finally:
        os.close(fd)


class BackgroundSync:
    """Work that waits for the disk, in a thread beside its caller, who must `wait` for its end.

    If all helpers are busy it is done at once: where many calls write, the disk has work enough.
    """

    __slots__ = ("_error", "_thread", "_work")

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        if not _helpers.acquire(blocking=False):
            self._run()
            return
        thread = threading.Thread(target=self._run_and_release, name="callgate-sync")
        try:
            thread.start()
            self._thread = thread
        except RuntimeError:  # the system has no thread to give
            self._run_and_release()

    def wait(self) -> None:
        """Return at the end of the work, or raise what it raised."""
        self.end()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Only wait. Idempotent."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # for whoever waits
            self._error = error

    def _run_and_release(self) -> None:
        self._run()
        _helpers.release()
