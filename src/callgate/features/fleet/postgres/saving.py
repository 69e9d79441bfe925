"""The changes of a batch as statements of its transaction: one for each kind of row, and for
sessions one for each run of equal changes.

    lock and verify the sessions ---> hold back readers ---> insert, update, delete ---> touch

Presumed new rows are inserted, which fails if they exist; all other rows are upserted.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

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
from callgate.features.fleet.postgres import reads
from callgate.features.fleet.postgres.rows import TABLES, PostgresRows
from callgate.features.fleet.postgres.schema import DRIFT
from callgate.features.fleet.postgres.wire import (
    Results,
    Statement,
    Value,
    byte_strings,
    floats,
    integer,
    integers,
    texts,
)
from callgate.storage.encoding import encode
from callgate.storage.views import Blob, EmptiedEvent, EventRow, MessageRow, View

VERIFY = "verify"
INSERT = "insert"
TOUCHES = "touches"
ENTRY_TOUCHES = "entry touches"
_Kind = type[Any]

_VERIFY = """
with locked as (
    select id, touch from cg.sessions where id = any($1) order by id for no key update
)
select 1 / (count(*) = count(*) filter (where l.touch = w.touch))::int
from unnest($1::text[], $2::bigint[]) as w(id, touch) left join locked l on l.id = w.id
"""
"""Divides by zero if a session is missing or has changed."""
_DRAW = "select pg_advisory_xact_lock_shared($1 + last_value) from cg.event_numbers"
_EVENTS = """
insert into cg.events (n, ord, seq, id, body)
select nextval('cg.event_numbers'), u.*
from unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[]) u
"""
_MESSAGES = """
insert into cg.messages (ord, seq, id, body)
select * from unnest($1::bigint[], $2::bigint[], $3::text[], $4::text[])
"""
_EMPTIED = """
update cg.events e set body = u.body
from unnest($1::bigint[], $2::bigint[], $3::text[]) u(ord, seq, body)
where e.ord = u.ord and e.seq = u.seq
"""
_NEW_SESSIONS = """
insert into cg.sessions
 (ord, id, workspace, parent, owner, fence, last_seq, messages, updated_at, body, touch, listed)
select u.*, u.touch from (select u.*, nextval('cg.touches') as touch from unnest($1::bigint[],
 $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[],
 $9::float8[], $10::text[]) u) u
returning id, touch
"""
_DESCRIBED = """
update cg.sessions s set workspace = u.workspace, parent = u.parent, owner = u.owner,
 fence = u.fence, last_seq = u.last_seq, messages = u.messages, updated_at = u.updated_at,
 body = u.body, touch = u.touch, listed = u.touch
from (select u.*, nextval('cg.touches') as touch from unnest($1::bigint[], $2::text[], $3::text[],
 $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[], $9::float8[], $10::text[])
 u(ord, id, workspace, parent, owner, fence, last_seq, messages, updated_at, body)) u
where s.ord = u.ord returning s.id, s.touch
"""
_COUNTED = f"""
update cg.sessions s set owner = u.owner, fence = u.fence, last_seq = u.last_seq,
 messages = u.messages, updated_at = u.updated_at, touch = u.touch,
 listed = case when u.touch - s.listed < {DRIFT} then s.listed else u.touch end
from (select u.*, nextval('cg.touches') as touch from unnest($1::bigint[], $2::text[],
 $3::bigint[], $4::bigint[], $5::bigint[], $6::float8[])
 u(ord, owner, fence, last_seq, messages, updated_at)) u
where s.ord = u.ord returning s.id, s.touch
"""  # noqa: S608
_ENTRY_KINDS = """
insert into cg.entry_kinds (kind, touch)
select kind, nextval('cg.touches') from unnest($1::text[]) u(kind)
on conflict (kind) do update set touch = excluded.touch returning kind, touch
"""


class Saving:
    """The statements for one batch, and the evaluation of their results."""

    def __init__(self, view: View, rows: PostgresRows, draw_base: int, draw_ord: Callable[[], int]):
        """`draw_ord` returns numbers for new sessions."""
        self._view = view
        self._rows = rows
        self._draw_base = draw_base
        self._draw_ord = draw_ord
        self.ords: dict[str, int] = {}
        """Numbers of new sessions."""
        self._statements: list[Statement] = []

    def statements(self, *, verify: bool) -> list[Statement]:
        view = self._view
        if verify and self._rows.used:
            self._verify()
        self._save_sessions()
        if any(row is not None for row in view.rows.get(EventRow, {}).values()):
            self._add(_DRAW, integer(self._draw_base))
        for kind, save in _SAVE.items():
            changes = view.rows.get(kind)
            if not changes:
                continue
            present = [row for row in changes.values() if row is not None]
            if view.deleted:  # by the batch that may have created the session
                present = [
                    row for row in present if getattr(row, "session_id", "") not in view.deleted
                ]
            if present:
                save(self, present)
            removed = [key for key, row in changes.items() if row is None]
            if removed and kind is not EventRow:
                self._remove(kind, removed)
        if view.entry_kinds:
            self._add(_ENTRY_KINDS, texts([*view.entry_kinds]), purpose=ENTRY_TOUCHES)
        self._forget_sessions()
        if view.reaped:
            self._add("update cg.owners set dead = true where id = any($1)", texts([*view.reaped]))
        return self._statements

    def touches(self, results: Results) -> dict[str, int]:
        """Return the number of each change, from the results of `statements`."""
        found: dict[str, int] = {}
        for statement, rows in zip(self._statements, results, strict=False):
            if statement.purpose == TOUCHES:
                found |= {_text(id): int(_text(touch)) for id, touch in rows}
            elif statement.purpose == ENTRY_TOUCHES:
                found |= {entries_key(_text(kind)): int(_text(touch)) for kind, touch in rows}
        return found

    def _add(self, sql: str, *values: Value, purpose: str = "") -> None:
        self._statements.append(Statement(sql, values, purpose))

    def _verify(self) -> None:
        memory = self._rows.memory
        ids = sorted(self._rows.used)
        self._add(_VERIFY, texts(ids), integers([memory[id].touch for id in ids]), purpose=VERIFY)

    # Sessions.

    def _save_sessions(self) -> None:
        """Save sessions in runs of equal statements, so that touches follow the order of the
        changes.
        """
        view, memory = self._view, self._rows.memory
        changed = view.rows[StoredSession]
        saved: list[tuple[str, int, StoredSession]] = []
        for id in view.touched:
            known = memory.get(id)
            session = changed.get(id, known.session if known else None)
            if session is None:  # deleted
                continue
            if known is None:
                self.ords[id] = self._draw_ord()
                saved.append((_NEW_SESSIONS, self.ords[id], session))
            else:
                update = _DESCRIBED if id in view.described else _COUNTED
                saved.append((update, known.ord, session))
        for statement, run in groupby(saved, key=itemgetter(0)):
            columns = _counts if statement is _COUNTED else _columns
            values = columns([(ord, session) for _, ord, session in run])
            self._add(statement, *values, purpose=TOUCHES)

    def _ord(self, session: str) -> int:
        known = self._rows.memory.get(session)
        return known.ord if known is not None else self.ords[session]

    def _forget_sessions(self) -> None:
        view = self._view
        known = [self._rows.memory.get(id) for id in view.deleted]
        ords = [each.ord for each in known if each is not None]
        if ords:
            for table in ("events", "messages", "calls", "confirmations", "grants", "sessions"):
                self._add(f"delete from cg.{table} where ord = any($1)", integers(ords))  # noqa: S608
            self._add("delete from cg.cut_sessions where id = any($1)", texts([*view.deleted]))
            self._add("delete from cg.pruned_events where ord = any($1)", integers(ords))
        if view.dropped or view.pruned:
            self._statements += reads.statements(view, self._ord)

    # Rows.

    def _save_events(self, rows: list[EventRow]) -> None:
        self._add(_EVENTS, *self._positions(rows), purpose=INSERT)

    def _save_messages(self, rows: list[MessageRow]) -> None:
        self._add(_MESSAGES, *self._positions(rows), purpose=INSERT)

    def _positions(self, rows: Sequence[EventRow | MessageRow]) -> tuple[Value, ...]:
        return (
            integers([self._ord(row.session_id) for row in rows]),
            integers([row.seq for row in rows]),
            texts([row.id for row in rows]),
            texts([row.text for row in rows]),
        )

    def _save_emptied(self, rows: list[EmptiedEvent]) -> None:
        self._add(
            _EMPTIED,
            integers([self._ord(row.session_id) for row in rows]),
            integers([row.seq for row in rows]),
            texts([row.text for row in rows]),
        )

    def _save_calls(self, rows: list[StoredCall]) -> None:
        self._put(StoredCall, rows, ("id", "ord", "state", "owner", "body"))

    def _save_confirmations(self, rows: list[StoredConfirmation]) -> None:
        self._put(StoredConfirmation, rows, ("id", "ord", "state", "expires_at", "body"))

    def _save_grants(self, rows: list[StoredGrant]) -> None:
        self._put(StoredGrant, rows, ("id", "ord", "body"))

    def _save_cut_sessions(self, rows: list[CutSession]) -> None:
        self._put(CutSession, rows, ("id", "body"))

    def _save_outbox(self, rows: list[OutboxRecord]) -> None:
        self._put(OutboxRecord, rows, ("id", "owner", "body"))

    def _save_entries(self, rows: list[SharedEntry]) -> None:
        self._put(SharedEntry, rows, ("kind", "name", "body"))

    def _save_blobs(self, rows: list[Blob]) -> None:
        self._add(
            "insert into cg.blobs select * from unnest($1::text[], $2::bytea[])"
            " on conflict do nothing",
            texts([row.sha256 for row in rows]),
            byte_strings([row.data for row in rows]),
        )

    def _put(self, kind: _Kind, rows: list[Any], columns: tuple[str, ...]) -> None:
        new = [row for row in rows if (kind, row.key) in self._rows.absent]
        if new:
            self._insert(kind, new, columns, "", INSERT)
        known = [row for row in rows if (kind, row.key) not in self._rows.absent]
        if known:
            keys = columns[: _KEY_COLUMNS.get(kind, 1)]
            changes = ", ".join(f"{name} = excluded.{name}" for name in columns[len(keys) :])
            self._insert(
                kind, known, columns, f"on conflict ({', '.join(keys)}) do update set {changes}"
            )

    def _insert(
        self,
        kind: _Kind,
        rows: list[Any],
        columns: tuple[str, ...],
        conflict: str,
        purpose: str = "",
    ) -> None:
        types = ", ".join(
            f"${n}::{_TYPES.get(name, 'text')}[]" for n, name in enumerate(columns, 1)
        )
        into = f"cg.{TABLES[kind]} ({', '.join(columns)})"
        values = [self._column(name, rows) for name in columns]
        self._add(
            f"insert into {into} select * from unnest({types}) {conflict}",  # noqa: S608
            *values,
            purpose=purpose,
        )

    def _column(self, name: str, rows: list[Any]) -> Value:
        match name:
            case "ord":
                return integers([self._ord(row.session_id) for row in rows])
            case "expires_at":
                return floats([row.expires_at for row in rows])
            case "body":
                return texts([encode(row) for row in rows])
            case "id":
                return texts([row.key for row in rows])
            case _:
                return texts([getattr(row, name) for row in rows])

    def _remove(self, kind: _Kind, keys: Sequence[Hashable]) -> None:
        if kind is SharedEntry:
            rows: Any = keys
            self._add(
                "delete from cg.entries where (kind, name) in"
                " (select * from unnest($1::text[], $2::text[]))",
                texts([first for first, _ in rows]),
                texts([second for _, second in rows]),
            )
            return
        table, column = ("blobs", "sha256") if kind is Blob else (TABLES[kind], "id")
        self._add(
            f"delete from cg.{table} where {column} = any($1)",  # noqa: S608
            texts([str(key) for key in keys]),
        )


def _columns(sessions: Iterable[tuple[int, StoredSession]]) -> tuple[Value, ...]:
    ords, rows = zip(*sessions, strict=True)
    return (
        integers(ords),
        texts([row.id for row in rows]),
        texts([row.workspace for row in rows]),
        texts([row.parent for row in rows]),
        texts([row.owner for row in rows]),
        integers([row.fence for row in rows]),
        integers([row.last_seq for row in rows]),
        integers([row.messages for row in rows]),
        floats([row.updated_at for row in rows]),
        texts([encode(row) for row in rows]),
    )


def _counts(sessions: Iterable[tuple[int, StoredSession]]) -> tuple[Value, ...]:
    ords, rows = zip(*sessions, strict=True)
    return (
        integers(ords),
        texts([row.owner for row in rows]),
        integers([row.fence for row in rows]),
        integers([row.last_seq for row in rows]),
        integers([row.messages for row in rows]),
        floats([row.updated_at for row in rows]),
    )


def _text(value: bytes | None) -> str:
    assert value is not None
    return value.decode()


_TYPES = {"ord": "bigint", "expires_at": "float8"}
_KEY_COLUMNS: dict[_Kind, int] = {SharedEntry: 2}
"""Kinds with a key of several columns."""

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
"""In this order, because the same batch may append an event and empty it."""
