"""File locks, and whether a file system enforces them.

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
        raise StoreUnlocked(directory, problem)


def ensure_excludes(descriptor: int, path: str) -> None:
    """Raise `StoreUnlocked` if the lock of `descriptor` does not exclude other open files."""
    other = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if try_lock(other, fcntl.LOCK_SH) or _shares_record_lock(descriptor, other):
            raise StoreUnlocked(os.path.dirname(path), _TWICE)
    finally:
        os.close(other)


def unlocked(directory: str, error: OSError) -> StoreUnlocked | None:
    """Return the error that a failed lock reveals about the file system, if any."""
    if error.errno in _UNSUPPORTED:
        return StoreUnlocked(directory, error.strerror or str(error))
    return None


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
