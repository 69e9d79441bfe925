"""A private directory for temporary files, for systems on which /tmp cannot be a private mount.

It is in the machine's /tmp, and TMPDIR names it. Its keeper locks it. The next keeper removes
directories of dead ones.

The broker imports this: no msgspec.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time

TYPE_CHECKING = False  # without `typing`, which is slow to load
if TYPE_CHECKING:
    from collections.abc import Callable

_PREFIX = "callgate-tmp-"
_NEW_S = 60.0


class OwnTmp:
    def __init__(self, parent: str) -> None:
        _sweep(parent)
        self._top = os.path.join(parent, _PREFIX + os.urandom(8).hex())
        os.mkdir(self._top, 0o700)
        self._lock = _locked(self._top)
        self.path = os.path.join(self._top, "tmp")
        self.shared_memory = os.path.join(self._top, "shm")
        """What /dev/shm means to calls that the keeper performs: semaphores and shared memory."""
        for path in (self.path, self.shared_memory):
            os.mkdir(path, 0o700)

    def remove(self) -> None:
        _remove(self._top)
        if self._lock is not None:
            os.close(self._lock)


def _locked(path: str) -> int | None:
    """Return a descriptor that locks a directory; None if another process has the lock."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _sweep(parent: str) -> None:
    for name in os.listdir(parent):
        path = os.path.join(parent, name)
        try:
            facts = os.lstat(path) if name.startswith(_PREFIX) else None
            if facts is None or facts.st_uid != os.geteuid() or not _is_old(facts):
                continue
            lock = _locked(path)
        except OSError:
            continue  # already removed
        if lock is not None:
            _remove(path)
            os.close(lock)


def _is_old(facts: os.stat_result) -> bool:
    """Whether a directory is old enough to have its lock."""
    return time.time() - facts.st_ctime > _NEW_S


def _remove(path: str) -> None:
    """Remove a tree without following links, as far as possible.

    A command may leave a tree of any depth. The walk therefore has one open directory, and no path.
    """
    try:
        at = _opened(path, None)
    except OSError:
        return
    pending: list[list[str]] = [_emptied(at)]
    names: list[str] = []
    try:
        while True:
            if pending[-1]:
                name = pending[-1].pop()
                try:
                    os.rmdir(name, dir_fd=at)
                    continue
                except OSError:
                    pass
                try:
                    at = _replaced(at, _opened(name, at))
                except OSError:
                    continue
                names.append(name)
                pending.append(_emptied(at))
            elif names:
                at = _replaced(at, os.open("..", _DIRECTORY, dir_fd=at))
                pending.pop()
                _try(os.rmdir, names.pop(), at)
            else:
                break
    except OSError:
        pass  # another process moved the directory
    finally:
        os.close(at)
    _try(os.rmdir, path, None)


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _opened(name: str, parent: int | None) -> int:
    """A directory, also one that its owner made inaccessible."""
    try:
        return os.open(name, _DIRECTORY, dir_fd=parent)
    except PermissionError:
        if stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
            os.chmod(name, 0o700, dir_fd=parent)
        return os.open(name, _DIRECTORY, dir_fd=parent)


def _emptied(directory: int) -> list[str]:
    """Remove all files of a directory. Its directories."""
    found = []
    try:
        os.fchmod(directory, 0o700)
        with os.scandir(directory) as entries:
            listed = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except OSError:
        return []
    for name, is_directory in listed:
        if is_directory:
            found.append(name)
        else:
            _try(os.unlink, name, directory)
    return found


def _try(remove: Callable[..., None], name: str, directory: int | None) -> None:
    try:
        remove(name, dir_fd=directory)
    except OSError:
        pass  # it stays


def _replaced(old: int, new: int) -> int:
    os.close(old)
    return new
