"""What can be said about a store's database, for those who operate it. Nothing is changed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import msgspec
import psycopg

from callgate.storage.moving import TABLES
from callgate.storage.postgres import owners
from callgate.storage.postgres.connections import Connection
from callgate.storage.postgres.location import PostgresLocation
from callgate.storage.postgres.problems import TROUBLE, unreadable
from callgate.storage.postgres.schema import MIGRATIONS, check_format

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
    """Of the connection that writes: a direct one turns it on."""
    is_pooled: bool
    """Whether the connection for locks and hints leads to a pooler that shares sessions."""
    has_direct: bool
    """Whether there is to be such a connection at all."""
    skew_s: float
    """By how much the database's clock is ahead of ours."""
    may_write: bool
    """Whether the rights suffice to make the tables, or to use those that there are."""
    format: int | None
    """None: there are no tables yet."""
    bytes: int = 0
    rows: Mapping[str, int] = {}
    living: Sequence[str] = ()
    connections: int
    """As many as ordinary users may have."""
    other_connections: int
    """Those of other programs."""

    @property
    def is_known_format(self) -> bool:
        return self.format is None or self.format == len(MIGRATIONS)


def inspect(location: PostgresLocation) -> Inspection:
    """Raises a `StoreError` where it cannot be used at all."""
    try:
        db = Connection(location)
        try:
            return _inspect(db, location)
        finally:
            db.close()
    except TROUBLE as error:
        raise unreadable(location.place, error) or error from error


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
    living = owners.living(db, known)
    return [each for each in known if each in living]


def _skew(db: Connection) -> float:
    """From the quickest of a few answers: the clock was read somewhere in between."""
    found = []
    for _ in range(_ROUNDS):
        before = time.time()
        [(there,)] = db.fetch("select extract(epoch from clock_timestamp())::float8")
        after = time.time()
        found.append((after - before, there - (before + after) / 2))
    return float(min(found)[1])


def shares_sessions(url: str, connect_s: float = 5.0) -> bool:
    """Whether statements of two connections meet in one session of the server, as behind a pooler
    in transaction mode: locks and notifications do not work there."""
    with _plain(url, connect_s) as one:
        first = _pid(one)
        if first == one.info.backend_pid:  # a pooler gives a number of its own
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
