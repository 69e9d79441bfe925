"""Save the changes of a batch, with one statement for each kind of row.

Events may be saved under the assumption that they are new. If one is not, `Repeated` is raised, and
the transaction is repeated with rows that check first.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import apsw
import msgspec

from callgate.core.stored import (
    CutSession,
    OutboxRecord,
    SharedEntry,
    StoredCall,
    StoredConfirmation,
    StoredGrant,
    StoredSession,
    entries_key,
)
from callgate.storage.encoding import encode
from callgate.storage.sqlite.tables import (
    TABLES,
    count_sessions,
    insert,
    position_of,
    select,
    where_key,
)
from callgate.storage.views import Blob, EmptiedEvent, EventRow, MessageRow, View

_Kind = type[Any]


class Repeated(Exception):
    """An event that was assumed to be new already exists."""


class WriterCache(msgspec.Struct):
    """State of the writer between transactions."""

    sessions: dict[str, tuple[int, StoredSession]] = {}
    """Sessions of the transaction by id, each with its ord."""
    n: int = 0
    """The number of the last event of all sessions."""
    touch: int = 0


class Saving:
    def __init__(self, db: apsw.Connection, cache: WriterCache, *, looked: bool) -> None:
        self._db = db
        self._cache = cache
        self._looked = looked
        """Whether events were looked up, and are certainly new."""

    def save(self, view: View) -> dict[str, int]:
        """Write the changes; return the number of each changed session's change."""
        numbers = self._save_sessions(view)
        for changed in view.entry_kinds:
            self._cache.touch += 1
            numbers[entries_key(changed)] = self._cache.touch
            insert(self._db, "insert or replace into entry_kinds", [(changed, self._cache.touch)])
        for kind, save in _SAVE.items():
            changes = view.rows.get(kind)
            if changes:
                rows = [row for row in changes.values() if row is not None]
                if view.deleted:  # by the batch that may have created the session
                    rows = [row for row in rows if _session_of(row) not in view.deleted]
                if rows:
                    save(self, rows)
                removed = [key for key, row in changes.items() if row is None]
                if removed and kind is not EventRow:
                    self._remove(kind, removed)
        if view.dropped or view.pruned:
            from callgate.storage.sqlite import pruning  # lazy: few commands prune  # noqa: PLC0415

            last = {"n": self._cache.n, "touch": self._cache.touch}
            pruning.save(self._db, view, self._cache.sessions, last)
        for session in view.deleted:
            self._delete(session)
        if view.deleted:
            marks = [("n", self._cache.n), ("touch", self._cache.touch)]
            insert(self._db, "insert or replace into marks", marks)
        return numbers

    def _save_sessions(self, view: View) -> dict[str, int]:
        numbers: dict[str, int] = {}
        counted, owned, described = [], [], []
        changed = view.rows[StoredSession]
        for id in view.touched:
            session = changed[id] if id in changed else self._cache.sessions[id][1]
            self._cache.touch += 1
            numbers[id] = self._cache.touch
            if session is None:  # deleted
                continue
            counts = (session.last_seq, session.messages, session.updated_at, self._cache.touch)
            if id in view.described:
                described.append((counts, session))
                continue
            ord, before = self._cache.sessions[id]
            counted.append((ord, *counts))
            if session.owner != before.owner or session.fence != before.fence:
                owned.append((session.owner, session.fence, ord))
            self._cache.sessions[id] = ord, session
        count_sessions(self._db, counted)
        if owned:
            self._db.executemany("update sessions set owner = ?, fence = ? where ord = ?", owned)
        for counts, session in described:
            self._describe(counts, session)
        return numbers

    def _describe(self, counts: tuple[Any, ...], session: StoredSession) -> None:
        [(ord,)] = select(
            self._db,
            "insert into sessions (last_seq, messages, updated_at, touch, id, workspace,"
            " parent, owner, fence, body) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " on conflict (id) do update set last_seq = excluded.last_seq,"
            " messages = excluded.messages, updated_at = excluded.updated_at,"
            " touch = excluded.touch, workspace = excluded.workspace,"
            " owner = excluded.owner, fence = excluded.fence, body = excluded.body"
            " returning ord",
            (
                *counts,
                session.id,
                session.workspace,
                session.parent,
                session.owner,
                session.fence,
                encode(session),
            ),
        )
        self._cache.sessions[session.id] = ord, session

    def _save_events(self, rows: list[EventRow]) -> None:
        sessions, n = self._cache.sessions, self._cache.n
        values = []
        for row in rows:
            n += 1
            position = position_of(sessions[row.session_id][0], row.seq)
            values.append((n, position, row.id, row.text))
        self._cache.n = n
        if self._looked:
            insert(self._db, "insert into events", values)
            return
        before = self._db.total_changes()
        insert(self._db, "insert or ignore into events", values)
        if self._db.total_changes() - before < len(values):
            raise Repeated

    def _save_emptied(self, rows: list[EmptiedEvent]) -> None:
        self._db.executemany(
            "update events set body = ? where place = ?",
            [(row.text, self._position(row)) for row in rows],
        )

    def _save_messages(self, rows: list[MessageRow]) -> None:
        insert(
            self._db,
            "insert into messages",
            [(self._position(row), row.id, row.text) for row in rows],
        )

    def _save_calls(self, rows: list[StoredCall]) -> None:
        insert(
            self._db,
            "insert or replace into calls",
            [(c.id, self._ord(c), c.state, c.owner, encode(c)) for c in rows],
        )

    def _save_confirmations(self, rows: list[StoredConfirmation]) -> None:
        insert(
            self._db,
            "insert or replace into confirmations",
            [(row.id, self._ord(row), row.state, encode(row)) for row in rows],
        )

    def _save_grants(self, rows: list[StoredGrant]) -> None:
        insert(
            self._db,
            "insert or replace into grants",
            [(row.id, self._ord(row), encode(row)) for row in rows],
        )

    def _save_outbox(self, rows: list[OutboxRecord]) -> None:
        insert(
            self._db,
            "insert or replace into outbox",
            [(row.call_id, row.owner, encode(row)) for row in rows],
        )

    def _save_cut_sessions(self, rows: list[CutSession]) -> None:
        insert(
            self._db,
            "insert or replace into cut_sessions",
            [(row.session_id, encode(row)) for row in rows],
        )

    def _save_entries(self, rows: list[SharedEntry]) -> None:
        insert(
            self._db,
            "insert or replace into entries",
            [(row.kind, row.name, encode(row)) for row in rows],
        )

    def _save_blobs(self, rows: list[Blob]) -> None:
        insert(self._db, "insert or ignore into blobs", [(row.sha256, row.data) for row in rows])

    def _ord(self, row: Any) -> int:
        return self._cache.sessions[row.session_id][0]

    def _position(self, row: EmptiedEvent | MessageRow) -> int:
        return position_of(self._ord(row), row.seq)

    def _remove(self, kind: _Kind, keys: list[Hashable]) -> None:
        for key in keys:
            where, values = where_key(kind, key)
            self._db.execute(f"delete from {TABLES[kind]} where {where}", values)  # noqa: S608

    def _delete(self, session: str) -> None:
        known = self._cache.sessions.pop(session, None)
        if known is None:  # created by the same batch
            return
        ord, _ = known
        span = (position_of(ord, 0), position_of(ord + 1, 0))
        for table in ("events", "messages"):
            self._db.execute(f"delete from {table} where place > ? and place < ?", span)  # noqa: S608
        for table in ("calls", "confirmations", "grants", "sessions"):
            self._db.execute(f"delete from {table} where ord = ?", (ord,))  # noqa: S608
        self._db.execute("delete from cut_sessions where id = ?", (session,))


def _session_of(row: Any) -> str | None:
    return getattr(row, "session_id", None)


_SAVE: dict[_Kind, Any] = {
    EventRow: Saving._save_events,
    EmptiedEvent: Saving._save_emptied,
    MessageRow: Saving._save_messages,
    StoredCall: Saving._save_calls,
    StoredConfirmation: Saving._save_confirmations,
    StoredGrant: Saving._save_grants,
    Blob: Saving._save_blobs,
    OutboxRecord: Saving._save_outbox,
    CutSession: Saving._save_cut_sessions,
    SharedEntry: Saving._save_entries,
}
"""In this order, because the same batch may have appended the emptied events."""
