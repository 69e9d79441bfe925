"""Journal files: how far the store has followed the audit lines of each writing process.

    run/<chain>.journal    owner, file and offset: the store has every line before that offset

A call without effects is answered when its line is in the audit log; its events reach the store a
moment later. The lines after the offset are therefore the journal of the process. The process locks
its journal file, and a crash releases the lock. An unlocked file thus belongs to a killed process:
the process that finds it imports the lines into the store and removes the file. If a journal file
is unreadable, all lines of the chain are imported. Other kinds of files are ignored.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import NamedTuple, Self

import msgspec

from callgate.audit.records import CallRecord, open_segments
from callgate.core.local.disk import make_private_directory, sync_directory, sync_file

_log = logging.getLogger("callgate.audit")

_SUFFIX = ".journal"
_DYING_S = 1.0
"""Seconds to wait for the lock of a process that is known to have ended."""
_TRY_EVERY_S = 0.01


class JournalMark:
    """The journal file of this process, for one chain."""

    def __init__(self, directory: str, chain: str, owner: str, file: int, offset: int) -> None:
        self._path = os.path.join(directory, chain + _SUFFIX)
        self._owner = owner
        self._descriptor = self._make(file, offset)

    def _make(self, file: int, offset: int) -> int:
        self._is_synced = False
        make_private_directory(os.path.dirname(self._path))
        temporary = self._path + ".new"
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self._write(descriptor, file, offset)
            os.rename(temporary, self._path)
        except BaseException:
            os.close(descriptor)
            os.unlink(temporary)
            raise
        return descriptor

    def sync(self) -> None:
        """Make the file durable, before the lines that depend on it. Thread-safe."""
        if not self._is_synced:
            sync_file(self._descriptor)
            sync_directory(os.path.dirname(self._path))
            self._is_synced = True

    def advance(self, file: int, offset: int) -> None:
        """Record that the store has every line before this offset. Best effort."""
        try:
            if os.fstat(self._descriptor).st_nlink == 0:  # the file was removed
                removed, self._descriptor = self._descriptor, self._make(file, offset)
                os.close(removed)
            self._write(self._descriptor, file, offset)
        except OSError as error:  # more lines than need be are read again after a crash
            _log.warning("how far the store is cannot be written down: %s", error)

    def _write(self, descriptor: int, file: int, offset: int) -> None:
        text = f"{self._owner or '-'} {file:012d} {offset:020d}\n"
        os.pwrite(descriptor, text.encode(), 0)

    def remove(self) -> None:
        """Remove the file, because the store has all lines of this process."""
        with suppress(OSError):
            os.unlink(self._path)
        self.close()

    def close(self) -> None:
        """Release the lock as a crash does."""
        os.close(self._descriptor)


class DeadJournal(msgspec.Struct, frozen=True):
    """Journal file of an ended process. Its reader locks it until it is closed."""

    chain: str
    owner: str
    file: int
    offset: int
    path: str
    descriptor: int
    is_damaged: bool = False
    """Whether its position was unreadable, so that all lines are read."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self.descriptor)

    def lines(self, log: str) -> Iterator[CallRecord]:
        """The lines that may be missing in the store, in order."""
        from callgate.audit.reading import records_in  # lazy: few processes die  # noqa: PLC0415

        tag = f'"chain":"{self.chain}"'.encode()
        for _, number, file in open_segments(log):
            if number < self.file:
                continue
            if number == self.file:
                file.seek(self.offset)
            for raw in file:
                if tag in raw:
                    yield from (record for record, _ in records_in(raw.rstrip(b"\n")))

    def remove(self) -> None:
        with suppress(OSError):
            os.unlink(self.path)


def dead_journals(directory: str, dead: Collection[str] = ()) -> list[DeadJournal]:
    """Return the journal files of ended processes. Owners in `dead` have ended, but their locks may
    still be about to be released."""
    found = (_take(path, dead) for path in _paths(directory))
    return [journal for journal in found if journal is not None]


class LivingJournal(NamedTuple):
    chain: str
    owner: str


def living_journals(directory: str) -> list[LivingJournal]:
    """Return the chains that are being written, with their writers."""
    return [LivingJournal(_chain(path), owner) for path, owner in _owners(directory) if owner]


def chains_ahead(directory: str) -> set[str]:
    """Return the chains with lines that the store may not have yet, of any writer."""
    return {_chain(path) for path, _ in _owners(directory)}


def any_dead(directory: str) -> bool:
    """Whether a process left such a file."""
    return any(owner is None for _, owner in _owners(directory))


def _owners(directory: str) -> Iterator[tuple[str, str | None]]:
    """Yield every file with the name of its process, or with None if the process is dead."""
    for path in _paths(directory):
        descriptor = _opened(path, os.O_RDONLY)
        if descriptor is None:
            continue
        try:
            is_locked = not _locked(descriptor, fcntl.LOCK_SH)
            yield path, _words(descriptor)[0] or "-" if is_locked else None
        finally:
            os.close(descriptor)


def _paths(directory: str) -> list[str]:
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return []
    return [os.path.join(directory, name) for name in names if name.endswith(_SUFFIX)]


def _chain(path: str) -> str:
    return os.path.basename(path).removesuffix(_SUFFIX)


def _words(descriptor: int) -> list[str]:
    return os.pread(descriptor, 200, 0).decode("ascii", "replace").split() or [""]


def _opened(path: str, access: int) -> int | None:
    """Open a journal file. Never block, and never follow a link."""
    try:
        descriptor = os.open(path, access | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def _take(path: str, dead: Collection[str]) -> DeadJournal | None:
    descriptor = _opened(path, os.O_RDWR)
    if descriptor is None:
        return None
    try:
        until = time.monotonic() + _DYING_S
        while not _locked(descriptor, fcntl.LOCK_EX):
            if _words(descriptor)[0] not in dead or time.monotonic() > until:
                os.close(descriptor)
                return None
            time.sleep(_TRY_EVERY_S)
        return _read(path, descriptor)
    except OSError:
        os.close(descriptor)
        return None


def _read(path: str, descriptor: int) -> DeadJournal:
    try:
        owner, file, offset = _words(descriptor)
        position = int(file), int(offset)
        if min(position) < 0 or max(position) > sys.maxsize:
            raise ValueError(position)
        return DeadJournal(_chain(path), owner, *position, path, descriptor)
    except ValueError:
        return DeadJournal(_chain(path), "", 0, 0, path, descriptor, is_damaged=True)


def _locked(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError:  # unknown, so treat the process as alive
        return False
    return True
