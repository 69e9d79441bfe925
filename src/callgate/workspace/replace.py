"""Replace the content of a name atomically: readers see the old file or the new one.

    write a temporary file -> sync it     -> rename -> sync the directory
                           -> note the change

A hard link to a file elsewhere is thus replaced and never written through. An error leaves the old
file unchanged, and after a power failure either the old file or the new one exists. When `replace`
returns, it is the new one, unless the caller requested no sync. The names of created directories
are synced, too.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from callgate.core.local.disk import BackgroundSync, share_sync, sync_file
from callgate.workspace.noting import (
    DIRECTORY_MADE,
    Changed,
    Noting,
    Standing,
    Withdraw,
    change,
)
from callgate.workspace.opening import CREATE, DIRECTORY, READ, Opener

__all__ = ["Changed", "made_directories", "replace", "sync_names"]

_PERMISSIONS = 0o777
"""Permission bits that are preserved: never set-uid or set-gid."""


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
    synced: bool = True,
) -> None:
    """Give `name` new content, with the owner of `like` and its mode, or the given one.

    Raises `Changed` if the file is not the one that was `read`, `OSError` for all else.
    """
    if like is not None and not os.access(name, os.W_OK, dir_fd=dir_fd):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    beside = b".callgate-" + secrets.token_hex(8).encode() + b".tmp"
    fd = opener.step(dir_fd, beside, CREATE, 0o600 if like else 0o666)
    try:
        _fill(fd, content)
        if like is not None:
            _dress(fd, like)
        if mode is not None:
            os.fchmod(fd, mode & _PERMISSIONS)
        created_mode = os.fstat(fd).st_mode if note is not None else 0
        with _syncing(fd, synced=synced) as on_disk:
            change(
                opener,
                dir_fd,
                name,
                lambda: os.rename(beside, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd),
                after=Standing("file", stat.S_IMODE(created_mode), len(content), content),
                note=note,
                read=read,
                ready=on_disk,
            )
    except BaseException:
        os.unlink(beside, dir_fd=dir_fd)
        raise
    finally:
        os.close(fd)
    if synced:
        sync_names(opener, dir_fd)


@contextmanager
def _syncing(fd: int, *, synced: bool) -> Iterator[Callable[[], None]]:
    """Sync a file while the block runs. The yielded function waits for it, and raises its error."""
    if not synced:
        yield _nothing
        return
    sync = BackgroundSync(partial(sync_file, fd))
    try:
        yield sync.wait
    finally:
        sync.end()


def sync_names(opener: Opener, dir_fd: int) -> None:
    """Wait until the names in a directory survive a power failure, together with other waiters."""
    status = os.fstat(dir_fd)
    share_sync((status.st_dev, status.st_ino), partial(_sync_names, opener, dir_fd))


def _sync_names(opener: Opener, dir_fd: int) -> None:
    try:
        fd = opener.step(dir_fd, b".", READ | os.O_DIRECTORY)
    except PermissionError:
        return  # writable but not readable: the system syncs it within seconds
    try:
        sync_file(fd)
    finally:
        os.close(fd)


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
            pass  # only root may change the owner
    os.fchmod(fd, stat.S_IMODE(like.st_mode) & _PERMISSIONS)


@contextmanager
def made_directories(
    opener: Opener,
    dir_fd: int,
    names: Sequence[bytes],
    note: Noting | None = None,
    *,
    synced: bool = True,
) -> Iterator[int]:
    """Open the directories of `names`, created if missing; removed again if the block fails.

    `note` is the note of the file in the last one.
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
                # Another program created it, or another kind of file: then the next step fails.
            fds.append(opener.step(fds[-1], name, DIRECTORY))
        yield fds[-1]
        if synced:
            for fd in fds[:-1]:  # also directories of concurrent calls, whose sync is unknown
                sync_names(opener, fd)
    except BaseException:
        for fd, name, withdraw in reversed(written):
            try:
                os.rmdir(name, dir_fd=fd)
            except OSError:
                break  # not empty any more
            withdraw()
        raise
    finally:
        for fd in fds[1:]:
            os.close(fd)


def _nothing() -> None:
    """Withdraw nothing, because there was no note."""
