"""What can be asked of the file; each function takes a connection that only reads."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import apsw

from callgate.core.events import Event
from callgate.core.stored import (
    CallState,
    ConfirmationState,
    CutSession,
    OutboxRecord,
    Pin,
    SharedEntry,
    StoredCall,
    StoredConfirmation,
    StoredGrant,
    StoredMessage,
    StoredSession,
)
from callgate.core.stores import (
    Behind,
    ConfirmationNotFound,
    EventPage,
    SessionNotFound,
    SessionPage,
    Snapshot,
)
from callgate.storage.cursors import check_page, read_cursor, write_cursor
from callgate.storage.endings import event_of
from callgate.storage.sqlite.schema import POSITION_BITS
from callgate.storage.sqlite.tables import (
    LAST,
    SESSION,
    TOUCH,
    integer,
    position_of,
    select,
    seq_of,
    session_of,
    value_of,
)

PAGE_BYTES = 4 << 20
"""A page ends with the event that reaches this."""
_LAST = (1 << 63) - 1
"""No event has a higher number."""


def read_events(db: apsw.Connection, session: str, after: int, limit: int) -> list[Event]:
    last, rows = _texts(db, "events", session, after, limit)
    events = [(seq, event_of(text, session, seq)) for seq, text in rows]
    if (events[0][0] if events else last + 1) == after + 1 or after >= last:
        return [event for _, event in events]
    from callgate.storage.pruning import filled  # lazy: few sessions lack events  # noqa: PLC0415

    return [*filled(events, session, after, last, limit)]


def read_messages(db: apsw.Connection, session: str, after: int, limit: int) -> list[StoredMessage]:
    _, rows = _texts(db, "messages", session, after, limit)
    return [value_of(text, StoredMessage) for _, text in rows]


def _texts(
    db: apsw.Connection, table: str, session: str, after: int, limit: int
) -> tuple[int, list[tuple[int, str]]]:
    """Numbers and texts, and the number of the session's last event."""
    check_page(after, limit)
    ord, last = _ord_and_last(db, session)
    rows = db.execute(
        f"select place, body from {table} where place > ? and place < ? order by place limit ?",  # noqa: S608
        (position_of(ord, min(after, LAST)), position_of(ord + 1, 0), limit),
    )
    return last, [(seq_of(integer(position)), text) for position, text in _page(rows)]


_OF_ALL = f"""
select n, s.id, place, e.body from events e join sessions s on s.ord = place >> {POSITION_BITS}
where n > ? and n <= ? order by n
"""  # noqa: S608


def read_all(db: apsw.Connection, after: str | None, limit: int) -> EventPage:
    n = read_cursor("e", after) if after is not None else 0
    check_page(n, limit)
    rows = _page(db.execute(f"{_OF_ALL} limit ?", (n, _LAST, limit)))
    return _event_page(rows, end=n)


def read_last(db: apsw.Connection, after: str | None, upto: str | None, limit: int) -> EventPage:
    begin = read_cursor("e", after) if after is not None else 0
    check_page(begin, limit)
    end = read_cursor("e", upto) if upto is not None else _LAST
    rows = _page(db.execute(f"{_OF_ALL} desc limit ?", (begin, end, limit)))
    if not rows and upto is None:
        end = begin
    return _event_page(rows[::-1], end=end)


def _page(rows: apsw.Cursor) -> list[Any]:
    """The rows up to the one with which their bodies reach the size of a page."""
    page, size = [], 0
    for row in rows:
        if type(row[-1]) is not str:
            raise apsw.CorruptError("a text is none")
        page.append(row)
        size += len(row[-1])
        if size >= PAGE_BYTES:
            rows.close()
            break
    return page


def _event_page(rows: Sequence[Any], end: int) -> EventPage:
    """`end` is where a page without events stands."""
    numbers = [n for n, _, _, _ in rows] or [end]
    for _, _, position, _ in rows:
        integer(position)
    return EventPage(
        [event_of(text, session, seq_of(position)) for _, session, position, text in rows],
        [write_cursor("e", n) for n, _, _, _ in rows],
        write_cursor("e", numbers[-1]),
        [seq_of(position) for _, _, position, _ in rows],
        write_cursor("e", numbers[0] - 1 if rows else end),
    )


def behind(db: apsw.Connection, after: str | None) -> Behind:
    n = read_cursor("e", after) if after is not None else 0
    [(last,)] = select(
        db,
        "select max((select ifnull(max(n), 0) from events),"
        " (select ifnull(max(value), 0) from marks where name = 'n'))",
    )
    end = max(n, integer(last))
    pruned = select(db, "select 1 from marks where name = 'pruned' and value > ?", (n,))
    return Behind(end - n, write_cursor("e", end), bool(pruned))


def get_session(db: apsw.Connection, session: str) -> StoredSession:
    found = db.execute(f"{SESSION} where id = ?", (session,)).fetchone()
    if found is None:
        raise SessionNotFound(session)
    stored = session_of(found)[1]
    _ensure_same(stored.id, session)
    return stored


def list_sessions(
    db: apsw.Connection, workspace: str | None, cursor: str | None, limit: int, workers: bool
) -> SessionPage:
    check_page(0, limit)
    conditions: dict[str, tuple[Any, ...]] = {}
    if cursor is not None:
        conditions["touch < ?"] = (read_cursor("s", cursor),)
    if workspace is not None:
        conditions["workspace = ?"] = (workspace,)
    if not workers:
        conditions["parent is null"] = ()
    where = " and ".join(conditions) or "true"
    values = [value for some in conditions.values() for value in some]
    rows = select(db, f"{SESSION} where {where} order by touch desc limit ?", (*values, limit + 1))
    page = rows[:limit]
    last_touch = page[-1][TOUCH] if len(rows) > limit else None
    return SessionPage(
        [session_of(row)[1] for row in page],
        write_cursor("s", last_touch) if last_touch is not None else None,
    )


def workers_of(db: apsw.Connection, session: str) -> list[StoredSession]:
    return [
        session_of(row)[1]
        for row in select(db, f"{SESSION} where parent = ? order by id", (session,))
    ]


def find_sessions(db: apsw.Connection, part: str) -> list[str]:
    found = select(
        db,
        "select id from sessions where ord in"
        " (select ord from sessions where instr(lower(id), lower(?)) > 0) order by +touch desc",
        (part,),
    )
    return [id for (id,) in found]


def snapshot(db: apsw.Connection, session: str) -> Snapshot:
    db.execute("begin")
    try:
        stored = get_session(db, session)
        calls = open_calls(db, session, None)
        ids = [call.confirmation for call in calls if call.confirmation]
        confirmations = [get_confirmation(db, id) for id in ids]
        shown = (ConfirmationState.PENDING, ConfirmationState.ALLOWED)
        return Snapshot(
            session=stored,
            calls=calls,
            confirmations=[question for question in confirmations if question.state in shown],
            grants=grants(db, session),
        )
    finally:
        db.execute("rollback")


_BY_ID = "order by +id"
"""Sorted after the rows were found: in the order of the table all that ended would be read too."""


def open_confirmations(db: apsw.Connection, session: str | None) -> list[StoredConfirmation]:
    where, values = _of_session(db, session, "state = 'pending'")
    found: list[StoredConfirmation]
    found = _values(db, StoredConfirmation, f"confirmations where {where} {_BY_ID}", values)
    if any(each.state is not ConfirmationState.PENDING for each in found):
        raise apsw.CorruptError("the columns of a confirmation disagree")
    return found


def get_confirmation(db: apsw.Connection, id: str) -> StoredConfirmation:
    found: list[StoredConfirmation]
    found = _values(db, StoredConfirmation, "confirmations where id = ?", (id,))
    if not found:
        raise ConfirmationNotFound(id)
    _ensure_same(found[0].id, id)
    return found[0]


def open_calls(db: apsw.Connection, session: str | None, owner: str | None) -> list[StoredCall]:
    where, values = _of_session(db, session, "state <> 'ended'")
    if owner is not None:
        where, values = f"{where} and owner = ?", (*values, owner)
    found: list[StoredCall] = _values(db, StoredCall, f"calls where {where} {_BY_ID}", values)
    if any(each.state is CallState.ENDED for each in found):
        raise apsw.CorruptError("the columns of a call disagree")
    return found


def get_call(db: apsw.Connection, id: str) -> StoredCall | None:
    found = _values(db, StoredCall, "calls where id = ?", (id,))
    if found:
        _ensure_same(found[0].id, id)
    return found[0] if found else None


def grants(db: apsw.Connection, session: str) -> list[StoredGrant]:
    where, values = _of_session(db, session, "true")
    return _values(db, StoredGrant, f"grants where {where} order by id", values)


def pins(db: apsw.Connection, source: str | None) -> list[Pin]:
    if source is None:
        return _values(db, Pin, "pins order by source, tool", ())
    return _values(db, Pin, "pins where source = ? order by tool", (source,))


def get_blob(db: apsw.Connection, sha256: str) -> bytes | None:
    found = db.execute("select data from blobs where sha256 = ?", (sha256,)).fetchone()
    if found is None:
        return None
    if type(found[0]) is not bytes or hashlib.sha256(found[0]).hexdigest() != sha256:
        raise apsw.CorruptError(f"blob {sha256} has other bytes")
    return found[0]


def dead_owners(db: apsw.Connection, alive: Callable[[str], bool]) -> list[str]:
    owners = select(
        db,
        "select owner from sessions where owner is not null"
        " union select owner from calls where state <> 'ended' order by owner",
    )
    return [owner for (owner,) in owners if not alive(owner)]


def outbox(db: apsw.Connection) -> list[OutboxRecord]:
    return _values(db, OutboxRecord, "outbox order by id", ())


def cut_sessions(db: apsw.Connection) -> list[CutSession]:
    return _values(db, CutSession, "cut_sessions order by id", ())


def entries(db: apsw.Connection, kind: str) -> list[SharedEntry]:
    return _values(db, SharedEntry, "entries where kind = ? order by name", (kind,))


def audited_from(db: apsw.Connection) -> str | None:
    found = db.execute("select value from marks where name = 'audited'").fetchone()
    return write_cursor("e", int(found[0])) if found is not None else None


def _ord_and_last(db: apsw.Connection, session: str) -> tuple[int, int]:
    """A session's ord, and the number of its last event."""
    found = db.execute("select ord, last_seq from sessions where id = ?", (session,)).fetchone()
    if found is None:
        raise SessionNotFound(session)
    ord, last = found
    return integer(ord), integer(last)


def _of_session(
    db: apsw.Connection, session: str | None, where: str
) -> tuple[str, tuple[Any, ...]]:
    if session is None:
        return where, ()
    return "ord = (select ord from sessions where id = ?) and " + where, (session,)  # noqa: S608


def _values(db: apsw.Connection, kind: type[Any], where: str, values: Sequence[Any]) -> list[Any]:
    rows = select(db, f"select body from {where}", values)  # noqa: S608
    return [value_of(body, kind) for (body,) in rows]


def _ensure_same(found: str, wanted: str) -> None:
    if found != wanted:
        raise apsw.CorruptError(f"{wanted} is stored under the id of another row")
