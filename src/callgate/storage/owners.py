"""Which processes live: each holds a lock on a file of its own that no crash leaves behind.

`run/<owner>.lock` is locked before it gets its name, so whoever sees it unlocked, or does not
see it, knows that its process is gone. An owner's name is never used again.
"""

from __future__ import annotations

import fcntl
import os
import re
import weakref

from callgate.core.directories import make_private_directory
from callgate.core.disk.file_locks import ensure_excludes, unlocked

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_SUFFIX = ".lock"


class Owners:
    def __init__(self, directory: str, owner: str) -> None:
        self._directory = directory
        self._owner = owner
        self._descriptor: int | None = None

    def declare(self) -> None:
        """From now on this process is seen to live. `OSError` where it cannot be written,
        `StoreUnlocked` where no other process would see it."""
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
        """Whether a process lives; where that cannot be told, it does."""
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
        """This process, as an owner, is gone."""
        if self._descriptor is None:
            return
        try:
            os.unlink(self._file(self._owner))
        except OSError:
            pass
        self.forget()

    def forget(self) -> None:
        """Let go of the lock without a word, as a crash does."""
        _declared.discard(self)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _file(self, owner: str) -> str:
        return os.path.join(self._directory, owner + _SUFFIX)

    def _sweep(self) -> None:
        """Remove what crashed processes left: a missing file says the same."""
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
    """A forked child is not the owner, and must not hold the lock when its parent is gone."""
    for owners in list(_declared):
        owners.forget()


os.register_at_fork(after_in_child=_forget_all)
