"""Queries of the file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import apsw

from callgate.core.stored import StoredConfirmation, StoredMessage, StoredSession
from callgate.core.stores import Behind, EventPage, SessionNotFound, SessionPage
from callgate.storage.encoding import check_page, read_cursor, write_cursor
from callgate.storage.queries import LAST_NUMBER, PAGE_BYTES, Queries, event_page
from callgate.storage.sqlite.tables import (
    LAST,
    POSITION_BITS,
    SESSION,
    TOUCH,
    integer,
    position_of,
    select,
    seq_of,
    session_of,
    value_of,
)

DB = apsw.Connection
_OF_ALL = f"""
select n, s.id, place, e.body from events e join sessions s on s.ord = place >> {POSITION_BITS}
where n > ? and n <= ? order by n
"""  # noqa: S608


class SqliteQueries(Queries[DB]):
    BY_ID = "order by +id"
    """Sort after the search: in the order of the table, all ended calls would be read, too."""

    def rows(self, db: DB, statement: str, *values: Any) -> list[Any]:
        return select(db, _translated(statement), values)

    def sessions(self, db: DB, where: str, *values: Any) -> list[StoredSession]:
        return [session_of(row)[1] for row in self.rows(db, f"{SESSION} where {where}", *values)]

    def values(self, db: DB, kind: type[Any], where: str, *values: Any) -> list[Any]:
        rows = self.rows(db, f"select body from {where}", *values)  # noqa: S608
        return [value_of(body, kind) for (body,) in rows]

    def message(self, text: str) -> StoredMessage:
        return value_of(text, StoredMessage)

    def confirmations(self, db: DB, ids: list[str]) -> list[StoredConfirmation]:
        return [self.get_confirmation(db, id) for id in ids]

    def suspect(self, problem: str) -> None:
        raise apsw.CorruptError(problem)

    @contextmanager
    def transaction(self, db: DB) -> Iterator[None]:
        db.execute("begin")
        try:
            yield
        finally:
            db.execute("rollback")

    def texts(
        self, db: DB, table: str, session: str, after: int, limit: int
    ) -> tuple[int, list[tuple[int, str]]]:
        """Numbers and texts, and the number of the session's last event."""
        check_page(after, limit)
        ord, last = _ord_and_last(db, session)
        rows = db.execute(
            f"select place, body from {table} where place > ? and place < ? order by place limit ?",  # noqa: S608
            (position_of(ord, min(after, LAST)), position_of(ord + 1, 0), limit),
        )
        return last, [(seq_of(integer(position)), text) for position, text in _page(rows)]

    def read_all(self, db: DB, after: str | None, limit: int) -> EventPage:
        n = read_cursor("e", after) if after is not None else 0
        check_page(n, limit)
        return event_page(_placed(db, f"{_OF_ALL} limit ?", n, LAST_NUMBER, limit), end=n)

    def read_last(self, db: DB, after: str | None, upto: str | None, limit: int) -> EventPage:
        begin = read_cursor("e", after) if after is not None else 0
        check_page(begin, limit)
        end = read_cursor("e", upto) if upto is not None else LAST_NUMBER
        rows = _placed(db, f"{_OF_ALL} desc limit ?", begin, end, limit)
        if not rows and upto is None:
            end = begin
        return event_page(rows[::-1], end=end)

    def behind(self, db: DB, after: str | None) -> Behind:
        n = read_cursor("e", after) if after is not None else 0
        [(last,)] = select(
            db,
            "select max((select ifnull(max(n), 0) from events),"
            " (select ifnull(max(value), 0) from marks where name = 'n'))",
        )
        end = max(n, integer(last))
        pruned = select(db, "select 1 from marks where name = 'pruned' and value > ?", (n,))
        return Behind(end - n, write_cursor("e", end), bool(pruned))

    def list_sessions(
        self, db: DB, workspace: str | None, cursor: str | None, limit: int, workers: bool
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
        rows = select(
            db, f"{SESSION} where {where} order by touch desc limit ?", (*values, limit + 1)
        )
        page = rows[:limit]
        last_touch = page[-1][TOUCH] if len(rows) > limit else None
        return SessionPage(
            [session_of(row)[1] for row in page],
            write_cursor("s", last_touch) if last_touch is not None else None,
        )

    def find_sessions(self, db: DB, part: str) -> list[str]:
        found = select(
            db,
            "select id from sessions where ord in"
            " (select ord from sessions where instr(lower(id), lower(?)) > 0) order by +touch desc",
            (part,),
        )
        return [id for (id,) in found]

    def get_blob(self, db: DB, sha256: str) -> bytes | None:
        found = db.execute("select data from blobs where sha256 = ?", (sha256,)).fetchone()
        if found is None:
            return None
        if type(found[0]) is not bytes or hashlib.sha256(found[0]).hexdigest() != sha256:
            raise apsw.CorruptError(f"blob {sha256} has other bytes")
        return found[0]


READS = SqliteQueries()


@cache
def _translated(statement: str) -> str:
    return statement.replace("cg.", "").replace("%s", "?")


def _placed(db: DB, statement: str, *values: int) -> list[tuple[int, str, int, str]]:
    """Return a page of events: their numbers, sessions, places in these, and texts."""
    rows = _page(db.execute(statement, values))
    return [(n, session, seq_of(integer(position)), text) for n, session, position, text in rows]


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


def _ord_and_last(db: apsw.Connection, session: str) -> tuple[int, int]:
    """A session's ord, and the number of its last event."""
    found = db.execute("select ord, last_seq from sessions where id = ?", (session,)).fetchone()
    if found is None:
        raise SessionNotFound(session)
    ord, last = found
    return integer(ord), integer(last)
