"""Replace files atomically, and notify a history immediately before each change.

    read the present state -> note it -> still the same? -> change it
                 ^                              | no: withdraw the note
                 +------------------------------+

The noted state is read from the descriptor of the file that is then replaced or removed, so no
other file can be substituted unnoticed. The note of a change that was not made is withdrawn.

Replace the content of a name atomically: readers see the old file or the new one.

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
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal, NamedTuple, Protocol

from callgate.core.local.disk import BackgroundSync, share_sync, sync_file
from callgate.workspace.opening import CREATE, DIRECTORY, READ, Opener

Kind = Literal["file", "link", "directory", "other"]
Version = tuple[int, int, int, int]
Withdraw = Callable[[], None]

_ATTEMPTS = 8
"""Maximum number of retries if another program changes the file while it is noted."""
_BLOCK = 1024 * 1024


class PathLocks:
    """A lock for each real path, while it is in use."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, _PathLock] = {}

    @contextmanager
    def holding(self, real: str) -> Iterator[None]:
        with self._guard:
            path = self._locks.setdefault(real, _PathLock())
            path.users += 1
        try:
            with path.lock:
                yield
        finally:
            with self._guard:
                path.users -= 1
                if not path.users:
                    del self._locks[real]


class _PathLock:
    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.users = 0
        """Number of owners and waiters."""


_changing = PathLocks()
"""Serializes noted changes of one path in this process. Changes of different paths run
concurrently, because each waits for the disk.
"""


class Changed(Exception):
    """The file is no longer the one that was read."""


class Standing(NamedTuple):
    """State of a name in a directory."""

    kind: Kind
    mode: int
    """Permission bits."""
    size: int
    content: bytes | None = None
    """Content of a file, or target of a link. None if there is none, or it is too large."""
    version: Version | None = None
    """Distinguishes the file from a replacement under the same name."""


DIRECTORY_MADE = Standing("directory", 0o777, 0)


class Changes(Protocol):
    """A store of the history."""

    @property
    def limit(self) -> int:
        """Maximum bytes of a content that is read."""
        ...

    def note(self, real: str, before: Standing | None, after: Standing | None) -> Withdraw:
        """Note an imminent change. A `ToolError` from here prevents it."""
        ...


class Noting:
    """The history's listener for one real path."""

    __slots__ = ("_changes", "real")

    def __init__(self, changes: Changes, real: str) -> None:
        self._changes = changes
        self.real = real

    @property
    def limit(self) -> int:
        return self._changes.limit

    def __call__(self, before: Standing | None, after: Standing | None) -> Withdraw:
        return self._changes.note(self.real, before, after)

    def above(self, levels: int) -> Noting:
        """Return the listener for a parent directory."""
        return Noting(self._changes, self.real.rsplit("/", levels)[0])


def change(
    opener: Opener,
    dir_fd: int,
    name: bytes,
    act: Callable[[], None],
    *,
    after: Standing | None,
    note: Noting | None,
    read: os.stat_result | None = None,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Note the state of a name and act, if the state is then still the same.

    `ready` is awaited before the state is read. Raises `Changed` if the state is not the one that
    was `read`, or if it changes at each attempt.
    """
    if note is None:
        ready()
        if read is not None and version_at(dir_fd, name) != version(read):
            raise Changed
        return act()
    with _changing.holding(note.real):
        for _ in range(_ATTEMPTS):
            if _try(opener, dir_fd, name, act, after, note, read, ready):
                return None
    raise Changed


def _try(
    opener: Opener,
    dir_fd: int,
    name: bytes,
    act: Callable[[], None],
    after: Standing | None,
    note: Noting,
    read: os.stat_result | None,
    ready: Callable[[], None],
) -> bool:
    before = look(opener, dir_fd, name, note.limit)
    seen = None if before is None else before.version
    if read is not None and seen != version(read):
        raise Changed
    withdraw = note(before, after)
    try:
        ready()
        if version_at(dir_fd, name) == seen:
            act()
            return True
    except OSError:
        withdraw()
        raise
    withdraw()
    return False


def look(opener: Opener, dir_fd: int, name: bytes, limit: int) -> Standing | None:
    """Return the state of a name, with its content up to a limit; None if it does not exist."""
    try:
        status = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            return _standing("link", status, os.readlink(name, dir_fd=dir_fd))
        if stat.S_ISDIR(status.st_mode):
            return _standing("directory", status)
        if not stat.S_ISREG(status.st_mode):
            return _standing("other", status)
        try:
            fd = opener.step(dir_fd, name, READ)
        except PermissionError:
            return _standing("file", status)  # writable but not readable
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return _standing("other", status)
        return _standing("file", status, _content(fd, status.st_size, limit))
    finally:
        os.close(fd)


def _standing(kind: Kind, status: os.stat_result, content: bytes | None = None) -> Standing:
    size = status.st_size if content is None else len(content)
    return Standing(kind, stat.S_IMODE(status.st_mode), size, content, version(status))


def _content(fd: int, size: int, limit: int) -> bytes | None:
    if size > limit:
        return None
    blocks = [os.read(fd, size + 1)]
    if len(blocks[0]) == size:
        return blocks[0]
    read = len(blocks[0])
    while read <= limit and (block := os.read(fd, _BLOCK)):
        blocks.append(block)
        read += len(block)
    return b"".join(blocks) if read <= limit else None


def version_at(dir_fd: int, name: bytes) -> Version | None:
    try:
        return version(os.stat(name, dir_fd=dir_fd, follow_symlinks=False))
    except FileNotFoundError:
        return None


def version(status: os.stat_result) -> Version:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


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
