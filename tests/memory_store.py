"""A store that lives as long as the process: the second engine of the contract tests.

It keeps what SQLite keeps, under the same rules, except that nothing outlives the process.
Several stores may share one `Tables`, as several processes share a file; each is an owner of
its own, and it is gone once it is closed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable, Iterator, Sequence
from typing import Any, Self, TypeVar

from msgspec.structs import replace

from callgate.core.budgets import PageRelease, PrunablePage, RowSweep, StoreUsage
from callgate.core.events import Event
from callgate.core.ids import ulid
from callgate.core.ops import Op
from callgate.core.stored import (
    CallState,
    ConfirmationState,
    CutSession,
    OutboxRecord,
    SharedEntry,
    StoredCall,
    StoredConfirmation,
    StoredGrant,
    StoredMessage,
    StoredSession,
    entries_key,
)
from callgate.core.stores import (
    PAGE,
    Behind,
    ConfirmationNotFound,
    EventPage,
    Hint,
    SessionNotFound,
    SessionPage,
    Snapshot,
    StoreClosed,
    StoreError,
)
from callgate.storage.changes import apply
from callgate.storage.encoding import check_page, decode, decode_event, encode_ops, read_cursor, write_cursor
from callgate.storage.pruning import filled
from callgate.storage.pruning import prunable as choose
from callgate.storage.threaded_store import Hints
from callgate.storage.views import Blob, EmptiedEvent, EventRow, MessageRow, Row, View, is_due

R = TypeVar("R", bound=Row)


class Tables:
    """The rows, and who lives."""

    def __init__(self) -> None:
        self._rows: dict[type[Any], dict[Hashable, Any]] = {}
        self._events: dict[str, list[EventRow]] = {}
        self._messages: dict[str, list[MessageRow]] = {}
        self.log: list[EventRow | None] = []
        """All events in the order of their commits; None where one was deleted."""
        self.dropped: list[str] = []
        """Sessions that are gone, while rows of theirs are left."""
        self.pruned = 0
        """The number of the last event in `log` that was pruned."""
        self.touches: dict[str, int] = {}
        """The number of the last change of each session."""
        self._changes = 0
        self.living: dict[str, Hints] = {}

    def get(self, kind: type[R], key: Hashable) -> R | None:
        return self._rows.get(kind, {}).get(key)

    def all(self, kind: type[R]) -> list[R]:
        return list(self._rows.get(kind, {}).values())

    def find(self, kind: type[R], field: str, value: Any, limit: int | None = None) -> Sequence[R]:
        found = [row for row in self.all(kind) if getattr(row, field) == value]
        return found if limit is None else sorted(found, key=lambda row: row.key)[:limit]  # type: ignore[arg-type, return-value]

    def due(self, at: float) -> Sequence[StoredConfirmation]:
        return [question for question in self.all(StoredConfirmation) if is_due(question, at)]

    def events(self, session: str, after: int = 0) -> Iterator[tuple[int, str]]:
        yield from ((row.seq, row.text) for row in self._events.get(session, []) if row.seq > after)

    def messages(self, session: str) -> Iterator[str]:
        yield from (row.text for row in self._messages.get(session, []))

    def alive(self, owner: str) -> bool:
        return owner in self.living

    def workers_of(self, session: str) -> list[StoredSession]:
        return sorted(self.find(StoredSession, "parent", session), key=lambda each: each.id)

    def has_open_calls(self, session: str) -> bool:
        calls = self.find(StoredCall, "session_id", session)
        is_cut = self.get(CutSession, session) is not None
        return is_cut or any(call.state is not CallState.ENDED for call in calls)

    def oldest_sessions(self, cursor: str | None, most: int) -> tuple[list[StoredSession], str | None]:
        after = read_cursor("s", cursor) if cursor is not None else 0
        order = sorted(self.all(StoredSession), key=lambda each: self.touches[each.id])
        page = [each for each in order if self.touches[each.id] > after][:most]
        return page, write_cursor("s", self.touches[page[-1].id]) if len(page) == most else None

    def oldest_events(self, cursor: str | None, most: int) -> tuple[list[EventRow], str | None]:
        after = read_cursor("e", cursor) if cursor is not None else 0
        seen = [(n, row) for n, row in enumerate(self.log, 1) if n > after and self.shows(row)][:most]
        return [row for _, row in seen if row], write_cursor("e", seen[-1][0]) if len(seen) == most else None

    def shows(self, row: EventRow | None) -> bool:
        """Whether an event is there, and its session too."""
        return row is not None and row.session_id not in self.dropped

    def sweep(self, most: int) -> RowSweep:
        room, gone = most, Counter[str]()
        for session in [*self.dropped]:
            for kind in (EventRow, MessageRow, StoredCall, StoredConfirmation, StoredGrant):
                rows = self._rows.get(kind, {})
                for key in [key for key, row in rows.items() if row.session_id == session][:room]:
                    self._forget(kind, rows.pop(key))
                    gone[kind.__name__] += 1
                    room -= 1
                if room <= 0:
                    break
            if room <= 0:
                break
            self.dropped.remove(session)
            room -= 1
        return RowSweep(
            events=gone["EventRow"], messages=gone["MessageRow"], calls=gone["StoredCall"], more=bool(self.dropped)
        )

    def _forget(self, kind: type[Any], row: Any) -> None:
        if kind is EventRow:
            self._events[row.session_id].remove(row)
            self.log[self.log.index(row)] = None
        elif kind is MessageRow:
            self._messages[row.session_id].remove(row)

    def release_pages(self, most: int) -> PageRelease:
        return PageRelease()

    def save(self, view: View) -> dict[str, int]:
        """Keep the changes; the number of each changed session's change."""
        for row in view.pruned.values():
            self.pruned = max(self.pruned, self.log.index(self._rows[EventRow][row.id]) + 1)
        for session in view.dropped:
            ends = [n for n, row in enumerate(self.log, 1) if row and row.session_id == session]
            self.pruned = max([self.pruned, *ends])
            self.dropped.append(session)
        for kind, changes in view.rows.items():
            if kind is not EmptiedEvent:
                self._save(kind, changes)
        for emptied in view.rows[EmptiedEvent].values():
            self._empty(emptied)
        numbers = {}
        for session in view.touched:
            self._changes += 1
            numbers[session] = self.touches[session] = self._changes
        for changed in view.entry_kinds:
            self._changes += 1
            numbers[entries_key(changed)] = self._changes
        for session in view.deleted:
            self._delete(session)
        for session in view.dropped:
            self.touches.pop(session, None)
        return numbers

    def _save(self, kind: type[Any], changes: dict[Hashable, Any]) -> None:
        rows = self._rows.setdefault(kind, {})
        for key, row in changes.items():
            if row is None:
                gone = rows.pop(key, None)
                if gone is not None:
                    self._forget(kind, gone)
                continue
            rows[key] = row
            if kind is EventRow:
                self._events.setdefault(row.session_id, []).append(row)
                self.log.append(row)
            elif kind is MessageRow:
                self._messages.setdefault(row.session_id, []).append(row)

    def _empty(self, emptied: EmptiedEvent) -> None:
        # The row in `log` and among the events is the same one and must stay so.
        rows = self._events[emptied.session_id]
        at = emptied.seq - rows[0].seq
        old = rows[at]
        new = rows[at] = replace(old, text=emptied.text)
        self._rows[EventRow][old.id] = new
        self.log[self.log.index(old)] = new

    def _delete(self, session: str) -> None:
        self._events.pop(session, None)
        self._messages.pop(session, None)
        self.touches.pop(session, None)
        for kind in (EventRow, MessageRow, StoredCall, StoredConfirmation, StoredGrant, CutSession):
            rows = self._rows.get(kind, {})
            for key in [key for key, row in rows.items() if row.session_id == session]:
                del rows[key]
        self.log = [row if row and row.session_id != session else None for row in self.log]


class MemoryStore:
    """Implements `core.stores.Store`."""

    lease = None

    def __init__(self, tables: Tables | None = None) -> None:
        self.owner = "own_" + ulid()
        self.tables = tables if tables is not None else Tables()
        self._hints = Hints()
        self._closed = False
        self.tables.living[self.owner] = self._hints

    @property
    def is_dead(self) -> bool:
        return False

    def may_hold(self, flush: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        return False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def _rows(self) -> Tables:
        if self._closed:
            raise StoreClosed
        return self.tables

    def commit(self, *ops: Op[Any]) -> asyncio.Future[tuple[Any, ...]]:
        tables = self._rows
        future = asyncio.get_running_loop().create_future()
        owned, texts = encode_ops(ops)
        view = View(tables)
        view.begin(texts)
        try:
            results = tuple([apply(op, view) for op in owned])
        except (StoreError, ValueError) as error:
            future.set_exception(error)
            return future
        changed = tables.save(view)
        for hints in tables.living.values():
            hints.fire(changed)
        future.set_result(results)
        return future

    async def read_events(self, session: str, after: int = 0, limit: int = PAGE) -> Sequence[Event]:
        check_page(after, limit)
        last = self._session(session).last_seq
        page = [(seq, decode_event(text)) for seq, text in self._rows.events(session, after)][:limit]
        return [*filled(page, session, after, last, limit)]

    async def read_all(self, after: str | None = None, limit: int = PAGE) -> EventPage:
        begin = read_cursor("e", after) if after is not None else 0
        check_page(begin, limit)
        events: list[Event] = []
        cursors: list[str] = []
        seqs: list[int] = []
        for row in self._rows.log[begin:]:
            if len(events) == limit:
                break
            begin += 1
            if row is not None and self._rows.shows(row):
                events.append(decode_event(row.text))
                cursors.append(write_cursor("e", begin))
                seqs.append(row.seq)
        return EventPage(events, cursors, write_cursor("e", begin), seqs)

    async def read_last(self, after: str | None = None, upto: str | None = None, limit: int = PAGE) -> EventPage:
        begin = read_cursor("e", after) if after is not None else 0
        check_page(begin, limit)
        log = self._rows.log
        end = read_cursor("e", upto) if upto is not None else max(begin, len(log))
        known = [(n, row) for n, row in enumerate(log[:end], 1) if n > begin and self._rows.shows(row)][-limit:]
        return EventPage(
            [decode_event(row.text) for _, row in known],
            [write_cursor("e", n) for n, _ in known],
            write_cursor("e", known[-1][0] if known else end),
            [row.seq for _, row in known],
            write_cursor("e", known[0][0] - 1 if known else end),
        )

    async def behind(self, after: str | None = None) -> Behind:
        begin = read_cursor("e", after) if after is not None else 0
        end = max(begin, len(self._rows.log))
        return Behind(end - begin, write_cursor("e", end), begin < self._rows.pruned)

    async def read_messages(self, session: str, after: int = 0, limit: int = PAGE) -> Sequence[StoredMessage]:
        check_page(after, limit)
        self._session(session)
        texts = list(self._rows.messages(session))[after : after + limit]
        return [decode(text, StoredMessage) for text in texts]

    async def get_session(self, session: str) -> StoredSession:
        return self._session(session)

    async def list_sessions(
        self,
        workspace: str | None = None,
        *,
        cursor: str | None = None,
        limit: int = 50,
        workers: bool = False,
    ) -> SessionPage:
        before = read_cursor("s", cursor) if cursor is not None else None
        check_page(0, limit)
        touches = self._rows.touches
        listed = sorted(
            (
                session
                for session in self._rows.all(StoredSession)
                if workspace in (None, session.workspace)
                and (workers or session.parent is None)
                and (before is None or touches[session.id] < before)
            ),
            key=lambda session: touches[session.id],
            reverse=True,
        )
        page = listed[:limit]
        more = len(listed) > limit
        return SessionPage(page, write_cursor("s", touches[page[-1].id]) if more else None)

    async def workers_of(self, session: str) -> Sequence[StoredSession]:
        return self._rows.workers_of(session)

    async def find_sessions(self, part: str) -> Sequence[str]:
        ids = (each.id for each in self._rows.all(StoredSession))
        found = [id for id in ids if part.lower() in id.lower()]
        return sorted(found, key=self._rows.touches.__getitem__, reverse=True)

    async def snapshot(self, session: str) -> Snapshot:
        stored = self._session(session)
        calls = await self.open_calls(session)
        confirmations = [await self.get_confirmation(call.confirmation) for call in calls if call.confirmation]
        shown = (ConfirmationState.PENDING, ConfirmationState.ALLOWED)
        return Snapshot(
            session=stored,
            calls=calls,
            confirmations=[question for question in confirmations if question.state in shown],
            grants=await self.grants(session),
        )

    async def open_confirmations(self, session: str | None = None) -> Sequence[StoredConfirmation]:
        pending = self._rows.find(StoredConfirmation, "state", ConfirmationState.PENDING)
        return sorted(
            (each for each in pending if session in (None, each.session_id)),
            key=lambda question: question.id,
        )

    async def get_confirmation(self, id: str) -> StoredConfirmation:
        question = self._rows.get(StoredConfirmation, id)
        if question is None:
            raise ConfirmationNotFound(id)
        return question

    async def open_calls(self, session: str | None = None, owner: str | None = None) -> Sequence[StoredCall]:
        return sorted(
            (
                call
                for call in self._rows.all(StoredCall)
                if call.state is not CallState.ENDED
                and session in (None, call.session_id)
                and owner in (None, call.owner)
            ),
            key=lambda call: call.id,
        )

    async def get_call(self, id: str) -> StoredCall | None:
        return self._rows.get(StoredCall, id)

    async def grants(self, session: str) -> Sequence[StoredGrant]:
        found = self._rows.find(StoredGrant, "session_id", session) if session not in self._rows.dropped else []
        return sorted(found, key=lambda grant: grant.id)

    async def get_blob(self, sha256: str) -> bytes | None:
        blob = self._rows.get(Blob, sha256)
        return blob.data if blob is not None else None

    async def prunable(self, before: float, cursor: str | None = None, limit: int = PAGE) -> PrunablePage:
        page, further = self._rows.oldest_sessions(cursor, limit)
        known = {each.id for each in self._rows.all(StoredSession)}
        families = choose(page, before, self._rows, known.__contains__)
        going = [each for family in families for each in family]
        return PrunablePage(
            sessions=going,
            calls=sum(len(self._rows.find(StoredCall, "session_id", each.id)) for each in going),
            cursor=further if any(each.updated_at < before for each in page) else None,
        )

    async def usage(self) -> StoreUsage:
        sessions = self._rows.all(StoredSession)
        return StoreUsage(
            sessions=len(sessions),
            events=sum(each.last_seq for each in sessions),
            messages=sum(each.messages for each in sessions),
        )

    async def entries(self, kind: str) -> Sequence[SharedEntry]:
        return sorted(self._rows.find(SharedEntry, "kind", kind), key=lambda each: each.name)

    async def alive(self, owner: str) -> bool:
        return self._rows.alive(owner)

    async def dead_owners(self) -> Sequence[str]:
        owners = {call.owner for call in await self.open_calls()}
        owners |= {each.owner for each in self._rows.all(StoredSession) if each.owner}
        return sorted(owner for owner in owners if not self._rows.alive(owner))

    async def outbox(self, *, of_dead: bool = False) -> Sequence[OutboxRecord]:
        records = sorted(self._rows.all(OutboxRecord), key=lambda record: record.call_id)
        return [r for r in records if not (of_dead and self._rows.alive(r.owner))]

    async def cut_sessions(self) -> Sequence[CutSession]:
        return sorted(self._rows.all(CutSession), key=lambda cut: cut.session_id)

    async def audited_from(self) -> str | None:
        return None

    def wake(self, *sessions: str) -> Hint:
        return self._hints.wake(*sessions)

    async def close(self) -> None:
        self._closed = True
        self.tables.living.pop(self.owner, None)

    def _session(self, id: str) -> StoredSession:
        session = self._rows.get(StoredSession, id)
        if session is None:
            raise SessionNotFound(id)
        return session
