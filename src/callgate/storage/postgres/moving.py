"""A schema of a database as a place that everything is moved from or to (`storage.moving`).

Rows are copied as a stream, inside one transaction. The connection is the direct one where there is
a pooler, though that would do: nothing outlives the transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import psycopg
from psycopg import sql

from callgate.core.stores import Trouble
from callgate.storage.moving import (
    TABLES,
    EmptyContents,
    MoveInterrupted,
    NotMovable,
    Numbers,
    Row,
    StoreNotEmpty,
    expiry_of,
)
from callgate.storage.postgres import owners
from callgate.storage.postgres.connections import Connection
from callgate.storage.postgres.location import PostgresLocation
from callgate.storage.postgres.problems import TROUBLE, trouble_of
from callgate.storage.postgres.schema import check_format, migrate

_SEQUENCES = {"n": "event_numbers", "touch": "touches", "ord": "session_numbers"}
_TYPES = {
    **dict.fromkeys(("ord", "n", "seq", "touch", "listed", "upto", "value", "fence"), "int8"),
    **dict.fromkeys(("last_seq", "messages"), "int8"),
    **dict.fromkeys(("updated_at", "expires_at"), "float8"),
    "data": "bytea",
}
_UNLIMITED = "set local {} = 0"
_LIMITS = ("statement_timeout", "idle_in_transaction_session_timeout")
"""Of a connection: a large table takes its time, and one side waits for the other."""


class PostgresMovable:
    """Implements `storage.moving.MovableStore`."""

    def __init__(self, location: PostgresLocation) -> None:
        self._location = location

    @property
    def place(self) -> str:
        return f"{self._location.place} (schema {self._location.schema})"

    def living(self) -> Sequence[str]:
        with self._troubled(), self._connected() as db:
            if not _has_tables(db):
                return []
            known = [id for (id,) in db.fetch("select id from cg.owners order by started_at")]
            living = owners.living(db, known)
            return [each for each in known if each in living]

    def row_counts(self) -> Mapping[str, int]:
        with self._troubled(), self._connected() as db:
            check_format(db)
            return _filled(PostgresContents(db, self.place)) if _has_tables(db) else {}

    @contextmanager
    def reading(self) -> Iterator[PostgresContents]:
        """No row can be added or changed meanwhile."""
        with self._troubled(), self._connected() as db:
            self._ensure_primary(db)
            if not _has_tables(db):
                raise NotMovable(f"{self.place} holds no store.")
            migrate(db)
            db.run("begin isolation level repeatable read")
            _lock(db, "share")
            try:
                yield PostgresContents(db, self.place)
            finally:
                with suppress(*TROUBLE):  # nothing of it is to be kept
                    db.run("rollback")

    @contextmanager
    def writing(self) -> Iterator[EmptyContents]:
        with self._troubled(), self._connected() as db:
            self._ensure_primary(db)
            migrate(db)
            committing = False
            try:
                with db.transaction():
                    _lock(db, "exclusive")
                    contents = PostgresContents(db, self.place)
                    held = _filled(contents)
                    if held:
                        raise StoreNotEmpty(self.place, held)
                    yield contents
                    committing = True
            except TROUBLE as error:
                if committing and trouble_of(error) is Trouble.UNREACHABLE:
                    raise MoveInterrupted(
                        self.place, Trouble.UNREACHABLE, outcome_unknown=True
                    ) from error
                raise
            _analyze(db)

    def _ensure_primary(self, db: Connection) -> None:
        [(is_standby,)] = db.fetch("select pg_is_in_recovery()")
        if is_standby:
            raise NotMovable(f"{self.place} is a standby: name the primary.")

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        db = Connection(self._location, self._location.direct_url, patient=True)
        try:
            yield db
        finally:
            db.close()

    @contextmanager
    def _troubled(self) -> Iterator[None]:
        """PostgreSQL's errors as those of a move."""
        try:
            yield
        except TROUBLE as error:
            trouble = trouble_of(error)
            if trouble is None:
                raise
            raise MoveInterrupted(self.place, trouble) from error


def _lock(db: Connection, mode: str) -> None:
    for limit in _LIMITS:
        db.run(_UNLIMITED.format(limit))
    tables = ", ".join(f"cg.{table}" for table in TABLES)
    db.run(f"lock table {tables} in {mode} mode")


def _has_tables(db: Connection) -> bool:
    [(there,)] = db.fetch("select to_regclass(%s) is not null", f"{db.location.schema}.sessions")
    return bool(there)


def _filled(contents: PostgresContents) -> dict[str, int]:
    counts = {table: contents.count(table) for table in TABLES}
    return {table: count for table, count in counts.items() if count}


def _analyze(db: Connection) -> None:
    """Let the planner know what came in. The move is done, whatever becomes of this."""
    try:
        for table in TABLES:
            db.run(f"analyze cg.{table}")
    except psycopg.Error:
        pass


class PostgresContents:
    """Implements `storage.moving.EmptyContents`, inside a transaction."""

    def __init__(self, db: Connection, place: str) -> None:
        self._db = db
        self._place = place

    def count(self, table: str) -> int:
        [(count,)] = self._db.fetch(f"select count(*) from cg.{table}")  # noqa: S608
        return int(count)

    def rows(self, table: str) -> Iterator[Row]:
        columns, keys = (", ".join(names) for names in TABLES[table])
        statement = self._db.text(f"select {columns} from cg.{table} order by {keys}")  # noqa: S608
        with self._db.psycopg.cursor() as cursor:
            yield from cursor.stream(sql.SQL(statement), binary=True)

    def numbers(self) -> Numbers:
        found = [
            int(self._db.fetch(f"select last_value from cg.{sequence}")[0][0])  # noqa: S608
            for sequence in _SEQUENCES.values()
        ]
        return Numbers(*found)

    def write(self, table: str, rows: Iterable[Row]) -> None:
        columns = TABLES[table].columns
        if table == "confirmations":
            columns = (*columns, "expires_at")
            rows = ((*row, expiry_of(row[-1], self._place)) for row in rows)
        elif table == "sessions":
            touch = columns.index("touch")
            columns = (*columns, "listed")
            rows = ((*row, row[touch]) for row in rows)
        statement = f"copy cg.{table} ({', '.join(columns)}) from stdin (format binary)"
        copying = sql.SQL(self._db.text(statement))
        with self._db.psycopg.cursor() as cursor, cursor.copy(copying) as copy:
            copy.set_types([_TYPES.get(name, "text") for name in columns])
            for row in rows:
                _ensure_storable(table, row)
                copy.write_row(row)

    def set_numbers(self, numbers: Numbers) -> None:
        """`alter` is undone with the transaction, which `setval` is not."""
        for name, sequence in _SEQUENCES.items():
            last = max(1, getattr(numbers, name))
            self._db.run(f"alter sequence cg.{sequence} restart with {int(last)}")
            self._db.fetch(f"select nextval('cg.{sequence}')")  # `last_value` has been drawn


def _ensure_storable(table: str, row: Row) -> None:
    for value in row:
        if isinstance(value, str) and "\0" in value:
            shown = ascii(row[1] if table in ("sessions", "pins", "entries") else row[0])
            raise NotMovable(
                f"{shown} in {table} has a NUL character, which PostgreSQL cannot hold."
            )
