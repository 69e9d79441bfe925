"""The table of sessions, for readers and writers."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from msgspec.structs import replace
from psycopg.errors import Diagnostic

from callgate.core.stored import StoredSession
from callgate.core.stores import StoreTooNew
from callgate.features.fleet.postgres.connections import Connection
from callgate.storage.encoding import decode

SESSION = (
    "select ord, id, workspace, parent, owner, fence, last_seq, messages, updated_at, touch, body"
    " from cg.sessions"
)
TOUCH = 9
"""Index of the column `touch`."""
DRIFT = 5_000
"""A session's `listed` is fewer than this many changes behind its `touch`."""


def session_of(row: Sequence[Any]) -> StoredSession:
    """Return a session from the columns of `SESSION`."""
    _, _, workspace, parent, owner, fence, last_seq, messages, updated_at, _, body = row
    return replace(
        decode(body, StoredSession),
        workspace=workspace,
        parent=parent,
        owner=owner,
        fence=fence,
        last_seq=last_seq,
        messages=messages,
        updated_at=updated_at,
    )


_log = logging.getLogger("callgate.store")

FIRST = """
create table cg.sessions (
    ord bigint primary key,
    id text collate "C" not null unique,
    workspace text collate "C" not null,
    parent text collate "C",
    owner text collate "C",
    fence bigint not null,
    last_seq bigint not null,
    messages bigint not null,
    updated_at double precision not null,
    touch bigint not null,
    listed bigint not null,
    body text not null
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
create index sessions_by_listed on cg.sessions (listed);
create index sessions_by_owner on cg.sessions (owner) where owner is not null;
create index sessions_by_parent on cg.sessions (parent) where parent is not null;
create index sessions_by_workspace on cg.sessions (workspace, listed);

create sequence cg.session_numbers as bigint cache 1;
create sequence cg.event_numbers as bigint cache 1;
create sequence cg.touches as bigint cache 1;
select nextval('cg.event_numbers'), nextval('cg.touches'); -- else `last_value` is not yet drawn

create table cg.events (
    ord bigint not null,
    seq bigint not null,
    n bigint not null,
    id text collate "C" not null unique,
    body text not null,
    primary key (ord, seq)
);
create unique index events_by_number on cg.events (n);

create table cg.messages (
    ord bigint not null,
    seq bigint not null,
    id text collate "C" not null unique,
    body text not null,
    primary key (ord, seq)
);

create table cg.calls (
    id text collate "C" primary key,
    ord bigint not null,
    state text collate "C" not null,
    owner text collate "C" not null,
    body text not null
) with (fillfactor = 70);
create index open_calls_by_owner on cg.calls (owner) where state <> 'ended';
create index calls_by_session on cg.calls (ord);

create table cg.confirmations (
    id text collate "C" primary key,
    ord bigint not null,
    state text collate "C" not null,
    expires_at double precision not null,
    body text not null
);
create index open_confirmations on cg.confirmations (expires_at) where state = 'pending';
create index confirmations_by_session on cg.confirmations (ord);

create table cg.grants (
    id text collate "C" primary key,
    ord bigint not null,
    body text not null
);
create index grants_by_session on cg.grants (ord);

create table cg.pins (
    source text collate "C" not null,
    tool text collate "C" not null,
    body text not null,
    primary key (source, tool)
);

create table cg.blobs (
    sha256 text collate "C" primary key,
    data bytea not null
);

create table cg.outbox (
    id text collate "C" primary key,
    owner text collate "C" not null,
    body text not null
);

create table cg.cut_sessions (
    id text collate "C" primary key,
    body text not null
);

create table cg.secrets (
    id text collate "C" primary key,
    body text not null
);

create table cg.entries (
    kind text collate "C" not null,
    name text collate "C" not null,
    body text not null,
    primary key (kind, name)
);

create table cg.entry_kinds (
    kind text collate "C" primary key,
    touch bigint not null
);

create table cg.marks (
    name text collate "C" primary key,
    value bigint not null
);

create table cg.dropped_sessions (
    ord bigint primary key
);

create table cg.pruned_events (
    ord bigint primary key,
    upto bigint not null
);

create table cg.owners (
    id text collate "C" primary key,
    key bigint not null,
    locks boolean not null,
    started_at timestamptz not null default clock_timestamp(),
    beat_at timestamptz not null default clock_timestamp(),
    dead boolean not null default false,
    format int not null, -- the newest that it knows
    boot text not null
);

create table cg.boots (
    id text primary key,
    since timestamptz not null default clock_timestamp()
);
"""


EXPOSED_KEYS = """
do $$ begin
    if exists (select 1 from cg.secrets) then
        raise warning 'The keys of the servers were stored in plain text and are replaced: '
            'every token, cookie and login link of before is void.';
    end if;
end $$;
drop table cg.secrets;
"""
"""Every role with read access to the table could create tokens for all servers. The keys are
replaced, and stored encrypted as entries of kind `secret`. A program of format 1 would write plain
keys again.
"""


WITNESSES = """
alter table cg.owners add column steady_since timestamptz not null default clock_timestamp();
"""
"""Adds the time since which a process has been heard of without a pause."""


class Migration(NamedTuple):
    sql: str
    oldest: int
    """The oldest format whose programs can use the tables after it."""


MIGRATIONS: tuple[Migration, ...] = (
    Migration(FIRST, 1),
    Migration(EXPOSED_KEYS, 2),
    Migration(WITNESSES, 2),
)
FORMAT = len(MIGRATIONS)


def migrate(db: Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Migrate the schema to the present format. If it is up to date, nothing is written."""
    if _version(db, len(migrations)) >= len(migrations):
        return
    # An index of a large table is slow.
    with db.patient(), _warnings_logged(db), db.transaction():
        # One process at a time; others see only the complete migration.
        db.run("select pg_advisory_xact_lock(%s)", db.schema_lock)
        _make_schema(db)
        for number in range(_version(db, len(migrations)), len(migrations)):
            sql, oldest = migrations[number]
            db.run_script(sql)
            db.run("delete from cg.format")
            db.run("insert into cg.format values (%s, %s)", number + 1, oldest)
            # Stops commits of processes that cannot use these tables.
            db.run("update cg.owners set dead = true where format < %s", oldest)


@contextmanager
def _warnings_logged(db: Connection) -> Iterator[None]:
    """Log the warnings of migrations."""

    def log(notice: Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            _log.warning("%s: %s", db.location.label, notice.message_primary)

    db.psycopg.add_notice_handler(log)
    try:
        yield
    finally:
        db.psycopg.remove_notice_handler(log)


def _make_schema(db: Connection) -> None:
    """Create the schema if it is missing. `if not exists` would need the right to create one in
    any case.
    """
    [(there,)] = db.fetch("select to_regnamespace(%s) is not null", f'"{db.location.schema}"')
    if not there:
        db.run(f'create schema "{db.location.schema}"')
    db.run("create table if not exists cg.format (version int not null, oldest int not null)")


def check_format(db: Connection) -> None:
    """Raise `StoreTooNew` if a newer callgate made the tables unusable. Missing tables are
    accepted.
    """
    _version(db, FORMAT)


def _version(db: Connection, known: int) -> int:
    [(there,)] = db.fetch("select to_regclass(%s) is not null", f"{db.location.schema}.format")
    found = db.fetch("select version, oldest from cg.format") if there else []
    if not found:
        return 0
    [(version, oldest)] = found
    if oldest > known:
        raise StoreTooNew(db.location.label, version, known)
    return int(version)
