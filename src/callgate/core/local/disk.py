"""Private files and directories, waiting until changes are durable, and file locks.

    rename, wait --+
    rename, wait --+--> [ sync 2, not begun ]      a new caller joins the sync that has not begun
                        [ sync 1, running ]        it may have begun before our rename

One sync serves many threads, and the first caller that waits for it runs it in its own thread;
`audit.syncing` does the same for callers in an event loop. `BackgroundSync` runs several syncs of
one call concurrently.

File locks, and whether a file system enforces them.

Locks decide which process lives, which one owns a session and which one writes the audit log. A
file system that grants one lock twice, or only within one machine, would let two processes own the
same session. callgate refuses such a directory.

    ensure_locks(directory)            at start-up; writes nothing
    ensure_excludes(descriptor, path)  after a lock was acquired
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from callgate.core.stores import StoreUnlocked

_TAKEN = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES})
_UNSUPPORTED = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS})
_TWICE = "the file system granted the same lock twice"
_LOCK = struct.Struct("@hhqqi0q")
"""`struct flock`: type, whence, start, length, pid."""
_LOCAL = ("nolock", "local_lock=all", "local_lock=flock", "local_lock=posix")
"""NFS mount options that hide locks from other machines."""


def try_lock(descriptor: int, how: int) -> bool:
    """Take a lock without waiting. Return False if another open file has it.

    Raises `OSError` if the lock state is unknown.
    """
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    return True


def ensure_locks(directory: str) -> None:
    """Raise `StoreUnlocked` if locks in a directory do not exclude other processes."""
    try:
        problem = _problem(directory) or _nfs_problem(directory)
    except OSError:  # missing or not accessible: reported when the directory is used
        return
    if problem is not None:
        raise _unlocked(directory, problem)


def ensure_excludes(descriptor: int, path: str) -> None:
    """Raise `StoreUnlocked` if the lock of `descriptor` does not exclude other open files."""
    other = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if try_lock(other, fcntl.LOCK_SH) or _shares_record_lock(descriptor, other):
            raise _unlocked(os.path.dirname(path), _TWICE)
    finally:
        os.close(other)


def unlocked(directory: str, error: OSError) -> StoreUnlocked | None:
    """Return the error that a failed lock reveals about the file system, if any."""
    if error.errno in _UNSUPPORTED:
        return _unlocked(directory, error.strerror or str(error))
    return None


def _unlocked(directory: str, problem: str) -> StoreUnlocked:
    from callgate.core.stores import StoreUnlocked  # lazy: it loads asyncio  # noqa: PLC0415

    return StoreUnlocked(directory, problem)


def _problem(directory: str) -> str | None:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    first = os.open(directory, flags)
    try:
        second = os.open(directory, flags)
        try:
            # If another process has it, the file system enforces locks.
            granted = try_lock(first, fcntl.LOCK_EX) and try_lock(second, fcntl.LOCK_EX)
        finally:
            os.close(second)
    except OSError as error:
        return error.strerror if error.errno in _UNSUPPORTED else None
    finally:
        os.close(first)
    return _TWICE if granted else None


def _shares_record_lock(first: int, second: int) -> bool:
    """Whether both files get the same record lock, which SQLite and leases use."""
    if not hasattr(fcntl, "F_OFD_SETLK"):
        return False
    exclusive = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    fcntl.fcntl(first, fcntl.F_OFD_SETLK, exclusive)
    try:
        fcntl.fcntl(second, fcntl.F_OFD_SETLK, exclusive)
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    finally:
        fcntl.fcntl(first, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 1, 0))
    return True


def _nfs_problem(directory: str) -> str | None:
    device = os.stat(directory).st_dev
    if os.major(device) != 0:  # a file system on a disk
        return None
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        return nfs_problem(mounts.read(), f"{os.major(device)}:{os.minor(device)}")


def nfs_problem(mounts: str, device: str) -> str | None:
    """Return why other machines do not see locks on a device, from `mountinfo`. Pure."""
    for line in mounts.splitlines():
        mount, _, file_system = line.partition(" - ")
        words, kinds = mount.split(), file_system.split()
        if len(words) < 3 or words[2] != device or not kinds or not kinds[0].startswith("nfs"):
            continue
        options = ",".join(kinds[2:]).split(",")
        for option in _LOCAL:
            if option in options:
                return f"it is on NFS with the mount option {option}"
    return None


class SharedSyncs:
    """Syncs by key, such as a directory."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._next: dict[Hashable, _Sync] = {}
        """Syncs that have not begun."""
        self._running: dict[Hashable, threading.Lock] = {}

    def run(self, key: Hashable, sync: Callable[[], None]) -> None:
        """Wait for a sync that begins after this call. Raises its error."""
        with self._guard:
            joined = self._next.get(key)
            if joined is None:
                mine = self._next[key] = _Sync()
                before = self._running.get(key)
                self._running[key] = mine.ended
        if joined is not None:
            joined.wait()
            return
        if before is not None:
            with before:  # wait for the running sync
                pass
        with self._guard:
            del self._next[key]  # from here on it may miss changes of others
        try:
            sync()
        except BaseException as error:
            mine.error = error if isinstance(error, OSError) else OSError(errno.EIO, str(error))
            raise
        finally:
            with self._guard:
                if self._running.get(key) is mine.ended:
                    del self._running[key]
            mine.ended.release()


class _Sync:
    __slots__ = ("ended", "error")

    def __init__(self) -> None:
        self.ended = threading.Lock()
        """Locked until the sync has ended."""
        self.ended.acquire()
        self.error: OSError | None = None

    def wait(self) -> None:
        with self.ended:
            pass
        if self.error is not None:
            raise OSError(*self.error.args)


_syncs = SharedSyncs()


def share_sync(key: Hashable, sync: Callable[[], None]) -> None:
    """Share a sync with all callers of this process that need the same one."""
    _syncs.run(key, sync)


def _begin_anew() -> None:
    global _syncs
    _syncs = SharedSyncs()


os.register_at_fork(after_in_child=_begin_anew)  # a child has none of the parent's threads


_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
"""macOS: `fsync` leaves the data in the cache of the drive, and this operation does not."""
_UNABLE = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS})
"""The file system has no such operation, so there is nothing to wait for."""


def make_private_directory(path: str, *, synced: bool = False) -> None:
    """Create a directory and its missing parents with mode 0700. Idempotent.

    `os.makedirs` applies its mode only to the last one. `synced`: all new names survive a power
    failure.
    """
    parent, existed = os.path.dirname(path), os.path.lexists(path)
    if parent and not os.path.lexists(parent):
        make_private_directory(parent, synced=synced)
    os.makedirs(path, mode=0o700, exist_ok=True)
    if synced and not existed:
        sync_directory(parent or ".")


def write_private(path: str, text: str) -> None:
    """Replace a file atomically, readable by its owner only."""
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
    """Like `write_private`, and durable on return. Until then a power failure preserves the old
    file.

    For one writer at a time: it overwrites the temporary file of a killed writer.
    """
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
    """Wait until the current content of an open file or directory survives a power failure."""
    try:
        if _FULL_SYNC is not None:
            fcntl.fcntl(fd, _FULL_SYNC)
        else:
            os.fsync(fd)
    except OSError as error:
        if error.errno not in _UNABLE:
            raise


def sync_directory(path: str) -> None:
    """Like `sync_file`, for the names in a directory, together with other callers."""
    share_sync(path, partial(_sync_directory, path))


def _sync_directory(path: str) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return  # writable, but not readable: the system syncs it within seconds
    try:
        sync_file(fd)
    finally:
        os.close(fd)


_MANY = 8
"""Minimum number of files for which one sync of the file system is faster than single ones."""


def sync_tree(directory: str) -> None:
    """Wait until the files of a directory, and their names, are durable."""
    with os.scandir(directory) as entries:
        paths = [each.path for each in entries if each.is_file(follow_symlinks=False)]
    linked = [path for path in paths if os.path.basename(path).startswith("L")]
    copied = sorted(set(paths) - set(linked))  # the content of a hard link is not ours
    if len(copied) >= _MANY and _sync_file_system(directory):
        return
    for path in copied:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            sync_file(fd)
        finally:
            os.close(fd)
    _sync_directory(directory)


def _sync_file_system(path: str) -> bool:
    """Wait until all data of a file system is durable. Returns whether the system can do it."""
    import ctypes  # lazy: only after commands with many changes  # noqa: PLC0415

    sync = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if sync is None:
        return False
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if sync(fd):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(fd)
    return True


disk_jobs: set[object] = set()
"""Pending and running jobs of the disk's threads (`environment`)."""
_FEW = 4
"""Up to this number of disk jobs, each may use helper threads: at most three."""


class BackgroundSync:
    """Disk work in a thread concurrent to the caller, who must `wait` for its end.

    If many calls write, the work is done immediately in the caller's thread: the disk is busy
    anyway.
    """

    __slots__ = ("_ended", "_error", "_tickets", "_work")

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._tickets = [None]
        """One ticket: taking it entitles to do the work."""
        self._error: Exception | None = None
        self._ended: Future[None] | None = None
        if len(disk_jobs) <= _FEW:
            try:
                self._ended = _helpers().submit(self._run)
            except RuntimeError:
                pass  # the system has no more threads
        if self._ended is None:
            self._run()

    def wait(self) -> None:
        """Wait for the end of the work. Raises its exception."""
        self.end()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Wait for the end of the work, without its exception. Idempotent."""
        if self._ended is not None:
            self._ended.result()

    def _run(self) -> None:
        try:
            self._tickets.pop()
        except IndexError:
            return  # the caller did it
        try:
            self._work()
        except Exception as error:  # for `wait`
            self._error = error


@cache
def _helpers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(3 * _FEW, "callgate-sync")


os.register_at_fork(after_in_child=_helpers.cache_clear)  # a child has none of the threads
