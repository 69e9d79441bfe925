"""Open files without ever leaving a directory: by one system call, or one name at a time.

    Openat2         the kernel resolves the whole path beneath a directory (Linux 5.6)
    ComponentWalk   one name at a time, never through a link (everywhere else)

`step` opens one name and follows nothing. `beneath` opens a path and may give up with a
code of `UNDECIDED`: then `walk` goes the way in steps and decides. `ComponentWalk` always
gives up, so both answer alike.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import sys
from functools import cache, lru_cache
from typing import Any, Protocol

from callgate.workspace.paths import opening

LOOK = getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK) | os.O_CLOEXEC
"""Name a file without opening it: no permission needed, no device woken."""
DIRECTORY = LOOK | os.O_DIRECTORY
READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Never waits for the other end of a FIFO, never takes over a terminal."""
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

UNDECIDED = frozenset({errno.EXDEV, errno.EAGAIN})

_SYS_OPENAT2 = 437
_AT_FDCWD = -100
_NO_MAGICLINKS = 0x02
_NO_SYMLINKS = 0x04
_BENEATH = 0x08
_ATTEMPTS = 32
"""The kernel answers EAGAIN while someone renames directories on the way."""
_DELETED = " (deleted)"
_GETPATH: int | None = getattr(fcntl, "F_GETPATH", None)
"""macOS: the path of a descriptor, in the letters that stand on the disk."""


class Opener(Protocol):
    def top(self, path: str) -> tuple[int, str]:
        """A root directory, links followed: its descriptor and its real path."""
        ...

    def step(self, dir_fd: int, name: bytes, flags: int, mode: int = 0) -> int:
        """Open one name in a directory for use; fails (ELOOP, ENOTDIR) if it is a link."""
        ...

    def beneath(self, dir_fd: int, path: bytes, flags: int) -> int:
        """Open a path that stays beneath a directory, links followed."""
        ...

    def real(self, fd: int, walked: str) -> str:
        """The absolute path of what is open; `walked` is how the walk came there."""
        ...


class _How(ctypes.Structure):
    _fields_ = [
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    ]


_HOW_SIZE = ctypes.sizeof(_How)


@lru_cache(maxsize=64)
def _how(flags: int, mode: int, resolve: int) -> Any:
    return ctypes.byref(_How(flags, mode, resolve))


class Openat2:
    """The system call through ctypes: it also raises no `open` event for audit hooks."""

    def __init__(self) -> None:
        self._syscall = ctypes.CDLL(None, use_errno=True).syscall
        self._syscall.argtypes = (
            ctypes.c_long,
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
        )
        self._syscall.restype = ctypes.c_long

    def top(self, path: str) -> tuple[int, str]:
        fd = self._open(_AT_FDCWD, os.fsencode(path), _how(DIRECTORY, 0, 0))
        return fd, self.real(fd)

    def step(self, dir_fd: int, name: bytes, flags: int, mode: int = 0) -> int:
        how = _how(flags | os.O_NOFOLLOW, mode, _BENEATH | _NO_SYMLINKS)
        return self._open(dir_fd, name, how)

    def beneath(self, dir_fd: int, path: bytes, flags: int) -> int:
        return self._open(dir_fd, path, _how(flags, 0, _BENEATH | _NO_MAGICLINKS))

    def real(self, fd: int, walked: str = "") -> str:
        path = os.readlink(f"/proc/self/fd/{fd}")
        return _undeleted(fd, path) if path.endswith(_DELETED) else path

    def _open(self, dir_fd: int, path: bytes, how: Any) -> int:
        for _ in range(_ATTEMPTS):
            fd: int = self._syscall(_SYS_OPENAT2, dir_fd, path, how, _HOW_SIZE)
            if fd >= 0:
                return fd
            code = ctypes.get_errno()
            if code not in (errno.EAGAIN, errno.EINTR):
                break
        raise OSError(code, os.strerror(code))


def _undeleted(fd: int, path: str) -> str:
    """The name a file had: rules must see it even if it was removed after it was opened."""
    opened = os.fstat(fd)
    try:
        named = os.lstat(path)
    except OSError:
        return path.removesuffix(_DELETED)
    same = (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)
    return path if same else path.removesuffix(_DELETED)


class ComponentWalk:
    """The portable way: `os.open` beside the directory's descriptor, links refused."""

    def top(self, path: str) -> tuple[int, str]:
        real = os.path.realpath(path, strict=True)
        with opening():
            return os.open(real, DIRECTORY | os.O_NOFOLLOW), real

    def step(self, dir_fd: int, name: bytes, flags: int, mode: int = 0) -> int:
        with opening():
            return os.open(name, flags | os.O_NOFOLLOW, mode, dir_fd=dir_fd)

    def beneath(self, dir_fd: int, path: bytes, flags: int) -> int:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    def real(self, fd: int, walked: str) -> str:
        if _GETPATH is None:
            return walked
        return os.fsdecode(fcntl.fcntl(fd, _GETPATH, bytes(1024)).rstrip(b"\0"))


@cache
def best_opener() -> Opener:
    """The kernel's way where it works here, which needs `/proc` too; else the portable one."""
    if sys.platform == "linux":
        try:
            kernel = Openat2()
            fd, real = kernel.top("/")
        except OSError:
            return ComponentWalk()
        os.close(fd)
        if real == "/":
            return kernel
    return ComponentWalk()
