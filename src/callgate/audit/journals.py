"""Whose lines may be ahead of the store: each writing process has a locked file that says so.

    run/<chain>.journal    owner, file and offset: every line before that place is in the store too

A call without effects is answered once its line is in the audit log; its events reach the store
a moment later. The lines after that place are therefore the journal of the process. No crash
leaves the lock behind, so a file without a lock is that of a process that was killed: whoever
finds it puts what its lines say into the store, and removes it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import NamedTuple, Self

import msgspec

from callgate.audit.records import CallRecord
from callgate.audit.segments import all_segments, number_of
from callgate.core.directories import make_private_directory, sync_directory, sync_file

_SUFFIX = ".journal"
_DYING_S = 1.0
"""How long the lock of a process that is known to be gone is waited for."""
_TRY_EVERY_S = 0.01


class JournalMark:
    """The file of this process, for one chain."""

    def __init__(self, directory: str, chain: str, owner: str, file: int, offset: int) -> None:
        make_private_directory(directory)
        self._path = os.path.join(directory, chain + _SUFFIX)
        self._owner = owner
        self._is_synced = False
        temporary = self._path + ".new"
        self._descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            self.advance(file, offset)
            os.rename(temporary, self._path)
        except BaseException:
            os.close(self._descriptor)
            os.unlink(temporary)
            raise

    def sync(self) -> None:
        """Make it outlive a power cut, before lines do that are found through it. In any thread."""
        if not self._is_synced:
            sync_file(self._descriptor)
            sync_directory(os.path.dirname(self._path))
            self._is_synced = True

    def advance(self, file: int, offset: int) -> None:
        """Every line before this place is in the store."""
        text = f"{self._owner or '-'} {file:012d} {offset:020d}\n"
        os.pwrite(self._descriptor, text.encode(), 0)

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self.descriptor)

    def lines(self, log: str) -> Iterator[CallRecord]:
        """The lines that may not be in the store, in their order."""
        from callgate.audit.reading import records_in  # lazy: few processes die  # noqa: PLC0415

        tag = f'"chain":"{self.chain}"'.encode()
        for segment in all_segments(log):
            number = number_of(segment) if segment != log else None
            if number is not None and number < self.file:
                continue
            with open(segment, "rb") as file:
                if number == self.file or (number is None and self._is_current(log)):
                    file.seek(self.offset)
                for raw in file:
                    if tag in raw:
                        yield from (record for record, _ in records_in(raw.rstrip(b"\n")))

    def _is_current(self, log: str) -> bool:
        """Whether the file of its place is the one that is written now."""
        closed = [number_of(each) for each in all_segments(log) if each != log]
        return self.file > max(closed, default=0)

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
    found = []
    for path in _paths(directory):
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            continue
        try:
            if not _locked(descriptor, fcntl.LOCK_SH):
                found.append(LivingJournal(_chain(path), _words(descriptor)[0]))
        finally:
            os.close(descriptor)
    return found


def any_dead(directory: str) -> bool:
    """Whether a process left such a file."""
    return len(living_journals(directory)) < len(_paths(directory))


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


def _take(path: str, gone: Collection[str]) -> DeadJournal | None:
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return None
    try:
        until = time.monotonic() + _DYING_S
        while not _locked(descriptor, fcntl.LOCK_EX):
            if _words(descriptor)[0] not in gone or time.monotonic() > until:
                os.close(descriptor)
                return None
            time.sleep(_TRY_EVERY_S)
        owner, file, offset = _words(descriptor)
        return DeadJournal(_chain(path), owner, int(file), int(offset), path, descriptor)
    except (OSError, ValueError):
        os.close(descriptor)
        return None


def _locked(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
