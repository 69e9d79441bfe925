"""Copy and remove directory trees, by name on descriptors, without following links.

A copy shares its blocks with the original if the file system supports it (reflink). It has the
modes and times of the original, because programs check them, but neither its owners nor its hard
links. Sockets and devices are omitted.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
import sys

_FICLONE = 0x40049409
_BLOCK = 1024 * 1024
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_CLONE = {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.EPERM}


def copy_tree(source: str, target: str, most: int) -> None:
    """Copy a directory to a missing path. Raises EFBIG if it has more bytes than `most`."""
    from_fd = os.open(source, _DIRECTORY)
    try:
        os.mkdir(target, 0o700)
        to_fd = os.open(target, _DIRECTORY)
        try:
            _Copying(most).fill(from_fd, to_fd)
        finally:
            os.close(to_fd)
    finally:
        os.close(from_fd)


class _Copying:
    def __init__(self, most: int) -> None:
        self._left = most

    def fill(self, from_fd: int, to_fd: int) -> None:
        for name in os.listdir(from_fd):
            try:
                self._copy(name, from_fd, to_fd)
            except FileNotFoundError:
                continue  # removed during the walk
        _dress(to_fd, os.fstat(from_fd))

    def _copy(self, name: str, from_fd: int, to_fd: int) -> None:
        mode = os.stat(name, dir_fd=from_fd, follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            with _Opened(name, _DIRECTORY, from_fd) as inner:
                os.mkdir(name, 0o700, dir_fd=to_fd)
                with _Opened(name, _DIRECTORY, to_fd) as target:
                    self.fill(inner, target)
        elif stat.S_ISLNK(mode):
            os.symlink(os.readlink(name, dir_fd=from_fd), name, dir_fd=to_fd)
        elif stat.S_ISREG(mode):
            with _Opened(name, _READ, from_fd) as file, _Opened(name, _CREATE, to_fd) as target:
                self._copy_content(file, target)
                _dress(target, os.fstat(file))
        elif stat.S_ISFIFO(mode):
            os.mkfifo(name, stat.S_IMODE(mode), dir_fd=to_fd)

    def _copy_content(self, file: int, target: int) -> None:
        if _cloned(file, target):
            self._spend(os.fstat(target).st_size)
            return
        while piece := os.read(file, _BLOCK):
            self._spend(len(piece))
            left = memoryview(piece)
            while left:
                left = left[os.write(target, left) :]

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))


class _Opened:
    def __init__(self, name: str, flags: int, dir_fd: int) -> None:
        self._descriptor = os.open(name, flags, 0o600, dir_fd=dir_fd)

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _cloned(file: int, target: int) -> bool:
    if sys.platform != "linux":
        return False
    try:
        fcntl.ioctl(target, _FICLONE, file)
    except OSError as error:
        if error.errno in _NO_CLONE:
            return False
        raise
    return True


def _dress(target: int, like: os.stat_result) -> None:
    os.fchmod(target, stat.S_IMODE(like.st_mode) & 0o777)
    os.utime(target, ns=(like.st_atime_ns, like.st_mtime_ns))


def remove_tree(path: str) -> None:
    """Remove a directory of callgate with its content, including unreadable directories.

    A tree may be deeper than descriptors or the stack allow, so each directory is first moved
    to the top, and emptied there.
    """
    os.chmod(path, 0o700)
    top = os.open(path, _DIRECTORY)
    try:
        mark, moved = secrets.token_hex(8), 0
        waiting = ["."]
        while waiting:
            name = waiting.pop()
            with _Opened(name, _DIRECTORY, top) as here:
                for below in os.listdir(here):
                    if _is_directory(below, here):
                        os.chmod(below, 0o700, dir_fd=here)  # needed for the rename, too
                        moved += 1
                        waiting.append(f"{mark}-{moved}")
                        os.rename(below, waiting[-1], src_dir_fd=here, dst_dir_fd=top)
                    else:
                        os.unlink(below, dir_fd=here)
            if name != ".":
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(path)


def _is_directory(name: str, dir_fd: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode)
