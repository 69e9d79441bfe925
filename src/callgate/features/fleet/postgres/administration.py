"""A store's database for operators: read-only inspection, and moves (`storage.moving`).

A schema can be the source or the target of a move. Rows are copied as a stream, in one transaction.
With a pooler, the direct connection is used, although no state outlives the transaction.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import msgspec
import psycopg
from psycopg import sql

from callgate.core.stores import Trouble
from callgate.features.fleet.postgres import PostgresLocation, connections
from callgate.features.fleet.postgres.connections import (
    TROUBLE,
    Connection,
    living,
    trouble_of,
    unreadable,
)
from callgate.features.fleet.postgres.schema import check_format, migrate
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

_ROUNDS = 4
_SERVER = """
select current_setting('server_version'), pg_is_in_recovery(), current_setting('fsync') = 'on',
    current_setting('synchronous_commit') <> 'off', current_setting('max_connections')::int
        - current_setting('superuser_reserved_connections')::int
        - coalesce(current_setting('reserved_connections', true)::int, 0),
    (select count(*) from pg_stat_activity
        where backend_type = 'client backend' and application_name <> 'callgate')
"""
_RIGHTS = """
select coalesce(
    (select has_schema_privilege(n.oid, 'usage') and coalesce((
        select bool_and(has_table_privilege(c.oid, 'select')
            and has_table_privilege(c.oid, 'insert')
            and has_table_privilege(c.oid, 'update') and has_table_privilege(c.oid, 'delete'))
        from pg_class c where c.relnamespace = n.oid and c.relkind = 'r'
    ), has_schema_privilege(n.oid, 'create')) from pg_namespace n where n.nspname = %s),
    has_database_privilege(current_database(), 'create')
)
"""
_SIZE = """
select coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint from pg_class c
where c.relkind = 'r' and c.relnamespace = to_regnamespace(%s)
"""


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    is_standby: bool
    fsync: bool
    synchronous_commit: bool
    """The value in the writer's connection: a direct one enables it."""
    is_pooled: bool
    """Whether the connection for locks and hints uses a pooler that shares sessions."""
    has_direct: bool
    """Whether the settings have such a connection."""
    skew_s: float
    """Seconds by which the database's clock is ahead of the local clock."""
    may_write: bool
    """Whether the user may create the tables, or use the existing ones."""
    format: int | None
    """Format of the tables; None: they do not exist."""
    bytes: int = 0
    rows: Mapping[str, int] = {}
    living: Sequence[str] = ()
    connections: int
    """Maximum number of connections of ordinary users."""
    other_connections: int
    """Connections of other programs."""


def inspect(location: PostgresLocation) -> Inspection:
    """Inspect the database. Raises a `StoreError` if it is unusable."""
    try:
        db = Connection(location)
        try:
            return _inspect(db, location)
        finally:
            db.close()
    except TROUBLE as error:
        raise unreadable(location.label, error) or error from error


def _inspect(db: Connection, location: PostgresLocation) -> Inspection:
    check_format(db)
    [(version, standby, fsync, synchronous, connections, others)] = db.fetch(_SERVER)
    [(may_write,)] = db.fetch(_RIGHTS, location.schema)
    format = _format(db)
    direct = location.direct_url
    return Inspection(
        version=version.split()[0],
        is_standby=standby,
        fsync=fsync,
        synchronous_commit=synchronous,
        is_pooled=direct is not None and shares_sessions(direct, location.connect_s),
        has_direct=direct is not None,
        skew_s=_skew(db),
        may_write=may_write,
        format=format,
        bytes=db.fetch(_SIZE, location.schema)[0][0],
        rows={} if format is None else _rows(db),
        living=[] if format is None else _living(db),
        connections=connections,
        other_connections=others,
    )


def _format(db: Connection) -> int | None:
    [(there,)] = db.fetch("select to_regclass(%s) is not null", f"{db.location.schema}.format")
    found = db.fetch("select version from cg.format") if there else []
    return int(found[0][0]) if found else None


def _rows(db: Connection) -> dict[str, int]:
    counts = {table: db.fetch(f"select count(*) from cg.{table}")[0][0] for table in TABLES}  # noqa: S608
    return {table: count for table, count in counts.items() if count}


def _living(db: Connection) -> list[str]:
    known = [id for (id,) in db.fetch("select id from cg.owners order by started_at")]
    alive = living(db, known)
    return [each for each in known if each in alive]


def _skew(db: Connection) -> float:
    """Return the clock skew, from the fastest of several answers."""
    found = []
    for _ in range(_ROUNDS):
        before = time.time()
        [(there,)] = db.fetch("select extract(epoch from clock_timestamp())::float8")
        after = time.time()
        found.append((after - before, there - (before + after) / 2))
    return float(min(found)[1])


def shares_sessions(url: str, connect_s: float = 5.0) -> bool:
    """Whether two connections share one session of the server, as with a pooler in transaction
    mode. Then locks and notifications do not work.
    """
    with _plain(url, connect_s) as one:
        first = _pid(one)
        if first == one.info.backend_pid:  # a pooler reports its own pid
            return False
        with _plain(url, connect_s) as other:
            pids, others = {first}, set()
            for _ in range(_ROUNDS):
                others.add(_pid(other))
                pids.add(_pid(one))
    return len(pids) > 1 or not pids.isdisjoint(others)


def _plain(url: str, connect_s: float) -> psycopg.Connection[tuple[int]]:
    return psycopg.connect(
        url,
        autocommit=True,
        prepare_threshold=None,
        connect_timeout=max(2, round(connect_s)),
        application_name="callgate",
    )


def _pid(connection: psycopg.Connection[tuple[int]]) -> int:
    [(pid,)] = connection.execute("select pg_backend_pid()").fetchall()
    return pid


_SEQUENCES = {"n": "event_numbers", "touch": "touches", "ord": "session_numbers"}
_TYPES = {
    **dict.fromkeys(("ord", "n", "seq", "touch", "listed", "upto", "value", "fence"), "int8"),
    **dict.fromkeys(("last_seq", "messages"), "int8"),
    **dict.fromkeys(("updated_at", "expires_at"), "float8"),
    "data": "bytea",
}
_UNLIMITED = "set local {} = 0"
_LIMITS = ("statement_timeout", "idle_in_transaction_session_timeout")
"""Time limits to disable: a large table is slow, and one side waits for the other."""


class PostgresMovable:
    """Implements `storage.moving.MovableStore`."""

    def __init__(self, location: PostgresLocation) -> None:
        self._location = location

    @property
    def label(self) -> str:
        return f"{self._location.label} (schema {self._location.schema})"

    def living(self) -> Sequence[str]:
        with self._troubled(), self._connected() as db:
            if not _has_tables(db):
                return []
            known = [id for (id,) in db.fetch("select id from cg.owners order by started_at")]
            living = connections.living(db, known)
            return [each for each in known if each in living]

    def row_counts(self) -> Mapping[str, int]:
        with self._troubled(), self._connected() as db:
            check_format(db)
            return _filled(PostgresContents(db, self.label)) if _has_tables(db) else {}

    @contextmanager
    def reading(self) -> Iterator[PostgresContents]:
        """Open the schema for reading, with all tables locked against changes."""
        with self._troubled(), self._connected() as db:
            self._ensure_primary(db)
            if not _has_tables(db):
                raise NotMovable(f"{self.label} contains no store.")
            migrate(db)
            db.run("begin isolation level repeatable read")
            _lock(db, "share")
            try:
                yield PostgresContents(db, self.label)
            finally:
                with suppress(*TROUBLE):  # nothing was changed
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
                    contents = PostgresContents(db, self.label)
                    counts = _filled(contents)
                    if counts:
                        raise StoreNotEmpty(self.label, counts)
                    yield contents
                    committing = True
            except TROUBLE as error:
                if committing and trouble_of(error) is Trouble.UNREACHABLE:
                    raise MoveInterrupted(
                        self.label, Trouble.UNREACHABLE, outcome_unknown=True
                    ) from error
                raise
            _analyze(db)

    def _ensure_primary(self, db: Connection) -> None:
        [(is_standby,)] = db.fetch("select pg_is_in_recovery()")
        if is_standby:
            raise NotMovable(f"{self.label} is a standby: use the primary.")

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        db = Connection(self._location, self._location.direct_url, patient=True)
        try:
            yield db
        finally:
            db.close()

    @contextmanager
    def _troubled(self) -> Iterator[None]:
        """Convert errors of PostgreSQL to errors of a move."""
        try:
            yield
        except TROUBLE as error:
            trouble = trouble_of(error)
            if trouble is None:
                raise
            raise MoveInterrupted(self.label, trouble) from error


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
    """Update the planner's statistics. The move is done, so failures are ignored."""
    try:
        for table in TABLES:
            db.run(f"analyze cg.{table}")
    except psycopg.Error:
        pass


class PostgresContents:
    """Implements `storage.moving.EmptyContents`, inside a transaction."""

    def __init__(self, db: Connection, label: str) -> None:
        self._db = db
        self._label = label

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
            rows = ((*row, expiry_of(row[-1], self._label)) for row in rows)
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
        """Set the sequences with `alter`, which a rollback undoes, unlike `setval`."""
        for name, sequence in _SEQUENCES.items():
            last = max(1, getattr(numbers, name))
            self._db.run(f"alter sequence cg.{sequence} restart with {int(last)}")
            self._db.fetch(f"select nextval('cg.{sequence}')")  # marks `last_value` as drawn


def _ensure_storable(table: str, row: Row) -> None:
    for value in row:
        if isinstance(value, str) and "\0" in value:
            shown = ascii(row[1] if table in ("sessions", "entries") else row[0])
            raise NotMovable(
                f"{shown} in {table} has a NUL character, which PostgreSQL cannot store."
            )
