"""Liveness of processes: each locks its own file, and a crash releases the lock.

`run/<owner>.lock` is locked before it gets its name. A file that is unlocked or missing therefore
means that its process has ended. The name of an owner is never reused.
"""

from __future__ import annotations

import fcntl
import os
import re
import weakref

from callgate.core.local.disk import ensure_excludes, make_private_directory, unlocked

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_SUFFIX = ".lock"


class Owners:
    def __init__(self, directory: str, owner: str) -> None:
        self._directory = directory
        self._owner = owner
        self._descriptor: int | None = None

    def declare(self) -> None:
        """Lock the file of this process as a sign of life. Raises `OSError` if that fails.

        Raises `StoreUnlocked` if other processes would not see the lock.
        """
        if self._descriptor is not None:
            if os.fstat(self._descriptor).st_nlink:
                return
            self.forget()  # someone has removed the file, and with it the word that we live
        make_private_directory(self._directory)
        temporary = self._file(self._owner) + ".new"
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            self._take(descriptor, temporary)
            os.write(descriptor, f"{os.getpid()}\n".encode())
            os.rename(temporary, self._file(self._owner))
        except BaseException:
            os.close(descriptor)
            os.unlink(temporary)
            raise
        self._descriptor = descriptor
        _declared.add(self)
        self._sweep()

    def _take(self, descriptor: int, path: str) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            ensure_excludes(descriptor, path)
        except OSError as error:
            raise unlocked(self._directory, error) or error from None

    def alive(self, owner: str) -> bool:
        """Return whether a process is alive; true if that is unknown."""
        if owner == self._owner:
            return True
        if not _NAME.match(owner):
            return False
        try:
            descriptor = os.open(self._file(owner), os.O_RDONLY)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    def withdraw(self) -> None:
        """Remove the file of this process, which then counts as dead."""
        if self._descriptor is None:
            return
        try:
            os.unlink(self._file(self._owner))
        except OSError:
            pass
        self.forget()

    def forget(self) -> None:
        """Release the lock as a crash does."""
        _declared.discard(self)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _file(self, owner: str) -> str:
        return os.path.join(self._directory, owner + _SUFFIX)

    def _sweep(self) -> None:
        """Remove the files of crashed processes: a missing file has the same meaning."""
        try:
            names = os.listdir(self._directory)
        except OSError:
            return
        for name in names:
            owner = name.removesuffix(_SUFFIX)
            if name.startswith("own_") and owner != name and not self.alive(owner):
                try:
                    os.unlink(os.path.join(self._directory, name))
                except OSError:
                    pass


_declared: weakref.WeakSet[Owners] = weakref.WeakSet()


def _forget_all() -> None:
    """A forked child is not the owner, and must not hold the lock after its parent's end."""
    for owners in list(_declared):
        owners.forget()


os.register_at_fork(after_in_child=_forget_all)
