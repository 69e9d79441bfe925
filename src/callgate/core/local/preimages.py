"""Pre-images: a log line and the old content, stored before each change.

    Recorder --- line, appended ---> log
        |
        +--- open descriptor ---> `preimage_store`: link or copy ---> files L1, C2, ...

- A line is in the log before its change begins. The lines of a change that failed are cut off. So
  after a crash at most the last line may describe a change that was not made.
- A removed or replaced file is stored by a hard link, which needs no copy and preserves its inode.
  On another file system it is copied.
- A content is copied before the first open for writing, once for each inode. Structural changes are
  never deduplicated.
- Files that the command created itself are not stored.
- If a line or a file cannot be written, the change is refused. So is a change after the log has
  reached its bound. A file above the bounds is named in its line, with the reason, and the change
  proceeds.

A line is a length, a checksum, then fields separated by zero bytes; the first one names the change
(`workspace/undo/preimage_logs` reads them). The broker imports this: no msgspec.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
import zlib

from callgate.core.local.preimage_store import REASON

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


HEAD = struct.Struct("<II")
"""The length of a line, and its checksum: after a power cut, a part of the log may be missing."""
BEGIN, NEW, GONE, MOVED, SWAPPED, LINKED = (
    b"begin",
    b"new",
    b"gone",
    b"moved",
    b"swapped",
    b"linked",
)
BODY, MODE, ATTRIBUTE, END = b"body", b"mode", b"attribute", b"end"
FILE, DIRECTORY, LINK, OTHER = b"f", b"d", b"l", b"o"
OWN = b""
"""In place of a stored file: the command created the file itself."""
NOWHERE = b""
"""In place of the path of a file whose name is not known."""
LOG = "log"
LONGEST_LOG = 128 * 1024 * 1024
"""Maximum size in bytes of a log: about a million changes. Its reader needs several times as much
memory, and a command that only renames a file could fill the disk with it."""
_DELETED = b" (deleted)"


class Recorder:
    """Writes the log of one command, and has files stored before their changes."""

    def __init__(
        self,
        roots: list[bytes],
        log: int,
        store: Stores | None,
        excluded: frozenset[bytes] = frozenset(),
    ) -> None:
        """`log` is open for appending, and empty. No roots: record and store nothing. `excluded`:
        names of directories whose files are not stored."""
        self._excluded = excluded
        self._has_begun = False
        self._roots = tuple(root.rstrip(b"/") + b"/" for root in roots)
        self._log = log
        self._length = 0
        self._store = store
        self._created: set[tuple[int, int]] = set()
        """Regular files that the command created, and that still have a name."""
        self._copied: set[tuple[int, int]] = set()
        self._modes: set[tuple[int, int]] = set()
        self._attributes: set[tuple[int, int, bytes]] = set()

    @property
    def has_changes(self) -> bool:
        """Whether the log has lines about changes."""
        return self._length > HEAD.size + len(BEGIN)

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
        stored = self._stored(file, path, is_removed=False)
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
        """Note that all changes from here on are recorded. On a full disk the first change notes
        it, or is refused."""
        if self._roots:
            with contextlib.suppress(OSError):
                self._append([])

    def end(self) -> None:
        if self._roots:
            with contextlib.suppress(OSError):
                self._append([(END,)])

    def _stored(self, file: int, path: bytes, *, is_removed: bool) -> bytes:
        """Store an open file. Returns its name in the store, or a reason."""
        assert self._store is not None
        self._ensure_room()
        if self._excluded and not self._excluded.isdisjoint(path.split(b"/")):
            return REASON + b"in a directory that `[undo] exclude` names"
        return self._store.link(file, path) if is_removed else self._store.copy(file)

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
            file = at.open_existing()
            try:
                stored = self._stored(file, at.path, is_removed=True)
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
        before = self._length
        self._append(lines)
        return Noted(self, before, done)

    def _ensure_room(self) -> None:
        if self._length >= LONGEST_LOG:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    def cut(self, length: int) -> None:
        """Remove the last lines: their change was not made. It needs no space on the disk."""
        os.ftruncate(self._log, length)
        self._length = length

    def _append(self, lines: list[tuple[bytes, ...]]) -> None:
        text = b""
        for line in lines if self._has_begun else [(BEGIN,), *lines]:
            content = b"\0".join(line)
            text += HEAD.pack(len(content), zlib.crc32(content)) + content
        try:
            _write(self._log, text)
        except OSError:
            self.cut(self._length)  # a part of a line would hide all lines after it
            raise
        self._has_begun = True
        self._length += len(text)


class Noted:
    """Lines about the change in this context. A failure removes them."""

    __slots__ = ("_before", "_done", "_recorder")

    def __init__(
        self, recorder: Recorder | None, before: int, done: Callable[[], object] | None
    ) -> None:
        """`before`: the length of the log without the lines."""
        self._recorder = recorder
        self._before = before
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
            self._recorder.cut(self._before)
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
