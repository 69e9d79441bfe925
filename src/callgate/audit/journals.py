"""Whose lines may be ahead of the store: each writing process has a locked file that says so.

    run/<chain>.journal    owner, file and offset: every line before that place is in the store too

A call without effects is answered once its line is in the audit log; its events reach the store
a moment later. The lines after that place are therefore the journal of the process. No crash
leaves the lock behind, so a file without a lock is that of a process that was killed: whoever
finds it puts what its lines say into the store, and removes it. From a file that cannot be read,
all lines of the chain count. What is no plain file is none of ours, and is left alone.
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

from callgate.audit.records import CallRecord
from callgate.audit.segments import open_segments
from callgate.core.directories import make_private_directory, sync_directory, sync_file

_log = logging.getLogger("callgate.audit")

_SUFFIX = ".journal"
_DYING_S = 1.0
"""How long the lock of a process that is known to be gone is waited for."""
_TRY_EVERY_S = 0.01


class JournalMark:
    """The file of this process, for one chain."""

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
        """Make it outlive a power cut, before lines do that are found through it. In any thread."""
        if not self._is_synced:
            sync_file(self._descriptor)
            sync_directory(os.path.dirname(self._path))
            self._is_synced = True

    def advance(self, file: int, offset: int) -> None:
        """Every line before this place is in the store. Does what it can."""
        try:
            if os.fstat(self._descriptor).st_nlink == 0:  # somebody has removed the file
                removed, self._descriptor = self._descriptor, self._make(file, offset)
                os.close(removed)
            self._write(self._descriptor, file, offset)
        except OSError as error:  # more lines than need be are read again after a crash
            _log.warning("how far the store is cannot be written down: %s", error)

    def _write(self, descriptor: int, file: int, offset: int) -> None:
        text = f"{self._owner or '-'} {file:012d} {offset:020d}\n"
        os.pwrite(descriptor, text.encode(), 0)

    def remove(self) -> None:
        """Nothing of this process is ahead of the store."""
        with suppress(OSError):
            os.unlink(self._path)
        self.close()

    def close(self) -> None:
        """Let go of it as a crash does."""
        os.close(self._descriptor)


class DeadJournal(msgspec.Struct, frozen=True):
    """The file of a process that is gone. Locked by whoever has this, until it is closed."""

    chain: str
    owner: str
    file: int
    offset: int
    path: str
    descriptor: int
    is_damaged: bool = False
    """Whether its place was not readable, so that all lines are read."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self.descriptor)

    def lines(self, log: str) -> Iterator[CallRecord]:
        """The lines that may not be in the store, in their order."""
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


def dead_journals(directory: str, gone: Collection[str] = ()) -> list[DeadJournal]:
    """The files of processes that are gone. Owners in `gone` are known to be: they may still be
    letting go of their locks."""
    found = (_take(path, gone) for path in _paths(directory))
    return [journal for journal in found if journal is not None]


class LivingJournal(NamedTuple):
    chain: str
    owner: str


def living_journals(directory: str) -> list[LivingJournal]:
    """The chains that are being written, and by whom."""
    return [LivingJournal(_chain(path), owner) for path, owner in _owners(directory) if owner]


def chains_ahead(directory: str) -> set[str]:
    """The chains with lines that may not be in the store yet, whoever wrote them."""
    return {_chain(path) for path, _ in _owners(directory)}


def any_dead(directory: str) -> bool:
    """Whether a process left such a file."""
    return any(owner is None for _, owner in _owners(directory))


def _owners(directory: str) -> Iterator[tuple[str, str | None]]:
    """Every file, with the name of its process; None where that is gone."""
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
    """Open a file that may be one of ours. Nothing else may be waited for or followed."""
    try:
        descriptor = os.open(path, access | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def _take(path: str, gone: Collection[str]) -> DeadJournal | None:
    descriptor = _opened(path, os.O_RDWR)
    if descriptor is None:
        return None
    try:
        until = time.monotonic() + _DYING_S
        while not _locked(descriptor, fcntl.LOCK_EX):
            if _words(descriptor)[0] not in gone or time.monotonic() > until:
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
        place = int(file), int(offset)
        if min(place) < 0 or max(place) > sys.maxsize:
            raise ValueError(place)
        return DeadJournal(_chain(path), owner, *place, path, descriptor)
    except ValueError:
        return DeadJournal(_chain(path), "", 0, 0, path, descriptor, is_damaged=True)


def _locked(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError:  # where it cannot be told, its process lives
        return False
    return True
