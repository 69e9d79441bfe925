"""Pre-images: a log line and the old content, stored before each change.

    Recorder --- line, appended ---> log
        |
        +--- open descriptor ---> Store: link or copy ---> files L1, C2, ...

- A line is in the log before its change begins. The line of a change that failed is withdrawn.
  So after a crash at most the last line may describe a change that was not made.
- A removed or replaced file is stored by a hard link, which needs no copy and preserves its inode.
  On another file system it is copied.
- A content is copied before the first open for writing, once for each inode. Structural changes are
  never deduplicated.
- Files that the command created itself are not stored.
- If a line or a file cannot be written, the change is refused. So is a change after the log has
  reached its bound. A file above the bounds is named in its line, with the reason, and the change
  proceeds.

A line is a length, then fields separated by zero bytes; the first one names the change
(`workspace/undo/preimage_logs` reads them). The broker imports this: no msgspec.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct

TYPE_CHECKING = False  # without `typing`, which is slow to load
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Protocol

    class Place(Protocol):
        """A name in an open directory."""

        @property
        def path(self) -> bytes: ...
        @property
        def name(self) -> bytes: ...
        @property
        def parent(self) -> int: ...
        def status(self) -> os.stat_result: ...
        def open_existing(self) -> int: ...

    class Stores(Protocol):
        """Stores files, and returns their names, or reasons for not storing them."""

        def link(self, file: int, path: bytes) -> bytes: ...
        def copy(self, file: int) -> bytes: ...


LENGTH = struct.Struct("<I")
BEGIN, NEW, GONE, MOVED, SWAPPED, LINKED = (
    b"begin",
    b"new",
    b"gone",
    b"moved",
    b"swapped",
    b"linked",
)
BODY, MODE, ATTRIBUTE, WITHDRAWN, END = b"body", b"mode", b"attribute", b"withdrawn", b"end"
FILE, DIRECTORY, LINK, OTHER = b"f", b"d", b"l", b"o"
OWN = b""
"""In place of a stored file: the command created the file itself."""
REASON = b"!"
"""Prefix of the reason for which a file is not stored."""
NOWHERE = b""
"""In place of the path of a file whose name is not known."""
LOG = "log"
LONGEST_LOG = 128 * 1024 * 1024
"""Maximum size in bytes of a log: about a million changes. Its reader needs several times as much
memory, and a command that only renames a file could fill the disk with it."""
_DELETED = b" (deleted)"

_CLONE = 0x40049409
"""FICLONE"""
_BLOCK = 1024 * 1024
_HOLDS_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class Store:
    """Stores files in the directory of one command. Not among the mounts of the command."""

    def __init__(self, directory: str, max_file: int, max_total: int) -> None:
        self._directory = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._max_file = max_file
        self._left = max_total
        self._count = 0

    def close(self) -> None:
        os.close(self._directory)

    def link(self, file: int, path: bytes) -> bytes:
        """Store an open file with its inode, else its content. Returns the name or a reason."""
        facts = os.fstat(file)
        size = facts.st_blocks * 512 if facts.st_nlink == 1 else 0
        if size > self._left:
            return REASON + b"the bound of stored files is reached"
        self._count += 1
        name = b"L%d" % self._count
        if self._link(file, name) or self._link_by_path(facts, path, name):
            self._left -= size
            return name
        return self.copy(file)

    def _link(self, file: int, name: bytes) -> bool:
        try:
            os.link(b"/proc/self/fd/%d" % file, name, dst_dir_fd=self._directory)
        except OSError as error:
            if error.errno in _HOLDS_NO_SPACE:
                raise
            return False
        return True

    def _link_by_path(self, facts: os.stat_result, path: bytes, name: bytes) -> bool:
        """Store a file that was opened through a mount of the command, through our own."""
        try:
            ours = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            here = os.fstat(ours)
            is_same = (here.st_dev, here.st_ino) == (facts.st_dev, facts.st_ino)
            return is_same and self._link(ours, name)
        finally:
            os.close(ours)

    def copy(self, file: int) -> bytes:
        """Store the content of an open file. Returns the name or a reason."""
        try:
            source = os.open(b"/proc/self/fd/%d" % file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            return REASON + os.strerror(error.errno or 0).encode()
        try:
            return self._copy(source)
        finally:
            os.close(source)

    def _copy(self, source: int) -> bytes:
        size = os.fstat(source).st_size
        self._count += 1
        name = b"C%d" % self._count
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        target = os.open(name, flags, 0o600, dir_fd=self._directory)
        try:
            if _shares_blocks(source, target):
                return name
            if size > self._max_file:
                reason = b"larger than %d bytes" % self._max_file
            elif size > self._left:
                reason = b"the bound of stored files is reached"
            else:
                missing = size  # a growing file must not exceed the bounds
                while missing and (block := os.read(source, min(_BLOCK, missing))):
                    _write(target, block)
                    missing -= len(block)
                self._left -= size
                return name
        except BaseException:
            os.unlink(name, dir_fd=self._directory)
            raise
        finally:
            os.close(target)
        os.unlink(name, dir_fd=self._directory)
        return REASON + reason


def _shares_blocks(source: int, target: int) -> bool:
    """Let a new file share the blocks of another one, where the file system can."""
    try:
        fcntl.ioctl(target, _CLONE, source)
    except OSError:
        return False
    return True


class Recorder:
    """Writes the log of one command, and has files stored before their changes."""

    def __init__(
        self,
        roots: list[bytes],
        log: int,
        store: Stores | None,
    ) -> None:
        """`log` is open for appending. No roots: record and store nothing."""
        self._roots = tuple(root.rstrip(b"/") + b"/" for root in roots)
        self._log = log
        self._length = 0
        self._store = store
        self._created: set[tuple[int, int]] = set()
        """Regular files that the command created, and that still have a name."""
        self._copied: set[tuple[int, int]] = set()
        self._modes: set[tuple[int, int]] = set()
        self._attributes: set[tuple[int, int, bytes]] = set()

    def covers(self, path: bytes) -> bool:
        return path.startswith(self._roots)

    def crosses(self, one: bytes, other: bytes) -> bool:
        """Whether only one of two paths is recorded, so that nothing may move between them."""
        return self.covers(one) != self.covers(other)

    def creation(self, path: bytes) -> Noted:
        """Note a new name for a new file."""
        return self._noted([(NEW, path)] if self.covers(path) else [])

    def created(self, facts: os.stat_result) -> None:
        """Take a created regular file as the command's own."""
        if stat.S_ISREG(facts.st_mode):
            self._created.add((facts.st_dev, facts.st_ino))

    def removal(self, at: Place) -> Noted:
        """Note the removal of a name."""
        if not self.covers(at.path):
            return NOTHING
        lines, freed = self._deletion(at)
        return self._noted(lines, freed)

    def renaming(self, before: Place, after: Place, *, exchange: bool) -> Noted:
        """Note a rename, and the removal of the file that it replaces."""
        if not self.covers(before.path) or not self.covers(after.path):
            return NOTHING
        source = before.status()
        moved = _facts(source)
        try:
            target = after.status()
        except FileNotFoundError:
            return self._noted([(MOVED, before.path, after.path, *moved)])
        if exchange:
            line = (SWAPPED, before.path, after.path, *moved, *_facts(target))
            return self._noted([line])
        if (source.st_dev, source.st_ino) == (target.st_dev, target.st_ino):
            return NOTHING  # the kernel does nothing
        deleted, freed = self._deletion(after)
        return self._noted([*deleted, (MOVED, before.path, after.path, *moved)], freed)

    def linking(self, file: int, source: bytes, target: bytes) -> Noted:
        """Note another name for an open file."""
        if not self.covers(target):
            return NOTHING
        facts = os.fstat(file)
        if not facts.st_nlink:
            return self._noted([(NEW, target)], lambda: self.created(facts))
        return self._noted([(LINKED, _present(source, facts), target, *_facts(facts))])

    def arrival(self, facts: os.stat_result, target: bytes) -> Noted:
        """Note a name for a file from outside, which may have other names here."""
        return self._noted([(LINKED, NOWHERE, target, *_facts(facts))])

    def write(self, file: int, path: bytes) -> Noted:
        """Store the content of an open file, and note its first opening for writing."""
        facts = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode) or not self.covers(path):
            return NOTHING
        inode = (facts.st_dev, facts.st_ino)
        if inode in self._created or inode in self._copied:
            return NOTHING
        assert self._store is not None
        self._ensure_room()
        stored = self._store.copy(file)
        line = (BODY, _present(path, facts), *_facts(facts), stored)
        return self._noted([line], lambda: self._copied.add(inode))

    def mode_change(self, file: int, path: bytes) -> Noted:
        facts = os.fstat(file)
        inode = (facts.st_dev, facts.st_ino)
        if not self.covers(path) or inode in self._created or inode in self._modes:
            return NOTHING
        line = (MODE, _present(path, facts), *_facts(facts))
        return self._noted([line], lambda: self._modes.add(inode))

    def attribute_change(self, file: int, path: bytes, key: bytes) -> Noted:
        facts = os.fstat(file)
        change = (facts.st_dev, facts.st_ino, key)
        if not self.covers(path) or change[:2] in self._created or change in self._attributes:
            return NOTHING
        try:
            old = b"=" + os.getxattr(b"/proc/self/fd/%d" % file, key)
        except OSError as error:
            if error.errno != errno.ENODATA:
                return NOTHING  # then it cannot be set either
            old = b""
        line = (ATTRIBUTE, _present(path, facts), *_facts(facts), key, old.hex().encode())
        return self._noted([line], lambda: self._attributes.add(change))

    def begin(self) -> None:
        """Note that all changes from here on are recorded."""
        if self._roots:
            self._append([(BEGIN,)])

    def end(self) -> None:
        if self._roots:
            self._append([(END,)])

    def _deletion(self, at: Place) -> tuple[list[tuple[bytes, ...]], Callable[[], None]]:
        """Store a file before it loses a name. Returns its lines, and a function for the end."""
        facts = at.status()
        kind = _kind(facts)
        inode = (facts.st_dev, facts.st_ino)
        stored = OWN
        target = b""
        if kind == LINK:
            target = os.readlink(at.name, dir_fd=at.parent)
        elif kind == FILE and inode not in self._created:
            assert self._store is not None
            self._ensure_room()
            file = at.open_existing()
            try:
                stored = self._store.link(file, at.path)
            finally:
                os.close(file)
        elif kind == OTHER:
            target = b"%d" % facts.st_mode

        def freed() -> None:
            if facts.st_nlink == 1:  # another file may get its number
                self._created.discard(inode)
                if not stored.startswith(b"L"):
                    self._copied.discard(inode)
                    self._modes.discard(inode)

        lines = [(GONE, at.path, *_facts(facts), stored, target)]
        is_lost = kind == DIRECTORY or (kind == FILE and not stored.startswith(b"L"))
        if is_lost and inode not in self._created:
            lines = [*_attributes(at, facts), *lines]
        return lines, freed

    def _noted(
        self, lines: list[tuple[bytes, ...]], done: Callable[[], object] | None = None
    ) -> Noted:
        if not lines:
            return NOTHING
        self._ensure_room()
        self._append(lines)
        return Noted(self, len(lines), done)

    def _ensure_room(self) -> None:
        if self._length >= LONGEST_LOG:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    def withdraw(self, count: int) -> None:
        self._append([(WITHDRAWN, b"%d" % count)])

    def _append(self, lines: list[tuple[bytes, ...]]) -> None:
        text = b""
        for line in lines:
            content = b"\0".join(line)
            text += LENGTH.pack(len(content)) + content
        _write(self._log, text)
        self._length += len(text)


class Noted:
    """Lines about the change in this context. A failure withdraws them."""

    __slots__ = ("_count", "_done", "_recorder")

    def __init__(
        self, recorder: Recorder | None, count: int, done: Callable[[], object] | None
    ) -> None:
        self._recorder = recorder
        self._count = count
        self._done = done

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._recorder is None:
            return
        if kind is not None:
            self._recorder.withdraw(self._count)
        elif self._done is not None:
            self._done()


NOTHING = Noted(None, 0, None)


def _attributes(at: Place, facts: os.stat_result) -> list[tuple[bytes, ...]]:
    """Return lines about the extended attributes of a file that is about to lose its inode."""
    try:
        file = at.open_existing()
    except OSError:
        return []
    path = b"/proc/self/fd/%d" % file
    try:
        keys = [os.fsencode(key) for key in os.listxattr(path) if key.startswith("user.")]
        values = [(key, b"=" + os.getxattr(path, key)) for key in keys]
    except OSError:
        return []
    finally:
        os.close(file)
    return [(ATTRIBUTE, at.path, *_facts(facts), key, old.hex().encode()) for key, old in values]


def _present(path: bytes, facts: os.stat_result) -> bytes:
    """Return the path of an open file, unless the kernel reports a name that it no longer has."""
    if not path.endswith(_DELETED):
        return path
    try:
        here = os.lstat(path)
    except OSError:
        return NOWHERE
    return path if (here.st_dev, here.st_ino) == (facts.st_dev, facts.st_ino) else NOWHERE


def _facts(facts: os.stat_result) -> tuple[bytes, ...]:
    """Return kind, mode, device, inode, number of names, size and time of change."""
    text = b"%d\0%d\0%d\0%d\0%d\0%d" % (
        facts.st_mode & 0o7777,
        facts.st_dev,
        facts.st_ino,
        facts.st_nlink,
        facts.st_size,
        facts.st_mtime_ns,
    )
    return _kind(facts), text


def _kind(facts: os.stat_result) -> bytes:
    kind = stat.S_IFMT(facts.st_mode)
    return {stat.S_IFREG: FILE, stat.S_IFDIR: DIRECTORY, stat.S_IFLNK: LINK}.get(kind, OTHER)


def _write(descriptor: int, content: bytes) -> None:
    left = content
    while left:
        left = left[os.write(descriptor, left) :]
