"""Queries of the database, and its pruning: old rows, and rows of dropped sessions.

Events of all sessions are read up to the lowest number that is still in flight. Transactions draw
numbers before they commit, and a reader must not skip an event that commits later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from callgate.core.budgets import PrunablePage, RowSweep, StoreUsage
from callgate.core.stored import OutboxRecord, StoredConfirmation, StoredMessage, StoredSession
from callgate.core.stores import (
    Behind,
    EventPage,
    SessionNotFound,
    SessionPage,
    StoreUnreadable,
    Trouble,
)
from callgate.features.fleet.postgres import connections
from callgate.features.fleet.postgres.connections import Connection
from callgate.features.fleet.postgres.schema import DRIFT, SESSION, TOUCH, session_of
from callgate.features.fleet.postgres.wire import Statement, integers, texts
from callgate.storage.encoding import check_page, decode, read_cursor, write_cursor
from callgate.storage.pruning import prunable as choose
from callgate.storage.queries import LAST_NUMBER, PAGE_BYTES, Queries, event_page
from callgate.storage.views import EventRow, View

_log = logging.getLogger("callgate.store")
DB = Connection

FIRST_NUMBER = 2
"""The first number of an event: `schema` draws number 1. Events moved from a file may have lower
ones.
"""
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
"""The number up to which all events are committed, and the last drawn number. The last drawn
number is read first, in a separate statement.
"""
_OF_ALL = """
select e.n, s.id, e.seq, e.body from cg.events e join cg.sessions s using (ord)
where e.n > %s and e.n <= least(%s, current_setting('callgate.bound')::bigint) order by e.n
"""
_BEHIND = f"""
select exists (select 1 from cg.marks where name = 'pruned' and value > %s), coalesce((
    select n from cg.events where n <= current_setting('callgate.bound')::bigint
    order by n desc limit 1
), 0), exists (select 1 from cg.events where n < {FIRST_NUMBER})
"""  # noqa: S608
"""Uses the last committed number, because a crash may free drawn numbers. Numbers start lower in a
moved store.
"""


class PostgresQueries(Queries[DB]):
    def rows(self, db: DB, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return db.fetch(statement, *values)

    def sessions(self, db: DB, where: str, *values: Any) -> list[StoredSession]:
        return [session_of(row) for row in db.fetch(f"{SESSION} where {where}", *values)]

    def values(self, db: DB, kind: type[Any], where: str, *values: Any) -> list[Any]:
        found = []
        for (body,) in db.fetch(f"select body from cg.{where}", *values):  # noqa: S608
            try:
                found.append(decode(body, kind))
            except msgspec.DecodeError as error:  # one bad row hides no other
                _log.error("a row of %s cannot be read: %s", kind.__name__, error)
        return found

    def message(self, text: str) -> StoredMessage:
        return decode(text, StoredMessage)

    def confirmations(self, db: DB, ids: list[str]) -> list[StoredConfirmation]:
        found = self.values(db, StoredConfirmation, "confirmations where id = any(%s)", ids)
        return sorted(found, key=lambda question: ids.index(question.id))

    def suspect(self, problem: str) -> None:
        _log.error("%s", problem)

    def transaction(self, db: DB) -> AbstractContextManager[None]:
        return db.transaction("isolation level repeatable read read only")

    def texts(
        self, db: DB, table: str, session: str, after: int, limit: int
    ) -> tuple[int, list[tuple[int, str]]]:
        """Return the number of the session's last event, and the numbers and texts."""
        check_page(after, limit)
        rows = db.fetch(
            "select s.last_seq, t.seq, t.body from cg.sessions s left join lateral ("  # noqa: S608
            f" select seq, body from cg.{table} where ord = s.ord and seq > %s"
            " order by seq limit %s"
            ") t on true where s.id = %s",
            *(after, limit, session),
        )
        if not rows:
            raise SessionNotFound(session)
        return rows[0][0], [(seq, text) for _, seq, text in _page(rows) if seq is not None]

    def read_all(self, db: DB, after: str | None, limit: int) -> EventPage:
        n = read_cursor("e", after) if after is not None else 0
        check_page(n, limit)
        bound, drawn, rows = _bounded(db, f"{_OF_ALL} limit %s", n, LAST_NUMBER, limit)
        return event_page(_page(rows), end=n, pending=bound < drawn)

    def read_last(self, db: DB, after: str | None, upto: str | None, limit: int) -> EventPage:
        begin = read_cursor("e", after) if after is not None else 0
        check_page(begin, limit)
        end = read_cursor("e", upto) if upto is not None else LAST_NUMBER
        _, _, rows = _bounded(db, f"{_OF_ALL} desc limit %s", begin, end, limit)
        page = _page(rows)
        if not page and upto is None:
            end = begin
        return event_page(page[::-1], end=end)

    def behind(self, db: DB, after: str | None) -> Behind:
        n = read_cursor("e", after) if after is not None else 0
        _, _, [(is_pruned, last, has_moved)] = _bounded(db, _BEHIND, n)
        before = 0 if has_moved else FIRST_NUMBER - 1
        end = max(n, last, before)
        return Behind(end - max(n, before), write_cursor("e", end), is_pruned)

    def list_sessions(
        self, db: DB, workspace: str | None, cursor: str | None, limit: int, workers: bool
    ) -> SessionPage:
        before = read_cursor("s", cursor) if cursor is not None else LAST_NUMBER
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

    def find_sessions(self, db: DB, part: str) -> list[str]:
        if "\0" in part:
            return []
        found = db.fetch(
            "select id from cg.sessions where strpos(lower(id), lower(%s)) > 0 order by touch desc",
            part,
        )
        return [id for (id,) in found]

    def get_blob(self, db: DB, sha256: str) -> bytes | None:
        found = db.fetch("select data from cg.blobs where sha256 = %s", sha256)
        return bytes(found[0][0]) if found else None

    def dead_owners(self, db: DB) -> list[str]:
        return _dead(db, self.owners(db))

    def outbox_of_dead(self, db: DB) -> list[OutboxRecord]:
        records = self.outbox(db)
        dead = set(_dead(db, sorted({record.owner for record in records})))
        return [record for record in records if record.owner in dead]

    def alive(self, db: DB, owner: str) -> bool:
        return bool(connections.living(db, [owner]))


READS = PostgresQueries()


def _bounded(
    db: Connection, statement: str, *values: Any
) -> tuple[int, int, list[tuple[Any, ...]]]:
    """Run a query with the bound, in one round trip. Return the bound, the last drawn number and
    the rows.
    """
    key = db.draw_base & ((1 << 64) - 1)
    with db.psycopg.pipeline():
        db.execute("begin read only")
        drawing = db.execute(_DRAWN)
        bounds = db.execute(_BOUND, {"base": key if key < 1 << 63 else key - (1 << 64)})
        rows = db.execute(statement, values)
        db.execute("commit")
    if drawing.fetchall()[0][1]:  # a standby does not see numbers in flight: it could skip events
        raise StoreUnreadable(db.location.label, Trouble.READ_ONLY)
    [(bound, drawn)] = bounds.fetchall()
    return int(bound), int(drawn), rows.fetchall()


def _page(rows: Sequence[Any]) -> list[Any]:
    """Return the rows up to the size limit of a page."""
    page, size = [], 0
    for row in rows:
        page.append(row)
        size += len(row[-1] or "")
        if size >= PAGE_BYTES:
            break
    return page


def _last_touched(
    db: Connection, where: str, values: list[Any], limit: int
) -> list[tuple[Any, ...]]:
    """Return sessions by their touch, in descending order, although the index has only older
    values.

    A session with `listed` = L has a touch below L + DRIFT. So each of the first sessions has a
    `listed` of at most `DRIFT` below the touch of the last candidate.
    """
    nearest = f"select touch from cg.sessions where {where} order by listed desc limit %s"  # noqa: S608
    [(least,)] = db.fetch(f"select min(touch) from ({nearest}) c", *values, limit)  # noqa: S608
    if least is None:
        return []
    return db.fetch(
        f"{SESSION} where {where} and listed > %s order by touch desc limit %s",
        *(*values, least - DRIFT, limit),
    )


def _dead(db: Connection, known: list[str]) -> list[str]:
    living = connections.living(db, known)
    return [owner for owner in known if owner not in living]


_SWEPT = ("events", "messages", "calls", "confirmations", "grants")
_RAISE_MARK = """
insert into cg.marks (name, value) {} on conflict (name)
do update set value = greatest(cg.marks.value, excluded.value)
"""


def oldest_sessions(
    db: Connection, cursor: str | None, most: int
) -> tuple[list[tuple[Any, ...]], str | None]:
    """Return the columns of sessions, in the order of their last change."""
    after = read_cursor("s", cursor) if cursor is not None else 0
    check_page(after, most)
    # A session with `listed` = L has a touch between L and L + DRIFT.
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
    """Return the statements that record dropped sessions, and the number up to which events are
    missing.
    """
    last = "select 'pruned', max(n) from cg.events where {} having max(n) is not null"
    statements: list[Statement] = []
    if view.pruned:
        ids = texts([str(id) for id, row in view.rows[EventRow].items() if row is None])
        statements += [
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
        statements += [
            Statement(_RAISE_MARK.format(last.format("ord = any($1)")), ords),
            Statement("delete from cg.sessions where ord = any($1)", ords),
            Statement("delete from cg.pruned_events where ord = any($1)", ords),
            Statement("insert into cg.dropped_sessions select unnest($1::bigint[])", ords),
        ]
    return statements


def sweep(db: Connection, most: int) -> RowSweep:
    """Remove at most `most` rows of dropped sessions."""
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
    """Implements `storage.pruning.Neighbours` for a reader."""

    def __init__(self, db: Connection) -> None:
        self._db = db

    def alive(self, owner: str) -> bool:
        return bool(connections.living(self._db, [owner]))

    def workers_of(self, session: str) -> Sequence[StoredSession]:
        return READS.workers_of(self._db, session)

    def has_open_calls(self, session: str) -> bool:
        return READS.has_open_calls(self._db, session)


def prunable(db: Connection, before: float, cursor: str | None, most: int) -> PrunablePage:
    page, further = oldest_sessions(db, cursor, most)
    sessions = [session_of(row) for row in page]
    families = choose(sessions, before, _Around(db), lambda id: READS.has_session(db, id))
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
