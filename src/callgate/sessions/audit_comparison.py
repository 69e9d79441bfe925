"""Compare the store with the audit log: each call that ended has exactly one line about its end.

    store: sessions, ends, then the outbox ---> audit log: lines ---> store: newer ends

This order avoids false reports about running processes: a record leaves the outbox after its line
was written, and the events of a process may follow its lines, even after its death until recovery,
which a read-only home prevents. Lines from versions that did not commit records with the end of
their calls are not compared. Two records of one call that disagree are reported forever: by their
content, or by the note that was stored when the later one was found.

For a correct call, two numbers are stored in memory; for a session, one.
"""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from callgate.audit.journals import chains_ahead
from callgate.audit.reading import records_in, time_of
from callgate.audit.records import CallRecord, all_segments, number_of, open_segments
from callgate.audit.verify import LogProblem
from callgate.core.events import EVENTS_PRUNED, TERMINAL, Event
from callgate.core.stored import StoredSession
from callgate.core.stores import SessionNotFound, Store
from callgate.sessions.homes import MOVED, NOTE, SUPERSEDED

MOST = 100
"""Maximum problems in the list."""
_OUT_OF_ORDER_S = 60.0
"""Maximum delay of a line in the log, behind lines with a later time."""
_PAGE = 1_000
_HASH_BYTES = 7
"""Long enough to exclude random collisions, and still a small number."""
_HAS_LINE, _HAS_RIGHT_LINE = 1, 2
_OTHERWISE = "ended otherwise in the store"


class Comparison(msgspec.Struct, frozen=True):
    calls: int
    """Number of calls in the store that have ended."""
    problems: tuple[LogProblem, ...]


class _Line(NamedTuple):
    file: str
    number: int
    record: CallRecord

    def problem(self, message: str) -> LogProblem:
        return LogProblem(self.file, self.number, f"call {self.record.call_id} {message}")


async def compare(
    store: Store,
    path: str,
    directory: str,
    *,
    others: Sequence[tuple[str, str]] = (),
    is_shared: bool = False,
    is_whole: bool = True,
) -> Comparison:
    """Compare the log with the store. `directory` has the files of the processes.

    `is_shared`: several homes share the store; `others` are the logs and directories of some.
    `is_whole`: no other log has lines of the store; else a call without a line belongs to another.
    """
    comparison = _Comparison(store, path, directory, others)
    if is_shared:
        await comparison.read_notes()
    await comparison.read_store()
    await comparison.read_logs()
    if is_whole:
        comparison.report_dropped()
        await comparison.find_missing()
    await comparison.judge_unknown()
    if not is_shared:
        await comparison.judge_emptied()
    return Comparison(len(comparison.ends), tuple(comparison.problems[:MOST]))


class _Comparison:
    def __init__(
        self, store: Store, path: str, directory: str, others: Sequence[tuple[str, str]] = ()
    ) -> None:
        self._store = store
        self._path = path
        self._logs = [path, *(log for log, _ in others)]
        self._directories = [directory, *(each for _, each in others)]
        self._notes: dict[str, str] = {}
        """By line: the reason for which it differs from the store."""
        self._noted: set[str] = set()
        """Lines that contradict the store, by their notes, and that no log has shown yet."""
        self._key = os.urandom(16)
        """Random, so that no client can choose ids with equal hashes."""
        self.ends: dict[int, int] = {}
        """Keys are hashes of calls; values have the hash of the line's id, and the lines found."""
        self.problems: list[LogProblem] = []
        self._sessions: set[int] = set()
        self._forks: dict[str, float] = {}
        """Creation times of forks: older events are copies."""
        self._begin: str | None = None
        self._cursor: str | None = None
        self._owed: set[str] = set()
        self._ahead: set[str] = set()
        """Chains with lines that may not be in the store yet."""
        self._pruned_upto: dict[int, float] = {}
        """By session: the time before which its events may be pruned."""
        self._unknown: list[_Line] = []
        self._sessionless: _Line | None = None
        """The oldest line of a session that the store does not have: a deleted one, unless the
        store was emptied."""
        self._sessionless_count = 0

    async def read_store(self) -> None:
        self._note_ahead()
        await self._read_sessions()
        self._begin = await self._store.audited_from()
        self._cursor = await self._read_ends(self._begin)
        self._owed = {record.call_id for record in await self._store.outbox()}

    async def read_notes(self) -> None:
        self._notes = {each.name: each.value for each in await self._store.entries(NOTE)}
        self._noted = {line for line, why in self._notes.items() if why == SUPERSEDED}

    async def read_logs(self) -> None:
        for path in self._logs:
            await self._read_log(path)

    async def _read_log(self, path: str) -> None:
        for line in _lines(path):
            call, id = self._hash(line.record.call_id), self._hash(line.record.id)
            end = self.ends.get(call)
            self._noted.discard(line.record.id)
            if self._notes.get(line.record.id) == SUPERSEDED:
                self.problems.append(line.problem(_OTHERWISE))
                if end is not None:
                    self.ends[call] = end | _HAS_LINE
                continue
            if end is None:
                if await self._may_be_wrong(line.record):
                    self._unknown.append(line)
                elif self._hash(line.record.session) not in self._sessions:
                    self._note_sessionless(line)
                continue
            if end >> 2 != id:
                self.problems.append(line.problem(_OTHERWISE))
                self.ends[call] = end | _HAS_LINE
                continue
            if end & _HAS_RIGHT_LINE and self._notes.get(line.record.id) != MOVED:
                self.problems.append(line.problem("has a line before this one"))
            self.ends[call] = end | _HAS_LINE | _HAS_RIGHT_LINE

    def report_dropped(self) -> None:
        """Report the lines that contradicted the store and were dropped from the logs since."""
        for line in sorted(self._noted):
            message = f"line {line}, which was dropped, told another end than the store"
            self.problems.append(LogProblem(self._path, 0, message))

    async def find_missing(self) -> None:
        """Look up ends without a line by their ids."""
        if all(end & _HAS_LINE for end in self.ends.values()):
            return
        oldest = max(map(_oldest_line, self._logs))
        async for call, event, _ in self._ended(self._begin):
            end = self.ends.get(self._hash(call), _HAS_LINE)
            if not end & _HAS_LINE and call not in self._owed and event.timestamp >= oldest:
                message = f"call {call} of {event.session_id} has no line"
                self.problems.append(LogProblem(self._path, 0, message))
                if len(self.problems) >= MOST:
                    return

    async def judge_unknown(self) -> None:
        """Look up lines of calls without an end again: the store may have followed."""
        self._note_ahead()
        await self._read_ends(self._cursor)
        self._pruned_upto.clear()
        for line in self._unknown:
            is_known = self._hash(line.record.call_id) in self.ends
            if not is_known and await self._may_be_wrong(line.record):
                self.problems.append(line.problem("has no end in the store"))

    def _note_sessionless(self, line: _Line) -> None:
        record = line.record
        if not record.principal or record.chain in self._ahead:
            return
        self._sessionless_count += 1
        if self._sessionless is None or record.ts < self._sessionless.record.ts:
            self._sessionless = line

    async def judge_emptied(self) -> None:
        """Report lines that are older than the store: it had their sessions, and lost them."""
        line = self._sessionless
        if line is None or line.record.chain in self._ahead:
            return
        if line.record.ts / 1000 + _OUT_OF_ORDER_S < await self._began():
            count = self._sessionless_count
            self.problems.append(
                line.problem(
                    "is older than the store, which was emptied or replaced:"
                    f" the store lacks the sessions of {count} lines"
                )
            )

    async def _began(self) -> float:
        """Return the time of the first event of the store. 0: its first events were deleted, so it
        is unknown; infinity: it never had one."""
        ever = (await self._store.behind()).most
        page = await self._store.read_all(limit=1)
        if not page.events:
            return 0.0 if ever else math.inf
        after_first = (await self._store.behind(page.cursors[0])).most
        return page.events[0].timestamp if ever - after_first == 1 else 0.0

    async def _may_be_wrong(self, record: CallRecord) -> bool:
        """Whether the end of a call should be in the store, going by its line."""
        session = self._hash(record.session)
        if (
            not record.principal  # missing in older lines
            or record.chain in self._ahead
            or session not in self._sessions
        ):
            return False
        if session not in self._pruned_upto:
            self._pruned_upto[session] = await _pruned_upto(self._store, record.session)
        return record.ts / 1000 > self._pruned_upto[session]

    def _note_ahead(self) -> None:
        for directory in self._directories:
            self._ahead |= chains_ahead(directory)

    async def _read_sessions(self) -> None:
        cursor: str | None = None
        while True:
            page = await self._store.list_sessions(cursor=cursor, limit=_PAGE, workers=True)
            for session in page.sessions:
                self._note_session(session)
            cursor = page.cursor
            if cursor is None:
                return

    def _note_session(self, session: StoredSession) -> None:
        self._sessions.add(self._hash(session.id))
        if session.forked_from:
            self._forks[session.id] = session.created_at

    async def _read_ends(self, after: str | None) -> str | None:
        """Note the calls that ended after a cursor. Returns the new cursor."""
        async for call, event, cursor in self._ended(after):
            after = cursor
            hash = self._hash(call)
            if hash in self.ends:
                if event.session_id not in self._forks:  # else a copy: clocks may be set back
                    message = f"call {call} has two ends in the store"
                    self.problems.append(LogProblem(self._path, 0, message))
                continue
            self.ends[hash] = self._hash(f"audit_{event.id}") << 2
        return after

    async def _ended(self, after: str | None) -> AsyncIterator[tuple[str, Event, str | None]]:
        """Yield calls that ended after a cursor, with the cursor after the page, but no copies."""
        while True:
            page = await self._store.read_all(after)
            for event in page.events:
                is_copy = event.timestamp <= self._forks.get(event.session_id, -1.0)
                if event.type in TERMINAL and not is_copy:
                    id = event.payload.get("call_id") or event.payload.get("tool_use_id")
                    yield str(id), event, page.cursor
            if not page.events:
                return
            after = page.cursor

    def _hash(self, text: str) -> int:
        data = text.encode("utf-8", "surrogatepass")
        return int.from_bytes(blake2b(data, key=self._key, digest_size=_HASH_BYTES).digest(), "big")


def _lines(path: str) -> Iterator[_Line]:
    for segment, _, file in open_segments(path):
        for number, raw in enumerate(file, start=1):
            for record, _ in records_in(raw.rstrip(b"\n")):
                yield _Line(segment, number, record)


async def _pruned_upto(store: Store, session: str) -> float:
    """Return the time of a session's first event that is not pruned; 0 if it has none."""
    try:
        first = await store.read_events(session, limit=1)
        if not first or first[0].type != EVENTS_PRUNED:
            return 0.0
        following = await store.read_events(session, first[0].payload["upto"], limit=1)
    except SessionNotFound:  # deleted since the list was read
        return math.inf
    return following[0].timestamp if following else math.inf


def _oldest_line(path: str) -> float:
    """Return the time before which lines may have been dropped; 0 if none were."""
    first = next(iter(all_segments(path)), path)
    with suppress(FileNotFoundError):  # deleted since the list was read
        if first == path or (number_of(first) == 1 and os.path.getsize(first)):
            return 0.0
    # A record may have waited long for its line, but not since before the start of its chain.
    times = (max(each.record.ts, _began(each.record.chain)) for each in _lines(path))
    return next((time / 1000 + _OUT_OF_ORDER_S for time in times), math.inf)


def _began(chain: str) -> int:
    """Return the start of a chain, in milliseconds since 1970, from its name."""
    return time_of(b'{"id":"audit_' + chain.encode("ascii", "replace")) or 0
