"""Put new content under a name at once: readers see the old file or the new one, whole.

The content goes into a file beside it, which then takes the name. So a hard link to a file
elsewhere is replaced and never written through, and an error leaves the old file as it was.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from callgate.workspace.opening import CREATE, DIRECTORY, Opener

_PERMISSIONS = 0o777
"""What is kept of a mode: never the bits that lend someone else's rights."""


class Changed(Exception):
    """The file is no longer the one that was read."""


def replace(
    opener: Opener,
    dir_fd: int,
    name: bytes,
    content: bytes,
    *,
    like: os.stat_result | None,
    read: os.stat_result | None = None,
) -> None:
    """Give `name` new content, with the mode and owner of `like`.

    Raises `Changed` if the file is not as it was `read`, OSError for all else.
    """
    if like is not None and not os.access(name, os.W_OK, dir_fd=dir_fd):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    beside = b".callgate-" + secrets.token_hex(8).encode() + b".tmp"
    fd = opener.step(dir_fd, beside, CREATE, 0o600 if like else 0o666)
    try:
        try:
            _fill(fd, content)
            if like is not None:
                _dress(fd, like)
        finally:
            os.close(fd)
        if read is not None and not _unchanged(dir_fd, name, read):
            raise Changed
        os.rename(beside, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except BaseException:
        os.unlink(beside, dir_fd=dir_fd)
        raise


def _fill(fd: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(fd, left) :]


def _dress(fd: int, like: os.stat_result) -> None:
    made = os.fstat(fd)
    if (made.st_uid, made.st_gid) != (like.st_uid, like.st_gid):
        try:
            os.fchown(fd, like.st_uid, like.st_gid)
        except OSError:
            pass  # only root may give files away
    os.fchmod(fd, stat.S_IMODE(like.st_mode) & _PERMISSIONS)


def _unchanged(dir_fd: int, name: bytes, read: os.stat_result) -> bool:
    try:
        now = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return _version(now) == _version(read)


def _version(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


@contextmanager
def made_directories(opener: Opener, dir_fd: int, names: Sequence[bytes]) -> Iterator[int]:
    """The directory that `names` lead to, made where missing; unmade if the block fails."""
    fds = [dir_fd]
    made: list[tuple[int, bytes]] = []
    try:
        for name in names:
            try:
                os.mkdir(name, dir_fd=fds[-1])
                made.append((fds[-1], name))
            except FileExistsError:
                pass  # someone else made it, or something else: then the next step fails
            fds.append(opener.step(fds[-1], name, DIRECTORY))
        yield fds[-1]
    except BaseException:
        for fd, name in reversed(made):
            try:
                os.rmdir(name, dir_fd=fd)
            except OSError:
                break  # someone put something in
        raise
    finally:
        for fd in fds[1:]:
            os.close(fd)
