"""The rows of the database, for the duration of a batch.

    optimistic: rows that are cached, or read without a lock. `used` are the sessions that must be
                unchanged in the transaction. Rows that an op creates are presumed new (`presumed`),
                unless `look` is set; otherwise saving them fails.
    locked:     the sessions of the batch are locked first, and everything is read after that. An
                unforeseen session (`SessionsNeeded`) restarts the batch with more locks.

Every change of a session's row also changes the `touch` of the session, and a session is read
before its rows. So cached rows are valid if the touch is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from callgate.core.ops import (
    AppendMessages,
    FinishCall,
    NewSession,
    Op,
    PutConfirmation,
    PutGrant,
    StartCall,
)
from callgate.core.stored import (
    CallState,
    CutSession,
    OutboxRecord,
    SharedEntry,
    StoredCall,
    StoredConfirmation,
    StoredGrant,
    StoredSession,
)
from callgate.core.stores import StoreDamaged
from callgate.features.fleet.postgres import connections, reads
from callgate.features.fleet.postgres.connections import Connection
from callgate.features.fleet.postgres.schema import SESSION, session_of
from callgate.storage.encoding import decode
from callgate.storage.views import Blob, EventRow, MessageRow, Row, View

if TYPE_CHECKING:  # few commands prune
    from callgate.core.budgets import PageRelease, RowSweep

KEPT_SESSIONS = 4_096
_PAGE = 1_000
DUE = 100
"""Maximum number of questions to close in one batch."""

TABLES: dict[type[Any], str] = {
    StoredCall: "calls",
    StoredConfirmation: "confirmations",
    StoredGrant: "grants",
    OutboxRecord: "outbox",
    CutSession: "cut_sessions",
    SharedEntry: "entries",
}
OF_SESSION = (StoredCall, StoredConfirmation, StoredGrant)
"""Kinds of rows that are cached with their session."""

R = TypeVar("R", bound=Row)
_Kind = type[Any]
_Key = tuple[_Kind, Hashable]


class SessionsNeeded(Exception):
    """Sessions that the batch needs in addition to the locked ones."""

    def __init__(self, sessions: Iterable[str]) -> None:
        super().__init__()
        self.sessions = frozenset(sessions)


class RememberedSession:
    __slots__ = ("ord", "rows", "session", "touch")

    def __init__(self, ord: int, session: StoredSession, touch: int) -> None:
        self.ord = ord
        self.session = session
        self.touch = touch
        self.rows: dict[_Key, Any] = {}
        """Its cached rows, valid at this touch."""


class PostgresRows:
    """The base of a batch's view. Used by the writer's thread only."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self.memory: dict[str, RememberedSession] = {}
        self._sessions_of: dict[_Key, str] = {}
        """The session of each cached row."""
        self._outbox: dict[str, OutboxRecord] = {}
        """Records that this process wrote; no other process removes them while this
        one is alive.
        """
        self._loaded: dict[_Key, Any] = {}
        self._living: dict[str, bool] = {}
        self._presumed: set[_Key] = set()
        self._locked: frozenset[str] | None = None
        self.used: dict[str, None] = {}
        self.absent: set[_Key] = set()
        """Keys that were not found, or are presumed not to exist."""

    # Start of a batch.

    def begin(self, ops: Sequence[Op[Any]], *, look: bool) -> None:
        """Begin an optimistic batch."""
        self._forget_batch()
        if len(self.memory) > KEPT_SESSIONS:
            self.forget_all()
        if not look:
            self._presumed = {key for op in ops for key in _made_by(op)}
        named = {id for op in ops for id in op.sessions}
        self._load_sessions([id for id in named if id not in self.memory])
        if look:
            self._load_made(ops)

    def begin_locked(self, sessions: Iterable[str]) -> None:
        """Lock sessions, in the order that every process uses. Inside a transaction."""
        self._forget_batch()
        wanted = sorted(sessions)
        self._locked = frozenset(wanted)
        for id in wanted:
            self.forget(id)
        if wanted:
            locking = "where id = any(%s) order by id for no key update"
            self._remember_all(self._db.fetch(f"{SESSION} {locking}", wanted))

    def _forget_batch(self) -> None:
        self._loaded.clear()
        self._living.clear()
        self._presumed = set()
        self._locked = None
        self.used = {}
        self.absent = set()

    def forget_used(self) -> None:
        """Drop the sessions of this batch, after another process changed one."""
        for id in self.used:
            self.forget(id)

    def forget(self, session: str) -> None:
        known = self.memory.pop(session, None)
        if known is not None:
            for key in known.rows:
                self._sessions_of.pop(key, None)

    def forget_all(self) -> None:
        self.memory.clear()
        self._sessions_of.clear()

    @property
    def _db(self) -> Connection:
        return self._connect()

    # Reads.

    def get(self, kind: type[R], key: Hashable) -> R | None:
        if kind is StoredSession:
            return self._session(str(key))  # type: ignore[return-value]
        row_key: _Key = (kind, key)
        session = self._sessions_of.get(row_key)
        if session is not None:
            self._use(session)
            return self.memory[session].rows[row_key]  # type: ignore[no-any-return]
        if row_key in self._presumed:
            self.absent.add(row_key)
            return None
        if row_key not in self._loaded:
            self._loaded[row_key] = self._look_up(kind, key)
        row = self._loaded[row_key]
        if row is None:
            self.absent.add(row_key)
        elif kind in OF_SESSION:
            self._use(row.session_id)
        return row  # type: ignore[no-any-return]

    def _look_up(self, kind: _Kind, key: Hashable) -> Any:
        if kind is OutboxRecord and key in self._outbox and self._locked is None:
            return self._outbox[str(key)]
        rows = self._select(kind, *_where_key(kind, key))
        row = rows[0] if rows else None
        session = row.session_id if row is not None and kind in OF_SESSION else None
        if session is not None and session not in self.memory and self._locked is None:
            self._session(session)  # the session first, then its rows
            rows = self._select(kind, *_where_key(kind, key))
            row = rows[0] if rows else None
        return row

    def _session(self, id: str) -> StoredSession | None:
        if id not in self.memory:
            if (StoredSession, id) in self._presumed:
                self.absent.add((StoredSession, id))
                return None
            if self._locked is not None and id not in self._locked:
                raise SessionsNeeded([id])
            if self._locked is None:
                self._load_sessions([id])
        known = self.memory.get(id)
        if known is None:
            self.absent.add((StoredSession, id))
            return None
        self._use(id)
        return known.session

    def _use(self, id: str) -> None:
        if self._locked is not None and id not in self._locked:
            raise SessionsNeeded([id])
        self.used[id] = None

    def _load_sessions(self, ids: list[str]) -> None:
        wanted = [id for id in ids if (StoredSession, id) not in self._presumed]
        if wanted:
            self._remember_all(self._db.fetch(f"{SESSION} where id = any(%s)", wanted))

    def _load_made(self, ops: Sequence[Op[Any]]) -> None:
        """Load all rows that these ops would create."""
        by_kind: dict[_Kind, list[Hashable]] = {}
        for op in ops:
            for kind, key in _made_by(op):
                if kind is not StoredSession and (kind, key) not in self._sessions_of:
                    by_kind.setdefault(kind, []).append(key)
        for kind, keys in by_kind.items():
            found = {row.key: row for row in self._select(kind, "id = any(%s)", (keys,))}
            for key in keys:
                row = found.get(key)
                if row is None or row.session_id in self.memory:  # the session was read before it
                    self._loaded[kind, key] = row

    def find(self, kind: type[R], field: str, value: Any, limit: int | None = None) -> Sequence[R]:
        last = "" if limit is None else f" order by id limit {int(limit)}"
        if kind is StoredSession:
            return self._find_sessions(f"{field} = %s{last}", value)  # type: ignore[return-value]
        if kind is StoredCall and field == "owner":
            rows = self._select(kind, f"owner = %s and state <> 'ended'{last}", (value,))
            self._need({row.session_id for row in rows})
            return rows
        if kind in OF_SESSION:
            if self._session(value) is None:
                return []
            where = "ord = %s" + (" and state <> 'ended'" if kind is StoredCall else "")
            return self._select(kind, where + last, (self.memory[value].ord,))
        return self._select(kind, f"{field} = %s", (value,))

    def _find_sessions(self, where: str, *values: Any) -> list[StoredSession]:
        found = self._db.fetch(f"{SESSION} where {where}", *values)
        self._need({row[1] for row in found})
        return [session_of(row) for row in found]

    def _need(self, sessions: set[str]) -> None:
        """Ensure that all sessions are locked. An optimistic batch becomes a locked one."""
        if self._locked is not None and not sessions <= self._locked:
            raise SessionsNeeded(sessions)
        if self._locked is None:  # no optimistic op gets here
            raise SessionsNeeded(sessions)

    def due(self, at: float) -> Sequence[StoredConfirmation]:
        where = "state = 'pending' and expires_at <= %s order by expires_at limit %s"
        rows: list[StoredConfirmation] = self._select(StoredConfirmation, where, (at, DUE))
        self._need({row.session_id for row in rows})
        return rows

    def events(self, session: str, after: int = 0) -> Iterator[tuple[int, str]]:
        yield from self._texts("events", session, after)

    def messages(self, session: str) -> Iterator[str]:
        yield from (text for _, text in self._texts("messages", session, 0))

    def _texts(self, table: str, session: str, after: int) -> Iterator[tuple[int, str]]:
        if self._session(session) is None:
            return
        ord = self.memory[session].ord
        while True:
            page = self._db.fetch(
                f"select seq, body from cg.{table} where ord = %s and seq > %s"  # noqa: S608
                " order by seq limit %s",
                *(ord, after, _PAGE),
            )
            yield from page
            if len(page) < _PAGE:
                return
            after = page[-1][0]

    def alive(self, owner: str) -> bool:
        if owner not in self._living:
            self._living[owner] = owner in connections.living(self._db, [owner])
        return self._living[owner]

    # Pruning.

    def oldest_sessions(
        self, cursor: str | None, most: int
    ) -> tuple[Sequence[StoredSession], str | None]:
        rows, further = reads.oldest_sessions(self._db, cursor, most)
        self._need({row[1] for row in rows})
        return [session_of(row) for row in rows], further

    def oldest_events(self, cursor: str | None, most: int) -> tuple[Sequence[EventRow], str | None]:
        rows, further = reads.oldest_events(self._db, cursor, most)
        self._need({row.session_id for row in rows})
        return rows, further

    def sweep(self, most: int) -> RowSweep:
        return reads.sweep(self._db, most)

    def release_pages(self, most: int) -> PageRelease:
        from callgate.core.budgets import PageRelease  # lazy: as above  # noqa: PLC0415

        return PageRelease()  # the database's vacuum does it

    def _select(self, kind: _Kind, where: str, values: tuple[Any, ...]) -> list[Any]:
        if kind in (EventRow, MessageRow):
            table = "events" if kind is EventRow else "messages"
            known = self._db.fetch(
                f"select t.id, s.id, t.seq from cg.{table} t join cg.sessions s using (ord)"  # noqa: S608
                f" where t.{where}",
                *values,
            )
            return [kind(*row, "") for row in known]
        locking = " for update" if self._locked is not None else ""
        if kind is Blob:
            found = self._db.fetch(
                f"select sha256 from cg.blobs where {where}{locking}",  # noqa: S608
                *values,
            )
            return [Blob(sha256, b"") for (sha256,) in found]
        bodies = self._db.fetch(
            f"select body from cg.{TABLES[kind]} where {where}{locking}",  # noqa: S608
            *values,
        )
        try:
            return [decode(body, kind) for (body,) in bodies]
        except msgspec.DecodeError:
            raise StoreDamaged(self._db.location.label) from None

    # Cache.

    def _remember_all(self, found: Sequence[tuple[Any, ...]]) -> None:
        for row in found:
            session = session_of(row)
            self.forget(session.id)
            self.memory[session.id] = RememberedSession(row[0], session, row[9])

    def remember(self, view: View, ords: dict[str, int], touches: dict[str, int]) -> None:
        """Cache the rows of a committed batch."""
        self._remember_sessions(view, ords, touches)
        for kind in OF_SESSION:
            for key, row in view.rows.get(kind, {}).items():
                self._remember_row((kind, key), row)
        for key, record in view.rows.get(OutboxRecord, {}).items():
            if record is None:
                self._outbox.pop(str(key), None)
            else:
                self._outbox[str(key)] = record

    def _remember_sessions(self, view: View, ords: dict[str, int], touches: dict[str, int]) -> None:
        changed = view.rows[StoredSession]
        for id, touch in touches.items():
            session = changed.get(id)
            known = self.memory.get(id)
            if known is not None:
                known.touch = touch
                known.session = session or known.session
            elif session is not None:
                self.memory[id] = RememberedSession(ords[id], session, touch)
        for id in (*view.deleted, *view.dropped):
            self.forget(id)

    def _remember_row(self, row_key: _Key, row: Any) -> None:
        session = self._sessions_of.pop(row_key, None)
        if session is not None:
            self.memory[session].rows.pop(row_key, None)
        if row is None or row.session_id not in self.memory or _has_ended(row):
            return
        self.memory[row.session_id].rows[row_key] = row
        self._sessions_of[row_key] = row.session_id


def _has_ended(row: Any) -> bool:
    return isinstance(row, StoredCall) and row.state is CallState.ENDED


def _made_by(op: Op[Any]) -> Iterator[_Key]:
    """Yield the keys of rows that an op creates."""
    for event in op.recorded:
        yield EventRow, event.id
    if isinstance(op, StartCall | FinishCall):
        yield StoredCall, op.call
    elif isinstance(op, PutConfirmation):
        yield StoredCall, op.call
        yield StoredConfirmation, op.confirmation
    elif isinstance(op, AppendMessages):
        yield from ((MessageRow, each.id) for each in op.messages)
    elif isinstance(op, NewSession):
        yield StoredSession, op.session
    elif isinstance(op, PutGrant):
        yield StoredGrant, op.grant.id


def _where_key(kind: _Kind, key: Hashable) -> tuple[str, tuple[Any, ...]]:
    if kind is SharedEntry:
        assert isinstance(key, tuple)
        return "kind = %s and name = %s", key
    if kind is Blob:
        return "sha256 = %s", (key,)
    return "id = %s", (key,)
