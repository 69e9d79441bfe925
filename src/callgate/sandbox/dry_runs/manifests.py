"""Directory trees: copies, removal, and manifests of names and metadata with their differences.

    before = await observe(directory)
    ...                                 a command runs
    observed = await before.changes()   created, changed, deleted, and unknown parts

A file counts as changed if its mode, size, times or inode changed; a directory if its mode changed.
No program can set the change time of an inode, so resetting a date hides nothing. Reading changes
no time that counts. Links are never followed.

A tree may be too large, too deep or unreadable. The result names the parts that were not
searched, and reports no change in them. On kernels before 6.13 one change goes unnoticed: a file
that changed in the last milliseconds before the first look, and again right after it, to the same
size.

Copy and remove directory trees, by name on descriptors, without following links.

A copy shares its blocks with the original if the file system supports it (reflink). It has the
modes and times of the original, because programs check them, but neither its owners nor its hard
links. Sockets and devices are omitted.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import fcntl
import os
import secrets
import stat
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from callgate.core.commands import sendable as sendable
from callgate.sandbox.backends import placeholders

_FICLONE = 0x40049409
_BLOCK = 1024 * 1024

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


MOST_ENTRIES = 50_000
MOST_SECONDS = 5.0

_MOST_DEPTH = 200
_NAMED = 50
"""Maximum paths of each kind in a result or an event."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Facts(NamedTuple):
    """Metadata of one name."""

    mode: int
    """Type and permission bits."""
    size: int
    mtime_ns: int
    inode: int
    ctime_ns: int

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)

    def is_same(self, other: Facts) -> bool:
        if self.is_directory and other.is_directory:
            return self.mode == other.mode  # size and times depend on its content
        return self == other


class Manifest(NamedTuple):
    entries: Mapping[str, Facts]
    """By path from the directory. A name that is not UTF-8 has surrogates (`os.fsdecode`)."""
    unlisted: Mapping[str, str]
    """Incompletely searched directories, with the reason; "" is the root of the tree."""


class Observed(msgspec.Struct, frozen=True):
    """Sorted paths, as in a `Manifest`."""

    created: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()
    """Reasons for which changes may be missing here; empty: the result is complete."""

    def __bool__(self) -> bool:
        return bool(self.created or self.changed or self.deleted)

    @property
    def files(self) -> list[str]:
        """Every path as valid text, for `ToolOutput.files_modified`."""
        return sorted(map(sendable, (*self.created, *self.changed, *self.deleted)))

    def as_metadata(self) -> dict[str, Any]:
        """Return the first paths of each kind, and all counts, for metadata or an event."""
        kinds = {"created": self.created, "changed": self.changed, "deleted": self.deleted}
        metadata: dict[str, Any] = {
            k: [*map(sendable, paths[:_NAMED])] for k, paths in kinds.items()
        }
        metadata["counts"] = {kind: len(paths) for kind, paths in kinds.items()}
        metadata["incomplete"] = list(self.incomplete)
        return metadata


class Before(NamedTuple):
    """The first look, for a comparison with a second one."""

    directory: str
    manifest: Manifest
    bounds: tuple[int, float]

    async def changes(self) -> Observed:
        return compare(self.manifest, await _look(self.directory, *self.bounds))


async def observe(
    directory: str, *, most: int = MOST_ENTRIES, seconds: float = MOST_SECONDS
) -> Before:
    """Take the manifest of a directory before a command runs in it."""
    return Before(directory, await _look(directory, most, seconds), (most, seconds))


async def _look(directory: str, most: int, seconds: float) -> Manifest:
    return await asyncio.to_thread(take, directory, most=most, seconds=seconds)


def take(directory: str, *, most: int = MOST_ENTRIES, seconds: float = MOST_SECONDS) -> Manifest:
    """Return the names below a directory, within a limit of names and time."""
    entries: dict[str, Facts] = {}
    unlisted: dict[str, str] = {}
    ours = contextvars.Context()  # opens of this walk are not opens of the running tool
    try:
        root = ours.run(os.open, directory, _DIRECTORY & ~os.O_NOFOLLOW)
    except OSError as error:
        return Manifest(entries, {"": str(error.strerror)})
    walk = _Walk(entries, unlisted, most, time.monotonic() + seconds)
    ours.run(walk.run, root)
    return Manifest(entries, unlisted)


class _Level(NamedTuple):
    """A directory on the current path: its descriptor, its path, and its directories to visit."""

    descriptor: int
    prefix: str
    left: list[str]


class _Walk:
    """Walks depth first, so that open descriptors are bounded by the depth of the tree."""

    def __init__(
        self, entries: dict[str, Facts], unlisted: dict[str, str], most: int, deadline: float
    ) -> None:
        self._entries = entries
        self._unlisted = unlisted
        self._most = most
        self._deadline = deadline

    def run(self, root: int) -> None:
        levels: list[_Level] = []
        try:
            levels.append(_Level(root, "", self._list(root, "")))
            while levels:
                here = levels[-1]
                if not here.left:
                    os.close(levels.pop().descriptor)
                    continue
                self._enter(here, here.left.pop(), levels)
        finally:
            for level in levels:
                os.close(level.descriptor)

    def _enter(self, here: _Level, name: str, levels: list[_Level]) -> None:
        path = here.prefix + name
        if why := self._refusal(len(levels)):
            self._unlisted[path] = why
            return
        try:
            descriptor = os.open(name, _DIRECTORY, dir_fd=here.descriptor)
        except OSError as error:  # gone, unreadable, or too many open files
            self._unlisted[path] = str(error.strerror)
            return
        try:
            below = self._list(descriptor, path + "/")
        except BaseException:
            os.close(descriptor)
            raise
        levels.append(_Level(descriptor, path + "/", below))

    def _refusal(self, depth: int) -> str | None:
        if depth > _MOST_DEPTH:
            return f"deeper than {_MOST_DEPTH} directories"
        if len(self._entries) >= self._most:
            return f"more than {self._most:,} names"
        if time.monotonic() > self._deadline:
            return "no time was left"
        return None

    def _list(self, descriptor: int, prefix: str) -> list[str]:
        """Add the names in a directory. Returns its subdirectories."""
        below = []
        try:
            with os.scandir(descriptor) as names:
                for count, entry in enumerate(names, 1):
                    at = _facts(entry, descriptor)
                    if at is None:
                        continue
                    self._entries[prefix + entry.name] = at
                    if at.is_directory:
                        below.append(entry.name)
                    if count % 256 == 0 and (why := self._refusal(0)):
                        self._unlisted[prefix[:-1]] = why
                        break
        except OSError as error:
            self._unlisted[prefix[:-1]] = str(error.strerror)
        return below


def _facts(entry: os.DirEntry[str], parent: int) -> Facts | None:
    try:
        found = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    if placeholders.is_one(found.st_mode) and placeholders.is_empty(entry.name, parent, found):
        return None  # a placeholder of callgate, for another command
    return Facts(found.st_mode, found.st_size, found.st_mtime_ns, found.st_ino, found.st_ctime_ns)


def compare(before: Manifest, after: Manifest) -> Observed:
    """Return the differences of two manifests of one directory, in the parts that both have."""
    old, new = before.entries, after.entries
    return Observed(
        created=_known(new.keys() - old.keys(), before),
        changed=tuple(sorted(p for p, at in old.items() if p in new and not at.is_same(new[p]))),
        deleted=_known(old.keys() - new.keys(), after),
        incomplete=tuple(sorted({*_reasons(before), *_reasons(after)})),
    )


def _known(paths: Iterable[str], missing_in: Manifest) -> tuple[str, ...]:
    """Return the paths that `missing_in` would list if they had existed then."""
    unlisted = missing_in.unlisted
    if not unlisted:
        return tuple(sorted(paths))
    return tuple(sorted(path for path in paths if unlisted.keys().isdisjoint(_above(path))))


def _above(path: str) -> Iterable[str]:
    """Yield every directory above a path, the root as ""."""
    while path:
        path = path.rpartition("/")[0]
        yield path


def _reasons(manifest: Manifest) -> Iterable[str]:
    """Return each reason once, with one of its paths."""
    first: dict[str, str] = {}
    for path, why in manifest.unlisted.items():
        first.setdefault(why, path)
    return (f"{sendable(path) or '.'}: {why}" for why, path in first.items())
