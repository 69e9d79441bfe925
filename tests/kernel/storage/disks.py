"""Disks that fail on purpose, as file systems for SQLite.

`Disk` fails the n-th operation, or all from the n-th on. Its syncs do not wait for a real
disk. `Cache` keeps what is written in memory until it is synced, as a machine does that may
lose its power.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

_names = itertools.count(1)

FAULTS: dict[str, tuple[Callable[[], apsw.Error], frozenset[str]]] = {
    "ENOSPC": (lambda: apsw.FullError("no space left"), frozenset({"create", "write"})),
    "EIO": (lambda: apsw.IOError("i/o error"), frozenset({"create", "open", "write", "read"})),
    "EIO on writing": (lambda: apsw.IOError("i/o error"), frozenset({"write"})),
    "EMFILE": (lambda: apsw.CantOpenError("too many open files"), frozenset({"create", "open"})),
}
"""Each with the operations that it can hit."""


class Disk(apsw.VFS):
    """Counts what is asked of it; `fail` says what goes wrong, and when."""

    def __init__(self, *, for_all: bool = False) -> None:
        """`for_all`: whoever names no other disk gets this one."""
        self.name = f"faulty{next(_names)}"
        self.done = 0
        self.failed = 0
        self.fault: str | None = None
        self._from = 0
        self._until = 0
        super().__init__(self.name, "unix", makedefault=for_all)

    def fail(self, fault: str, nth: int, times: int = 1) -> None:
        self.fault, self._from, self._until = fault, nth, nth + times

    def heal(self) -> None:
        self.fault = None

    def meet(self, operation: str) -> None:
        if self.fault is None:
            self.done += 1
            return
        error, hits = FAULTS[self.fault]
        if operation not in hits:
            return
        self.done += 1
        if self._from <= self.done < self._until:
            self.failed += 1
            raise error()

    def xOpen(self, name: Any, flags: list[int]) -> _File:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self.meet("open" if path and os.path.exists(path) else "create")
        return _File(self, name, flags)

    def xDelete(self, name: str, sync: bool) -> None:
        self.meet("write")
        super().xDelete(name, sync)

    def excepthook(self, *what: Any) -> None:
        """The store reports what matters; nothing goes to stderr."""


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.meet("write")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self._disk.meet("write")

    def xRead(self, amount: int, offset: int) -> bytes:
        self._disk.meet("read")
        return super().xRead(amount, offset)

    def xTruncate(self, size: int) -> None:
        self._disk.meet("write")
        super().xTruncate(size)

    def excepthook(self, *what: Any) -> None: ...


class Cache(apsw.VFS):
    """Holds back every write until the file is synced."""

    def __init__(self) -> None:
        self.name = f"cache{next(_names)}"
        self.held: dict[str, list[tuple[int, bytes]]] = {}
        super().__init__(self.name, "")

    def xOpen(self, name: Any, flags: list[int]) -> _CachedFile:
        return _CachedFile(self, name, flags)

    def lose_power(self, home: Path, into: Path) -> None:
        """What a disk holds of a home at this moment, without what was never synced."""
        into.mkdir()
        for name in os.listdir(home):
            if name.startswith("callgate.db") and not name.endswith("-shm"):
                shutil.copyfile(home / name, into / name)


class _CachedFile(apsw.VFSFile):
    def __init__(self, cache: Cache, name: Any, flags: list[int]) -> None:
        path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        self._held = cache.held.setdefault(path, [])  # one file, however often it is open
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._held.append((offset, bytes(data)))

    def xRead(self, amount: int, offset: int) -> bytes:
        found = bytearray(super().xRead(amount, offset))
        for at, data in self._held:
            begin, end = max(at, offset), min(at + len(data), offset + amount)
            if begin < end:
                if len(found) < end - offset:
                    found.extend(bytes(end - offset - len(found)))
                found[begin - offset : end - offset] = data[begin - at : end - at]
        return bytes(found)

    def xFileSize(self) -> int:
        ends = [offset + len(data) for offset, data in self._held]
        return max([super().xFileSize(), *ends])

    def xSync(self, flags: int) -> None:
        for offset, data in self._held:
            super().xWrite(data, offset)
        self._held.clear()

    def xTruncate(self, size: int) -> None:
        self.xSync(0)
        super().xTruncate(size)
