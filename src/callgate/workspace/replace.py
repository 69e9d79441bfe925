"""Put new content under a name at once: readers see the old file or the new one, whole.

The content goes into a file beside it, which then takes the name. So a hard link to a file
elsewhere is replaced and never written through, and an error leaves the old file as it was.
A history, where one is kept, is told before the name is taken.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from callgate.workspace.noting import (
    DIRECTORY_MADE,
    Changed,
    Noting,
    Standing,
    Withdraw,
    change,
)
from callgate.workspace.opening import CREATE, DIRECTORY, Opener

__all__ = ["Changed", "made_directories", "replace"]

_PERMISSIONS = 0o777
"""What is kept of a mode: never the bits that lend someone else's rights."""


def replace(
    opener: Opener,
    dir_fd: int,
    name: bytes,
    content: bytes,
    *,
    like: os.stat_result | None,
    read: os.stat_result | None = None,
    mode: int | None = None,
    note: Noting | None = None,
) -> None:
    """Give `name` new content, with the owner of `like` and its mode, or the one given.

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
            if mode is not None:
                os.fchmod(fd, mode & _PERMISSIONS)
            created_mode = os.fstat(fd).st_mode if note is not None else 0
        finally:
            os.close(fd)
        change(
            opener,
            dir_fd,
            name,
            lambda: os.rename(beside, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd),
            after=Standing("file", stat.S_IMODE(created_mode), len(content), content),
            note=note,
            read=read,
        )
    except BaseException:
        os.unlink(beside, dir_fd=dir_fd)
        raise


def _fill(fd: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(fd, left) :]


def _dress(fd: int, like: os.stat_result) -> None:
    status = os.fstat(fd)
    if (status.st_uid, status.st_gid) != (like.st_uid, like.st_gid):
        try:
            os.fchown(fd, like.st_uid, like.st_gid)
        except OSError:
            pass  # only root may give files away
    os.fchmod(fd, stat.S_IMODE(like.st_mode) & _PERMISSIONS)


@contextmanager
def made_directories(
    opener: Opener, dir_fd: int, names: Sequence[bytes], note: Noting | None = None
) -> Iterator[int]:
    """The directory that `names` lead to, made where missing; unmade if the block fails.

    `note` is that of what will lie in it.
    """
    fds = [dir_fd]
    written: list[tuple[int, bytes, Withdraw]] = []
    try:
        for levels, name in zip(range(len(names), 0, -1), names, strict=True):
            withdraw = _nothing if note is None else note.above(levels)(None, DIRECTORY_MADE)
            try:
                os.mkdir(name, dir_fd=fds[-1])
                written.append((fds[-1], name, withdraw))
            except OSError as error:
                withdraw()
                if not isinstance(error, FileExistsError):
                    raise
                # Someone else made it, or something else: then the next step fails.
            fds.append(opener.step(fds[-1], name, DIRECTORY))
        yield fds[-1]
    except BaseException:
        for fd, name, withdraw in reversed(written):
            try:
                os.rmdir(name, dir_fd=fd)
            except OSError:
                break  # someone put something in
            withdraw()
        raise
    finally:
        for fd in fds[1:]:
            os.close(fd)


def _nothing() -> None:
    """There was no note to withdraw."""
