"""Pruning in the database: what is old, and what is left of sessions that are gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from callgate.core.pruning.ops import RowSweep
from callgate.core.pruning.usage import PrunablePage, StoreUsage
from callgate.core.stored import StoredSession
from callgate.storage.cursors import check_page, read_cursor, write_cursor
from callgate.storage.postgres import owners, reads
from callgate.storage.postgres.connections import Connection
from callgate.storage.postgres.tables import DRIFT, SESSION, TOUCH, session_of
from callgate.storage.postgres.wire import Statement, integers, texts
from callgate.storage.pruning import prunable as choose
from callgate.storage.views import EventRow, View

_SWEPT = ("events", "messages", "calls", "confirmations", "grants")
_RAISE_MARK = """
insert into cg.marks (name, value) {} on conflict (name)
do update set value = greatest(cg.marks.value, excluded.value)
"""


def oldest_sessions(
    db: Connection, cursor: str | None, most: int
) -> tuple[list[tuple[Any, ...]], str | None]:
    """The columns of sessions, in the order in which they were last changed."""
    after = read_cursor("s", cursor) if cursor is not None else 0
    check_page(after, most)
    # One that is listed at L was touched between L and L + DRIFT.
    nearest = (
        "select touch from cg.sessions where touch > %s and listed > %s order by listed limit %s"
    )
    lowest = (after, after - DRIFT, most)
    [(last,)] = db.fetch(f"select max(touch) from ({nearest}) c", *lowest)  # noqa: S608
    if last is None:
        return [], None
    rows = db.fetch(
        f"{SESSION} where touch > %s and listed > %s and listed <= %s order by touch limit %s",
        *(after, after - DRIFT, last, most),
    )
    return rows, write_cursor("s", rows[-1][TOUCH]) if len(rows) == most else None


def oldest_events(
    db: Connection, cursor: str | None, most: int
) -> tuple[list[EventRow], str | None]:
    n = read_cursor("e", cursor) if cursor is not None else 0
    check_page(n, most)
    rows = db.fetch(
        "select e.n, e.id, s.id, e.seq, e.body from cg.events e join cg.sessions s using (ord)"
        " where e.n > %s order by e.n limit %s",
        *(n, most),
    )
    further = write_cursor("e", rows[-1][0]) if len(rows) == most else None
    return [EventRow(*columns) for _, *columns in rows], further


def statements(view: View, ord_of: Callable[[str], int]) -> list[Statement]:
    """Keep which sessions were dropped, and up to which number events of others are gone."""
    last = "select 'pruned', max(n) from cg.events where {} having max(n) is not null"
    made: list[Statement] = []
    if view.pruned:
        ids = texts([str(id) for id, row in view.rows[EventRow].items() if row is None])
        made += [
            Statement(_RAISE_MARK.format(last.format("id = any($1)")), (ids,)),
            Statement("delete from cg.events where id = any($1)", (ids,)),
            Statement(
                "insert into cg.pruned_events select * from unnest($1::bigint[], $2::bigint[])"
                " on conflict (ord) do update set upto = excluded.upto",
                (
                    integers([ord_of(id) for id in view.pruned]),
                    integers([row.seq for row in view.pruned.values()]),
                ),
            ),
        ]
    if view.dropped:
        ords = (integers([ord_of(id) for id in view.dropped]),)
        made += [
            Statement(_RAISE_MARK.format(last.format("ord = any($1)")), ords),
            Statement("delete from cg.sessions where ord = any($1)", ords),
            Statement("delete from cg.pruned_events where ord = any($1)", ords),
            Statement("insert into cg.dropped_sessions select unnest($1::bigint[])", ords),
        ]
    return made


def sweep(db: Connection, most: int) -> RowSweep:
    """Remove at most so many rows of sessions that were dropped."""
    room, counts = most, dict.fromkeys(_SWEPT, 0)
    for (ord,) in db.fetch(
        "select ord from cg.dropped_sessions order by ord limit %s for update", most
    ):
        for table in _SWEPT:
            removed = _sweep_table(db, table, ord, room)
            counts[table] += removed
            room -= removed
            if room <= 0:
                break
        if room <= 0:
            break
        db.run("delete from cg.dropped_sessions where ord = %s", ord)
        room -= 1
    [(more,)] = db.fetch("select exists (select 1 from cg.dropped_sessions)")
    return RowSweep(
        events=counts["events"], messages=counts["messages"], calls=counts["calls"], more=more
    )


def _sweep_table(db: Connection, table: str, ord: int, most: int) -> int:
    return db.run(
        f"delete from cg.{table} where ctid = any(array("  # noqa: S608
        f" select ctid from cg.{table} where ord = %s limit %s))",
        *(ord, most),
    )


def usage(db: Connection) -> StoreUsage:
    [(size,)] = db.fetch(
        "select coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint from pg_class c"
        " where c.relkind = 'r' and c.relnamespace = to_regnamespace(%s)",
        db.location.schema,
    )
    [(sessions, events, messages)] = db.fetch(
        "select count(*), coalesce(sum(last_seq), 0)::bigint, coalesce(sum(messages), 0)::bigint"
        " from cg.sessions"
    )
    return StoreUsage(bytes=size, sessions=sessions, events=events, messages=messages)


class _Around:
    """`storage.pruning.Neighbours` as a reader sees them."""

    def __init__(self, db: Connection) -> None:
        self._db = db

    def alive(self, owner: str) -> bool:
        return bool(owners.living(self._db, [owner]))

    def workers_of(self, session: str) -> Sequence[StoredSession]:
        return reads.workers_of(self._db, session)

    def has_open_calls(self, session: str) -> bool:
        [(is_cut,)] = self._db.fetch(
            "select exists (select 1 from cg.cut_sessions where id = %s)", session
        )
        return bool(is_cut or reads.open_calls(self._db, session, None))


def prunable(db: Connection, before: float, cursor: str | None, most: int) -> PrunablePage:
    page, further = oldest_sessions(db, cursor, most)
    sessions = [session_of(row) for row in page]
    families = choose(sessions, before, _Around(db), lambda id: _exists(db, id))
    going = [each for family in families for each in family]
    [(calls,)] = db.fetch(
        "select count(*) from cg.calls where ord in"
        " (select ord from cg.sessions where id = any(%s))",
        [each.id for each in going],
    )
    return PrunablePage(
        sessions=going,
        calls=calls,
        cursor=further if any(each.updated_at < before for each in sessions) else None,
    )


def _exists(db: Connection, session: str) -> bool:
    return bool(db.fetch("select 1 from cg.sessions where id = %s", session))
