"""Pruning in the file: old rows, rows of deleted sessions, and empty pages.

A deleted session loses its row, which leads to all its other rows. Its number remains in
`dropped_sessions` until the last of them is swept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import apsw

from callgate.core.budgets import PageRelease, PrunablePage, RowSweep, StoreUsage
from callgate.core.stored import StoredSession
from callgate.storage.encoding import check_page, read_cursor, write_cursor
from callgate.storage.pruning import prunable as choose
from callgate.storage.queries import PAGE_BYTES
from callgate.storage.sqlite.reads import READS
from callgate.storage.sqlite.tables import (
    INCREMENTAL,
    POSITION_BITS,
    SESSION,
    TOUCH,
    position_of,
    select,
    seq_of,
    session_of,
)
from callgate.storage.views import EventRow, View

_SHARED = ("calls", "confirmations", "grants")
"""Tables with the rows of a session, by its ord."""


def oldest_sessions(
    db: apsw.Connection, cursor: str | None, most: int
) -> tuple[list[tuple[int, StoredSession]], str | None]:
    """Return sessions with their ord, least recently changed first."""
    after = read_cursor("s", cursor) if cursor is not None else 0
    check_page(after, most)
    rows = select(db, f"{SESSION} where touch > ? order by touch limit ?", (after, most))
    further = write_cursor("s", rows[-1][TOUCH]) if len(rows) == most else None
    return [session_of(row) for row in rows], further


def oldest_events(
    db: apsw.Connection, cursor: str | None, most: int
) -> tuple[list[EventRow], str | None]:
    n = read_cursor("e", cursor) if cursor is not None else 0
    check_page(n, most)
    rows = db.execute(
        "select n, e.id, s.id, place, e.body from events e join sessions s"  # noqa: S608
        f" on s.ord = place >> {POSITION_BITS} where n > ? order by n limit ?",
        (n, most),
    )
    found, size = [], 0
    for number, id, session, position, text in rows:
        n = number
        found.append(EventRow(id, session, seq_of(position), text))
        size += len(text)
        if size >= PAGE_BYTES:
            rows.close()
            break
    ended = len(found) < most and size < PAGE_BYTES
    return found, None if ended else write_cursor("e", n)


def save(
    db: apsw.Connection,
    view: View,
    sessions: dict[str, tuple[int, StoredSession]],
    numbers: Mapping[str, int],
) -> None:
    """Record the deleted sessions, and the numbers up to which events of others were deleted.

    The writer knows the `sessions` with their ord; `numbers` are the last ones that it assigned.
    """
    last = [("pruned", n) for row in view.pruned.values() for n in _number(db, row)]
    db.executemany("delete from events where id = ?", [(row,) for row in view.rows[EventRow]])
    db.executemany(
        "insert or replace into pruned_events values (?, ?)",
        [(sessions[id][0], row.seq) for id, row in view.pruned.items()],
    )
    for id in view.dropped:
        ord, session = sessions.pop(id)
        position = position_of(ord, session.last_seq)
        last += [("pruned", n) for (n,) in _where(db, "place = ?", position)]
        for table in ("sessions", "pruned_events"):
            db.execute(f"delete from {table} where ord = ?", (ord,))  # noqa: S608
        db.execute("insert into dropped_sessions values (?)", (ord,))
    db.executemany(
        "insert into marks values (?, ?)"
        " on conflict (name) do update set value = max(value, excluded.value)",
        [*numbers.items(), *last],
    )


def _number(db: apsw.Connection, row: EventRow) -> list[int]:
    return [n for (n,) in _where(db, "id = ?", row.id)]


def _where(db: apsw.Connection, where: str, value: str | int) -> list[Any]:
    return select(db, f"select n from events where {where}", (value,))  # noqa: S608


def sweep(db: apsw.Connection, most: int) -> RowSweep:
    """Delete at most this many rows of deleted sessions."""
    room, counts = most, dict.fromkeys(("events", "messages", *_SHARED), 0)
    for (ord,) in select(db, "select ord from dropped_sessions limit ?", (most,)):
        for table in counts:
            removed = _sweep_table(db, table, ord, room)
            counts[table] += removed
            room -= removed
            if room <= 0:
                break
        if room <= 0:
            break
        db.execute("delete from dropped_sessions where ord = ?", (ord,))
        room -= 1
    return RowSweep(
        events=counts["events"],
        messages=counts["messages"],
        calls=counts["calls"],
        more=bool(select(db, "select 1 from dropped_sessions limit 1")),
    )


def _sweep_table(db: apsw.Connection, table: str, ord: int, most: int) -> int:
    if table in _SHARED:
        key, where, values = "id", "ord = ?", (ord,)
    else:
        key = "n" if table == "events" else "place"
        where = "place > ? and place < ?"
        values = (position_of(ord, 0), position_of(ord + 1, 0))  # type: ignore[assignment]
    before = db.total_changes()
    db.execute(
        f"delete from {table} where {key} in (select {key} from {table} where {where} limit ?)",  # noqa: S608
        (*values, most),
    )
    return db.total_changes() - before


def release_pages(db: apsw.Connection, most: int) -> PageRelease:
    """Release empty pages at the end of the file, and move others there first."""
    before = int(db.pragma("freelist_count"))
    if db.pragma("auto_vacuum") != INCREMENTAL or not before:
        return PageRelease()
    db.execute(f"pragma incremental_vacuum({int(most)})").fetchall()
    after = int(db.pragma("freelist_count"))
    return PageRelease(pages=before - after, more=0 < after < before)


def usage(db: apsw.Connection) -> StoreUsage:
    if not db.filename:  # there is no file
        return StoreUsage()
    size, free = int(db.pragma("page_size")), int(db.pragma("freelist_count"))
    [(sessions, events, messages)] = select(
        db, "select count(*), ifnull(sum(last_seq), 0), ifnull(sum(messages), 0) from sessions"
    )
    return StoreUsage(
        bytes=(int(db.pragma("page_count")) - free) * size,
        free_bytes=free * size,
        sessions=sessions,
        events=events,
        messages=messages,
        shrinks=db.pragma("auto_vacuum") == INCREMENTAL,
    )


class _Around:
    """`storage.pruning.Neighbours` for a reader."""

    def __init__(self, db: apsw.Connection, alive: Callable[[str], bool]) -> None:
        self._db = db
        self.alive = alive

    def workers_of(self, session: str) -> Sequence[StoredSession]:
        return READS.workers_of(self._db, session)

    def has_open_calls(self, session: str) -> bool:
        return READS.has_open_calls(self._db, session)


def prunable(
    db: apsw.Connection,
    before: float,
    cursor: str | None,
    most: int,
    alive: Callable[[str], bool],
) -> PrunablePage:
    page, further = oldest_sessions(db, cursor, most)
    sessions = [session for _, session in page]
    families = choose(sessions, before, _Around(db, alive), lambda id: READS.has_session(db, id))
    going = [each for family in families for each in family]
    return PrunablePage(
        sessions=going,
        calls=sum(_calls(db, each.id) for each in going),
        cursor=further if any(each.updated_at < before for each in sessions) else None,
    )


def _calls(db: apsw.Connection, session: str) -> int:
    [(count,)] = select(
        db,
        "select count(*) from calls where ord = (select ord from sessions where id = ?)",
        (session,),
    )
    return int(count)
