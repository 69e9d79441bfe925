"""What can be asked of the database; each function takes a connection that only reads.

Events of all sessions are read up to the lowest number that may still be drawn: transactions get
their numbers before they are committed, and nothing that is committed later may be skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from callgate.core.events import Event
from callgate.core.stored import (
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
    StoreUnreadable,
    Trouble,
)
from callgate.storage.cursors import check_page, read_cursor, write_cursor
from callgate.storage.encoding import decode
from callgate.storage.endings import event_of
from callgate.storage.postgres import owners
from callgate.storage.postgres.connections import Connection
from callgate.storage.postgres.tables import DRIFT, SESSION, TOUCH, session_of

_log = logging.getLogger("callgate.store")

PAGE_BYTES = 4 << 20
"""A page ends with the event that reaches this."""
_LAST = (1 << 63) - 1
"""No event has a higher number."""
FIRST_NUMBER = 2
"""Of an event: the first number is drawn when the tables are made. One that was moved from a file
may have an earlier one."""


def read_events(db: Connection, session: str, after: int, limit: int) -> list[Event]:
    last, rows = _texts(db, "events", session, after, limit)
    events = [(seq, event_of(text, session, seq)) for seq, text in rows]
    if (events[0][0] if events else last + 1) == after + 1 or after >= last:
        return [event for _, event in events]
    from callgate.storage.pruning import filled  # lazy: few sessions lack events  # noqa: PLC0415

    return [*filled(events, session, after, last, limit)]


def read_messages(db: Connection, session: str, after: int, limit: int) -> list[StoredMessage]:
    _, rows = _texts(db, "messages", session, after, limit)
    return [decode(text, StoredMessage) for _, text in rows]


def _texts(
    db: Connection, table: str, session: str, after: int, limit: int
) -> tuple[int, list[tuple[int, str]]]:
    """Numbers and texts, and the number of the session's last event."""
    check_page(after, limit)
    rows = db.fetch(
        "select s.last_seq, t.seq, t.body from cg.sessions s left join lateral ("  # noqa: S608
        f" select seq, body from cg.{table} where ord = s.ord and seq > %s order by seq limit %s"
        ") t on true where s.id = %s",
        *(after, limit, session),
    )
    if not rows:
        raise SessionNotFound(session)
    return rows[0][0], [(seq, text) for _, seq, text in _page(rows) if seq is not None]


_DRAWN = (
    "select set_config('callgate.drawn', last_value::text, true), pg_is_in_recovery()"
    " from cg.event_numbers"
)
_BOUND = """
select set_config('callgate.bound', least(current_setting('callgate.drawn')::bigint, (
    select min((l.classid::bigint << 32 | l.objid::bigint) - %(base)s) from pg_locks l
    where l.locktype = 'advisory' and l.granted and l.objsubid = 1
    and l.database = (select oid from pg_database where datname = current_database())
    and l.classid::bigint >> 16 = (%(base)s::bigint >> 48) & 65535
))::text, true), current_setting('callgate.drawn')
"""
"""Up to which number all events are committed, and the last that was drawn. Two statements: what is
drawn is looked at before who draws."""
_OF_ALL = """
select e.n, s.id, e.seq, e.body from cg.events e join cg.sessions s using (ord)
where e.n > %s and e.n <= least(%s, current_setting('callgate.bound')::bigint) order by e.n
"""


def read_all(db: Connection, after: str | None, limit: int) -> EventPage:
    n = read_cursor("e", after) if after is not None else 0
    check_page(n, limit)
    bound, drawn, rows = _bounded(db, f"{_OF_ALL} limit %s", n, _LAST, limit)
    return _event_page(_page(rows), end=n, pending=bound < drawn)


def read_last(db: Connection, after: str | None, upto: str | None, limit: int) -> EventPage:
    begin = read_cursor("e", after) if after is not None else 0
    check_page(begin, limit)
    end = read_cursor("e", upto) if upto is not None else _LAST
    _, _, rows = _bounded(db, f"{_OF_ALL} desc limit %s", begin, end, limit)
    page = _page(rows)
    if not page and upto is None:
        end = begin
    return _event_page(page[::-1], end=end)


_BEHIND = f"""
select exists (select 1 from cg.marks where name = 'pruned' and value > %s), coalesce((
    select n from cg.events where n <= current_setting('callgate.bound')::bigint
    order by n desc limit 1
), 0), exists (select 1 from cg.events where n < {FIRST_NUMBER})
"""  # noqa: S608
"""The last that is committed, not the last drawn: what a crash undid may be drawn again. Numbers
begin lower in a store that was moved here."""


def behind(db: Connection, after: str | None) -> Behind:
    n = read_cursor("e", after) if after is not None else 0
    _, _, [(is_pruned, last, has_moved)] = _bounded(db, _BEHIND, n)
    before = 0 if has_moved else FIRST_NUMBER - 1
    end = max(n, last, before)
    return Behind(end - max(n, before), write_cursor("e", end), is_pruned)


def _bounded(
    db: Connection, statement: str, *values: Any
) -> tuple[int, int, list[tuple[Any, ...]]]:
    """Read with the bound known, in one round trip: the bound, the last number drawn, the rows."""
    key = db.draw_base & ((1 << 64) - 1)
    with db.psycopg.pipeline():
        db.execute("begin read only")
        drawing = db.execute(_DRAWN)
        bounds = db.execute(_BOUND, {"base": key if key < 1 << 63 else key - (1 << 64)})
        rows = db.execute(statement, values)
        db.execute("commit")
    if drawing.fetchall()[0][1]:  # a standby does not know who draws: it might skip some
        raise StoreUnreadable(db.location.place, Trouble.READ_ONLY)
    [(bound, drawn)] = bounds.fetchall()
    return int(bound), int(drawn), rows.fetchall()


def _page(rows: Sequence[Any]) -> list[Any]:
    """The rows up to the one with which their bodies reach the size of a page."""
    page, size = [], 0
    for row in rows:
        page.append(row)
        size += len(row[-1] or "")
        if size >= PAGE_BYTES:
            break
    return page


def _event_page(rows: Sequence[Any], end: int, *, pending: bool = False) -> EventPage:
    """`end` is where a page without events stands."""
    numbers = [n for n, _, _, _ in rows] or [end]
    return EventPage(
        [event_of(text, session, seq) for _, session, seq, text in rows],
        [write_cursor("e", n) for n, _, _, _ in rows],
        write_cursor("e", numbers[-1]),
        [seq for _, _, seq, _ in rows],
        write_cursor("e", numbers[0] - 1 if rows else end),
        pending,
    )


def get_session(db: Connection, session: str) -> StoredSession:
    found = db.fetch(f"{SESSION} where id = %s", session)
    if not found:
        raise SessionNotFound(session)
    return session_of(found[0])


def list_sessions(
    db: Connection, workspace: str | None, cursor: str | None, limit: int, workers: bool
) -> SessionPage:
    before = read_cursor("s", cursor) if cursor is not None else _LAST
    check_page(0, limit)
    where, values = "touch < %s and listed < %s", list[Any]((before, before))
    if workspace is not None:
        where, values = f"{where} and workspace = %s", [*values, workspace]
    if not workers:
        where += " and parent is null"
    rows = _last_touched(db, where, values, limit + 1)
    page = rows[:limit]
    more = len(rows) > limit
    return SessionPage(
        [session_of(row) for row in page], write_cursor("s", page[-1][TOUCH]) if more else None
    )


def _last_touched(
    db: Connection, where: str, values: list[Any], limit: int
) -> list[tuple[Any, ...]]:
    """Sessions by their touch, the highest first, though the index has only an older one.

    One that is listed at L was touched before L + DRIFT. So whoever is among the first is listed
    at most `DRIFT` before the touch of the last of so many candidates.
    """
    nearest = f"select touch from cg.sessions where {where} order by listed desc limit %s"  # noqa: S608
    [(least,)] = db.fetch(f"select min(touch) from ({nearest}) c", *values, limit)  # noqa: S608
    if least is None:
        return []
    return db.fetch(
        f"{SESSION} where {where} and listed > %s order by touch desc limit %s",
        *(*values, least - DRIFT, limit),
    )


def workers_of(db: Connection, session: str) -> list[StoredSession]:
    return [
        session_of(row) for row in db.fetch(f"{SESSION} where parent = %s order by id", session)
    ]


def find_sessions(db: Connection, part: str) -> list[str]:
    if "\0" in part:
        return []
    found = db.fetch(
        "select id from cg.sessions where strpos(lower(id), lower(%s)) > 0 order by touch desc",
        part,
    )
    return [id for (id,) in found]


def snapshot(db: Connection, session: str) -> Snapshot:
    with db.transaction("isolation level repeatable read read only"):
        stored = get_session(db, session)
        calls = open_calls(db, session, None)
        ids = [call.confirmation for call in calls if call.confirmation]
        confirmations = _values(db, StoredConfirmation, "confirmations where id = any(%s)", ids)
        shown = (ConfirmationState.PENDING, ConfirmationState.ALLOWED)
        return Snapshot(
            session=stored,
            calls=calls,
            confirmations=sorted(
                (question for question in confirmations if question.state in shown),
                key=lambda question: ids.index(question.id),
            ),
            grants=grants(db, session),
        )


_OF_SESSION = "ord = (select ord from cg.sessions where id = %s) and "


def open_confirmations(db: Connection, session: str | None) -> list[StoredConfirmation]:
    where, values = (_OF_SESSION, (session,)) if session is not None else ("", ())
    found: list[StoredConfirmation]
    found = _values(
        db,
        StoredConfirmation,
        f"confirmations where {where} state = 'pending' order by id",
        *values,
    )
    return found


def get_confirmation(db: Connection, id: str) -> StoredConfirmation:
    found: list[StoredConfirmation]
    found = _values(db, StoredConfirmation, "confirmations where id = %s", id)
    if not found:
        raise ConfirmationNotFound(id)
    return found[0]


def open_calls(db: Connection, session: str | None, owner: str | None) -> list[StoredCall]:
    where, values = "state <> 'ended'", []
    if session is not None:
        where, values = _OF_SESSION + where, [session]
    if owner is not None:
        where, values = f"{where} and owner = %s", [*values, owner]
    return _values(db, StoredCall, f"calls where {where} order by id", *values)


def get_call(db: Connection, id: str) -> StoredCall | None:
    found = _values(db, StoredCall, "calls where id = %s", id)
    return found[0] if found else None


def grants(db: Connection, session: str) -> list[StoredGrant]:
    return _values(db, StoredGrant, f"grants where {_OF_SESSION} true order by id", session)


def pins(db: Connection, source: str | None) -> list[Pin]:
    if source is None:
        return _values(db, Pin, "pins order by source, tool")
    return _values(db, Pin, "pins where source = %s order by tool", source)


def get_blob(db: Connection, sha256: str) -> bytes | None:
    found = db.fetch("select data from cg.blobs where sha256 = %s", sha256)
    return bytes(found[0][0]) if found else None


def dead_owners(db: Connection) -> list[str]:
    found = db.fetch(
        "select owner from cg.sessions where owner is not null"
        " union select owner from cg.calls where state <> 'ended' order by owner"
    )
    return _dead(db, [owner for (owner,) in found])


def _dead(db: Connection, known: list[str]) -> list[str]:
    living = owners.living(db, known)
    return [owner for owner in known if owner not in living]


def alive(db: Connection, owner: str) -> bool:
    return bool(owners.living(db, [owner]))


def outbox(db: Connection, of_dead: bool) -> list[OutboxRecord]:
    records: list[OutboxRecord] = _values(db, OutboxRecord, "outbox order by id")
    if not of_dead:
        return records
    dead = set(_dead(db, sorted({record.owner for record in records})))
    return [record for record in records if record.owner in dead]


def cut_sessions(db: Connection) -> list[CutSession]:
    return _values(db, CutSession, "cut_sessions order by id")


def entries(db: Connection, kind: str) -> list[SharedEntry]:
    return _values(db, SharedEntry, "entries where kind = %s order by name", kind)


def audited_from(db: Connection) -> str | None:
    found = db.fetch("select value from cg.marks where name = 'audited'")
    return write_cursor("e", found[0][0]) if found else None


def _values(db: Connection, kind: type[Any], where: str, *values: Any) -> list[Any]:
    found = []
    for (body,) in db.fetch(f"select body from cg.{where}", *values):  # noqa: S608
        try:
            found.append(decode(body, kind))
        except msgspec.DecodeError as error:  # one bad row hides no other
            _log.error("a row of %s cannot be read: %s", kind.__name__, error)
    return found
