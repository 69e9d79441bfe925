"""Open files without ever leaving a directory, and keep such a directory open as a root.

    Openat2         the kernel resolves the whole path beneath a directory (Linux 5.6)
    ComponentWalk   one name at a time, never through a link (everywhere else)

`step` opens one name and follows no link. `beneath` opens a path and may give up with a code of
`UNDECIDED`: then `walk` takes the path in steps and decides. `ComponentWalk` always gives up, so
both give the same answers.

Walk a path one name at a time from a root, resolving links here and never leaving the roots.

Each name is opened in the directory before it without following a link. `..` returns to the
previous directory, which is still open, so that no link can be swapped in.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, Protocol, Self

from callgate.core.sessions import Root
from callgate.workspace.paths import opening, split, wants_directory

LOOK = getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK) | os.O_CLOEXEC
"""Name a file without opening it: no permission needed, no device woken."""
DIRECTORY = LOOK | os.O_DIRECTORY
READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Flags that never wait for the other end of a FIFO, and never acquire a terminal."""
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

UNDECIDED = frozenset({errno.EXDEV, errno.EAGAIN})

_SYS_OPENAT2 = 437
_AT_FDCWD = -100
_NO_MAGICLINKS = 0x02
_NO_SYMLINKS = 0x04
_BENEATH = 0x08
_ATTEMPTS = 32
"""Retries after EAGAIN, the kernel's answer while directories of the path are renamed."""
_DELETED = " (deleted)"
_GETPATH: int | None = getattr(fcntl, "F_GETPATH", None)
"""macOS: the path of a descriptor, in the case of the file system."""


class Opener(Protocol):
    def top(self, path: str) -> tuple[int, str]:
        """Open a root directory, with links followed. Returns its descriptor and real path."""
        ...

    def step(self, dir_fd: int, name: bytes, flags: int, mode: int = 0) -> int:
        """Open one name in a directory for use; fails (ELOOP, ENOTDIR) if it is a link."""
        ...

    def beneath(self, dir_fd: int, path: bytes, flags: int) -> int:
        """Open a path that stays beneath a directory, links followed."""
        ...

    def real(self, fd: int, walked: str) -> str:
        """Return the absolute path of an open file; `walked` is the path of the walk."""
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
    """Return the former name of a file that was removed after its open, for path rules."""
    opened = os.fstat(fd)
    try:
        named = os.lstat(path)
    except OSError:
        return path.removesuffix(_DELETED)
    same = (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)
    return path if same else path.removesuffix(_DELETED)


class ComponentWalk:
    """Portable opener: `os.open` relative to the directory's descriptor, without links."""

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
    """Return the kernel's opener if it works here, which needs `/proc`; else the portable one."""
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


class Directory:
    """An open root. Its descriptor is closed with the last reference to the object, so that no
    thread uses a closed, or even reused, number."""

    __slots__ = (
        "_identity",
        "_spellings",
        "fd",
        "names_above",
        "prefix",
        "real",
        "spelled",
        "writable",
    )

    def __init__(self, root: Root, opener: Opener) -> None:
        self.fd = -1
        self.fd, self.real = opener.top(root.path)
        self.writable = root.writable
        self.prefix = self.real.rstrip("/") + "/"
        self._identity = _identity(os.fstat(self.fd))
        self.spelled = os.path.abspath(root.path)
        is_plain = self.spelled == self.real
        self.names_above = tuple(os.fsencode(self.real).split(b"/")[1:]) if is_plain else ()
        """Names from `/` down to the root, by which `../NAME` leads back into it; empty if its path
        has links, because a program that resolves such a path textually would arrive elsewhere."""
        self._spellings = tuple({os.fsencode(p.rstrip("/")) for p in (self.real, self.spelled)})

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.fd >= 0:
            close(self.fd)

    def holds(self, real: str) -> bool:
        return real.startswith(self.prefix) or real == self.real

    def relative(self, real: str) -> str:
        """Return a real path relative to this root."""
        return real[len(self.prefix) :] or "."

    def spelling(self, path: bytes) -> bytes | None:
        """Return the known spelling of the root with which an absolute path begins."""
        for spelled in self._spellings:
            if path == spelled or path.startswith(spelled + b"/"):
                return spelled
        return None

    def entered_by(self, names: Sequence[bytes]) -> Sequence[bytes] | None:
        """Return the remaining names of an absolute path that goes up and down above this root,
        along the root's own path, and then enters it; None for any other path."""
        depth = 0
        for count, name in enumerate(names, 1):
            if name == b"..":
                depth = max(depth - 1, 0)
            elif depth < len(self.names_above) and name == self.names_above[depth]:
                depth += 1
            else:
                return None
            if depth == len(self.names_above):
                return names[count:]
        return None

    def is_at(self, fd: int) -> bool:
        return _identity(os.fstat(fd)) == self._identity

    def in_place(self) -> bool:
        """Whether its path still leads to the open directory."""
        try:
            return _identity(os.stat(self.real)) == self._identity
        except OSError:
            return False


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


MAX_LINKS = 40
"""The kernel's limit. A name that changes during the walk counts as a link."""

Enter = Callable[[bytes], tuple[Directory, bytes]]
"""Target of an absolute link: a root and the remaining path, or OSError(EXDEV)."""

_SWAPPED = (errno.ELOOP, errno.ENOTDIR, errno.ENOENT, errno.EINVAL)


class Spot:
    """End of a walk: an open directory, and the names that were not entered.

    `remaining` is empty if the path leads to the directory itself, one name for a file in it, and
    more if the path ends early. `status` belongs to the first name, None if it is missing.
    """

    __slots__ = ("fd", "parents", "remaining", "root", "slash", "status")

    def __init__(
        self,
        root: Directory,
        fd: int,
        parents: list[bytes],
        remaining: list[bytes],
        status: os.stat_result | None,
        slash: bool,
    ) -> None:
        self.root = root
        self.fd = fd
        self.parents = parents
        self.remaining = remaining
        self.status = status
        self.slash = slash

    @property
    def walked(self) -> str:
        """The real path of the directory, by the walk."""
        return self.root.prefix + os.fsdecode(b"/".join(self.parents))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.fd != self.root.fd:
            os.close(self.fd)


class _Way:
    """The open directories from a root down to the present position."""

    def __init__(self, root: Directory, opener: Opener) -> None:
        self.opener = opener
        self.root = root
        self.names: list[bytes] = []
        self.fds = [root.fd]

    @property
    def fd(self) -> int:
        return self.fds[-1]

    def down(self, name: bytes) -> None:
        self.fds.append(self.opener.step(self.fd, name, DIRECTORY))
        self.names.append(name)

    def up(self) -> None:
        if not self.names:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        self.names.pop()
        os.close(self.fds.pop())

    def restart(self, root: Directory) -> None:
        self.close()
        self.root, self.names, self.fds = root, [], [root.fd]

    def close(self, keep: int | None = None) -> None:
        for fd in self.fds[1:]:
            if fd != keep:
                os.close(fd)
        del self.fds[1:]


def walk(
    opener: Opener, root: Directory, path: bytes, enter: Enter, *, follow: bool = True
) -> Spot:
    """Return the end of a path, with links resolved; the last one only with `follow`.

    Raises `OSError`: EXDEV if the path leaves the roots, ELOOP after too many links.
    """
    way = _Way(root, opener)
    try:
        remaining, status, slash = _go(way, path, enter, follow)
        spot = Spot(way.root, way.fd, way.names, remaining, status, slash)
    except BaseException:
        way.close()
        raise
    way.close(keep=spot.fd)
    return spot


def _go(
    way: _Way, path: bytes, enter: Enter, follow: bool
) -> tuple[list[bytes], os.stat_result | None, bool]:
    pending = deque(split(path))
    slash = wants_directory(path)
    links = 0
    while pending:
        name = pending.popleft()
        if name == b"..":
            if way.names:
                way.up()
            else:
                _reenter(way.root, pending)
            continue
        status = _status(way.fd, name)
        is_link = status is not None and stat.S_ISLNK(status.st_mode)
        is_directory = status is not None and stat.S_ISDIR(status.st_mode)
        if not is_directory and not (is_link and (follow or pending or slash)):
            return [name, *pending], status, slash
        try:
            if is_directory:
                way.down(name)
                continue
            target = _read_link(way.fd, name)
        except OSError as error:
            if error.errno not in _SWAPPED:
                raise
            target = name  # changed in between: check again
        if (links := links + 1) > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if not pending:
            slash = slash or wants_directory(target)
        if target.startswith(b"/"):
            entered, target = enter(target)
            way.restart(entered)
        pending.extendleft(reversed(split(target)))
    return [], None, slash


def _reenter(root: Directory, pending: deque[bytes]) -> None:
    """Skip names that lead from above a root straight back into it, such as `../ROOT`.

    Nothing outside is accessed: each name must be the root's own. Raises EXDEV otherwise.
    """
    names, above = root.names_above, 1
    while above:
        name = pending.popleft() if pending else b""
        if name == b".." and above < len(names):
            above += 1
        elif name != b".." and above <= len(names) and name == names[-above]:
            above -= 1
        else:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


def _status(fd: int, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _read_link(fd: int, name: bytes) -> bytes:
    target = os.readlink(name, dir_fd=fd)
    if os.stat(name, dir_fd=fd, follow_symlinks=False).st_size == 0:
        # Created by the kernel, such as /proc/self/root: its text is not its target.
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
    return target
