"""The tables, as numbered migrations: each runs once, in order, in one transaction.

A file remembers in `user_version` how far it is. To change the format, append a migration;
never edit one that has been released.

An event's `place` is its session's `ord` and its seq in one number (`PLACE`), so that one
integer index finds a session's events in order. `n` numbers all events in the order of their
commits, which the one writer at a time makes safe as a cursor. `touch` numbers the changes of
sessions the same way. Neither is used again after a deletion: `marks` holds how far each
had come by then. `body` is the value as JSON; the columns beside it are those that are
searched, and where both exist the column counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from callgate.core.stores import StoreDamaged, StoreTooNew
from callgate.storage.forgetting import FORGET_ENDED

APPLICATION_ID = 0x63_67_61_74  # "cgat"
POSITION_BITS = 32
INCREMENTAL = 2
"""Of `auto_vacuum`: empty pages are given back when that is asked for."""

FIRST = """
create table sessions (
    ord integer primary key autoincrement,
    id text not null unique,
    workspace text not null,
    parent text,
    owner text,
    fence integer not null,
    last_seq integer not null,
    messages integer not null,
    updated_at real not null,
    touch integer not null,
    body text not null
) strict;
create unique index sessions_by_touch on sessions (touch);
create index sessions_by_owner on sessions (owner) where owner is not null;
create index sessions_by_parent on sessions (parent) where parent is not null;

create table events (
    n integer primary key,
    place integer not null unique,
    id text not null unique,
    body text not null
) strict;

create table messages (
    place integer primary key,
    id text not null unique,
    body text not null
) strict;

create table calls (
    id text primary key,
    ord integer not null,
    state text not null,
    owner text not null,
    body text not null
) strict, without rowid;
create index open_calls_by_owner on calls (owner) where state <> 'ended';
create index open_calls_by_session on calls (ord) where state <> 'ended';

create table confirmations (
    id text primary key,
    ord integer not null,
    state text not null,
    body text not null
) strict, without rowid;
create index open_confirmations on confirmations (ord) where state = 'pending';

create table grants (
    id text primary key,
    ord integer not null,
    body text not null
) strict, without rowid;
create index grants_by_session on grants (ord);

create table pins (
    source text not null,
    tool text not null,
    body text not null,
    primary key (source, tool)
) strict, without rowid;

create table blobs (
    sha256 text primary key,
    data blob not null
) strict;

create table marks (
    name text primary key,
    value integer not null
) strict;
"""

INDEXES = """
create index if not exists sessions_by_workspace on sessions (workspace, touch, parent);
create index if not exists calls_by_session on calls (ord);
create index if not exists confirmations_by_session on confirmations (ord);
"""
"""What is listed for a workspace, and what is deleted with a session, without reading the rest."""

OUTBOX = """
create table if not exists outbox (
    id text primary key,
    owner text not null,
    body text not null
) strict, without rowid;

create table if not exists cut_sessions (
    id text primary key,
    body text not null
) strict, without rowid;

create table if not exists secrets (
    id text primary key,
    body text not null
) strict, without rowid;

insert or ignore into marks select 'audited', ifnull(max(n), 0) from events;
"""
"""Calls that ended before this have a line, or none, as they were written then. The table
`secrets` is not used any more: keys are encrypted, in `entries` or in files of the home."""

PRUNING = """
create table if not exists dropped_sessions (
    ord integer primary key
) strict;
create table if not exists pruned_events (
    ord integer primary key,
    upto integer not null
) strict;
"""
"""Sessions that are gone while rows of theirs are left; and how far events of others are gone."""

ENTRIES = """
create table if not exists entries (
    kind text not null,
    name text not null,
    body text not null,
    primary key (kind, name)
) strict, without rowid;
create table if not exists entry_kinds (
    kind text primary key,
    touch integer not null
) strict, without rowid;
"""
"""What processes share beside sessions, and the number of the last change of each kind."""

MIGRATIONS: tuple[str, ...] = (FIRST, FORGET_ENDED, INDEXES, OUTBOX, PRUNING, ENTRIES)


_STATE = """
select u.user_version, a.application_id, exists (select 1 from sqlite_schema)
from pragma_user_version as u, pragma_application_id as a
"""


_SCHEMA = "select type, name, tbl_name, sql from sqlite_schema"


def version_of(db: apsw.Connection, path: str, known: int = len(MIGRATIONS)) -> int:
    """The format of a file; 0 for an empty one. Refuses what is newer, or not ours."""
    # All of it at one moment: another process may be making the tables right now.
    state = db.execute(_STATE).fetchone()
    assert state is not None
    version, application, filled = state
    if version > known:
        raise StoreTooNew(path, version, known)
    if filled and application != APPLICATION_ID:
        raise StoreDamaged(path)
    return int(version)


def ensure_schema(db: apsw.Connection, path: str) -> None:
    """Say why a statement of ours means nothing to a file: it is newer, or its schema is damaged.
    Raises `StoreTooNew`, `StoreDamaged` or `apsw.CorruptError`."""
    version_of(db, path)
    fresh = apsw.Connection(":memory:")
    try:
        migrate(fresh, path)
        if not {*fresh.execute(_SCHEMA)} <= {*db.execute(_SCHEMA)}:
            raise apsw.CorruptError("the schema is damaged")
    finally:
        fresh.close()


def make_shrinkable(db: apsw.Connection) -> None:
    """Have a file that is still empty give back its empty pages later, step by step."""
    if db.pragma("auto_vacuum") != INCREMENTAL:  # to set it is to write, also where it is set
        db.pragma("auto_vacuum", INCREMENTAL)


def migrate(db: apsw.Connection, path: str, migrations: Sequence[str] = MIGRATIONS) -> None:
    """Bring a file to the newest format. Where it is, nothing is written."""
    if version_of(db, path, len(migrations)) == len(migrations):
        return
    db.execute("begin immediate")
    try:
        # Again, now that nobody else can change it.
        for number in range(version_of(db, path, len(migrations)), len(migrations)):
            db.execute(migrations[number])
            db.pragma("user_version", number + 1)
        db.pragma("application_id", APPLICATION_ID)
        db.execute("commit")
    except BaseException:
        if db.in_transaction:
            db.execute("rollback")
        raise
