"""Leases: they separate sandboxed processes that write from path lookups of other programs.

    a command that may write to a root    announce the root -> wait while a path in it is open
                                          elsewhere -> start
    a path for another program            announce its directories -> refused if a command may
                                          write to one -> open

Another program follows links, so a process that can replace a part of a path decides which file
that program opens. Each side announces itself before it checks for the other: if both come at the
same time, at least one sees the other.

An announcement is a lock on one byte of a file in the home; the byte is a hash of the path. The
lock belongs to a descriptor and ends with its last copy. A command's keeper has a copy, so the lock
lasts until the last process of the command ends, even if callgate is killed. Every runtime of
a home sees it.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import struct
from collections.abc import Iterable, Iterator
from typing import Literal

from callgate.core.local.disk import make_private_directory

Side = Literal["command", "path"]

_LOCK = struct.Struct("@hhqqi0q")
"""`struct flock`: type, whence, start, length, pid."""
_PAUSE_S = 0.01
_MOST_LINKS = 40
_HAS_LOCKS = hasattr(fcntl, "F_OFD_SETLK")
"""A system without these locks has no sandbox either."""


class Leases:
    def __init__(self, home: str) -> None:
        self._file = os.path.join(home, "run", "paths.lock")

    async def write(self, roots: Iterable[str]) -> int:
        """Return the lease of a command that may write to these roots, which are free of links: a
        descriptor to keep open. Waits while a path in a root is open elsewhere. Raises `OSError`.
        """
        descriptor = self._open()
        try:
            wanted = list(roots)
            _announce(descriptor, "command", wanted)
            while _is_announced(descriptor, "path", wanted):  # noqa: ASYNC110
                # The release of a lock sends no signal, and a thread that waited for it could
                # not be cancelled.
                await asyncio.sleep(_PAUSE_S)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def reserve(self, path: str) -> int | None:
        """Return the lease of a path that another program opens: a descriptor to keep open. Until
        its last copy is closed, no command starts that could redirect the path. None if such a
        command may be running."""
        try:
            descriptor = self._open()
        except OSError:
            return None
        if not _HAS_LOCKS or _reserve(descriptor, path):
            return descriptor
        os.close(descriptor)
        return None

    def _open(self) -> int:
        """Open the lock file again for each lease: locks of one open file do not conflict."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(self._file, flags, 0o600)
        except FileNotFoundError:
            make_private_directory(os.path.dirname(self._file))
            return os.open(self._file, flags, 0o600)


def _reserve(descriptor: int, path: str) -> bool:
    try:
        wanted = leads_through(path)
        _announce(descriptor, "path", wanted)
        # Checked again: the path may have changed between its resolution and the announcement.
        return not _is_announced(descriptor, "command", wanted) and leads_through(path) == wanted
    except OSError:
        return False


def leads_through(path: str) -> frozenset[str]:
    """Return every directory in which, or below which, a renamed entry could redirect a path. This
    includes the directories of links on the way, and of missing parts. A command cannot move a
    root that it may write to, only its content."""
    found: set[str] = set()
    remaining = [part for part in reversed(path.split("/")) if part not in ("", ".")]
    here, links = "/", 0
    while remaining:
        part = remaining.pop()
        if part == "..":
            here = os.path.dirname(here)
            continue
        entry = os.path.join(here, part)
        found.add(entry)
        try:
            target = os.readlink(entry)
        except OSError:  # not a link, or missing
            here = entry
            continue
        links += 1
        if links > _MOST_LINKS:
            raise OSError(40, os.strerror(40), path)  # ELOOP
        remaining += [part for part in reversed(target.split("/")) if part not in ("", ".")]
        if target.startswith("/"):
            here = "/"
    return frozenset(above for entry in found for above in _parents(entry))


def _parents(path: str) -> Iterator[str]:
    while path != "/":
        path = os.path.dirname(path)
        yield path


def _announce(descriptor: int, side: Side, paths: Iterable[str]) -> None:
    for path in paths:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _lock(fcntl.F_RDLCK, side, path))


def _is_announced(descriptor: int, side: Side, paths: Iterable[str]) -> bool:
    for path in paths:
        lock = _lock(fcntl.F_WRLCK, side, path)
        kind, *_ = _LOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, lock))
        if kind != fcntl.F_UNLCK:
            return True
    return False


def _lock(kind: int, side: Side, path: str) -> bytes:
    name = hashlib.sha256(side.encode() + b"\0" + os.fsencode(path)).digest()
    number = int.from_bytes(name[:7], "big")
    return _LOCK.pack(kind, os.SEEK_SET, number, 1, 0)
