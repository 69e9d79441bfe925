"""Tables as numbered migrations, the encoding of values in them, and SQLite's errors.

Each migration runs once, in order, in one transaction. A file stores its version in `user_version`.
To change the format, append a migration; never edit a released one. SQLite's errors become errors
of the store.

An event's `place` is its session's `ord` and its seq in one number (`PLACE`), so that one integer
index finds a session's events in order. `n` numbers all events in the order of their commits, which
is a safe cursor because there is a single writer. `touch` numbers the changes of sessions in the
same way. Neither is reused after a deletion: `marks` stores the highest of each. `body` is the
value as JSON; the other columns are for searches and win if both exist.
"""

from __future__ import annotations

import errno
from collections.abc import Hashable, Iterator, Sequence
from functools import cache
from types import NoneType
from typing import Any, TypeVar

import apsw
import msgspec
from msgspec.structs import replace

from callgate.core.stored import (
    CutSession,
    OutboxRecord,
    SharedEntry,
    StoredCall,
    StoredConfirmation,
    StoredGrant,
    StoredSession,
)
from callgate.core.stores import (
    StoreDamaged,
    StoreError,
    StoreTooNew,
    StoreUnreadable,
    StoreUnwritable,
    Trouble,
)
from callgate.storage.encoding import FORGET_ENDED, decode
from callgate.storage.views import Blob

DAMAGE = (
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.FormatError,
    UnicodeDecodeError,  # text of the file that is no text any more
    msgspec.DecodeError,  # a value of the file that is none any more
)

_TROUBLES: tuple[tuple[type[apsw.Error], Trouble], ...] = (
    (apsw.FullError, Trouble.FULL),
    (apsw.ReadOnlyError, Trouble.READ_ONLY),
    (apsw.BusyError, Trouble.BUSY),
    (apsw.LockedError, Trouble.BUSY),
    (apsw.ProtocolError, Trouble.BUSY),
    (apsw.CantOpenError, Trouble.NO_ACCESS),
    (apsw.PermissionsError, Trouble.NO_ACCESS),
    (apsw.AuthError, Trouble.NO_ACCESS),
    (apsw.IOError, Trouble.IO),
    (apsw.NoMemError, Trouble.IO),
    (apsw.NoLFSError, Trouble.IO),
)

TROUBLE = tuple(kind for kind, _ in _TROUBLES)
"""Failures of the disk; any other error is a defect in callgate."""


def from_system(error: OSError) -> apsw.Error:
    """Convert the error of a system call of this package to the error that SQLite would raise."""
    if error.errno == errno.EROFS:
        return apsw.ReadOnlyError(error.strerror)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return apsw.FullError(error.strerror)
    if error.errno == errno.EIO:
        return apsw.IOError(error.strerror)
    return apsw.CantOpenError(error.strerror)


def unwritable(path: str, error: Exception) -> StoreError:
    return _named(path, error, StoreUnwritable)


def unreadable(path: str, error: Exception) -> StoreError:
    return _named(path, error, StoreUnreadable)


def _named(
    path: str, error: Exception, kind: type[StoreUnwritable | StoreUnreadable]
) -> StoreError:
    if isinstance(error, DAMAGE):
        return StoreDamaged(path)
    for raised, trouble in _TROUBLES:
        if isinstance(error, raised):
            return kind(path, trouble)
    return kind(path, Trouble.IO)


APPLICATION_ID = 0x63_67_61_74  # "cgat"
POSITION_BITS = 32
INCREMENTAL = 2
"""Value of `auto_vacuum`: empty pages are released on request."""

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
"""Rows to list for a workspace and to delete with a session, without reading others."""

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
"""Calls that ended before this migration have the audit line of their time, or none. The table
`secrets` is unused: keys are encrypted, in `entries` or in files of the home.
"""

PRUNING = """
create table if not exists dropped_sessions (
    ord integer primary key
) strict;
create table if not exists pruned_events (
    ord integer primary key,
    upto integer not null
) strict;
"""
"""Deleted sessions with remaining rows; and numbers up to which events of others were deleted."""

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
"""Other entries that processes share, and the number of the last change of each kind."""

MIGRATIONS: tuple[str, ...] = (FIRST, FORGET_ENDED, INDEXES, OUTBOX, PRUNING, ENTRIES)


_STATE = """
select u.user_version, a.application_id, exists (select 1 from sqlite_schema)
from pragma_user_version as u, pragma_application_id as a
"""


_SCHEMA = "select type, name, tbl_name, sql from sqlite_schema"


def version_of(db: apsw.Connection, path: str, known: int = len(MIGRATIONS)) -> int:
    """Return the format of a file; 0 for an empty one. Refuse a newer or foreign file."""
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
    """Check that the file is not newer and that its schema is complete.

    Raises `StoreTooNew`, `StoreDamaged` or `apsw.CorruptError`. Callers use it after a rejected
    statement, to find the reason.
    """
    version_of(db, path)
    fresh = apsw.Connection(":memory:")
    try:
        migrate(fresh, path)
        if not {*fresh.execute(_SCHEMA)} <= {*db.execute(_SCHEMA)}:
            raise apsw.CorruptError("the schema is damaged")
    finally:
        fresh.close()


def make_shrinkable(db: apsw.Connection) -> None:
    """Configure an empty file so that it can release empty pages step by step."""
    if db.pragma("auto_vacuum") != INCREMENTAL:  # to set it is to write, also where it is set
        db.pragma("auto_vacuum", INCREMENTAL)


def migrate(db: apsw.Connection, path: str, migrations: Sequence[str] = MIGRATIONS) -> None:
    """Migrate a file to the newest format. A current file is not written."""
    if version_of(db, path, len(migrations)) == len(migrations):
        return
    db.execute("begin immediate")
    try:
        # Again, now that no other process can change it.
        for number in range(version_of(db, path, len(migrations)), len(migrations)):
            db.execute(migrations[number])
            db.pragma("user_version", number + 1)
        db.pragma("application_id", APPLICATION_ID)
        db.execute("commit")
    except BaseException:
        if db.in_transaction:
            db.execute("rollback")
        raise


SESSION = (
    "select ord, id, workspace, parent, owner, fence, last_seq, messages, updated_at, touch,"
    " body from sessions"
)

TOUCH = 9
"""Position of `touch` among these columns."""

_MOST_ROWS = 64
"""Maximum rows of one statement; a power of two."""
_COUNT = """
update sessions set last_seq = new.column2, messages = new.column3, updated_at = new.column4,
 touch = new.column5
from (values {}) as new where sessions.ord = new.column1
"""

S = TypeVar("S", bound=msgspec.Struct)

TABLES: dict[type[Any], str] = {
    StoredCall: "calls",
    StoredConfirmation: "confirmations",
    StoredGrant: "grants",
    Blob: "blobs",
    OutboxRecord: "outbox",
    CutSession: "cut_sessions",
    SharedEntry: "entries",
}


def select(db: apsw.Connection, sql: str, values: Sequence[Any] = ()) -> list[Any]:
    return db.execute(sql, values).fetchall()


def insert(db: apsw.Connection, into: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows; `into` is the statement up to its values."""
    for some, placeholders in _in_steps(rows):
        db.execute(f"{into} values {placeholders}", some)


def count_sessions(db: apsw.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
    """Update fields that change with each event: ord, last_seq, messages, updated_at and touch."""
    for some, placeholders in _in_steps(rows):
        db.execute(_COUNT.format(placeholders), some)


def _in_steps(rows: Sequence[tuple[Any, ...]]) -> Iterator[tuple[list[Any], str]]:
    """Split many rows into few statements of few sizes, each prepared once.

    At each statement the thread releases the interpreter lock and waits for it again, which costs
    more than writing a row.
    """
    at, size = 0, _MOST_ROWS
    while at < len(rows):
        while size > len(rows) - at:
            size //= 2
        some = rows[at : at + size]
        yield [value for row in some for value in row], _placeholders(len(some[0]), size)
        at += size


@cache
def _placeholders(columns: int, rows: int) -> str:
    return ", ".join([f"({', '.join('?' * columns)})"] * rows)


_SESSION_TYPES = (
    (int,),
    (str,),
    (str,),
    (str, NoneType),
    (str, NoneType),
    (int,),
    (int,),
    (int,),
    (float,),
    (int,),
)
"""Types of the columns of `SESSION` before its body."""


def session_of(columns: Sequence[Any]) -> tuple[int, StoredSession]:
    """Return a session and its ord, from the columns of `SESSION`. Raises `apsw.CorruptError`."""
    for value, types in zip(columns, _SESSION_TYPES, strict=False):
        if type(value) not in types:
            raise apsw.CorruptError("a column of a session has a wrong type")
    ord, id, workspace, parent, owner, fence, last_seq, messages, updated_at, _, body = columns
    described = value_of(body, StoredSession)
    if (described.id, described.workspace, described.parent) != (id, workspace, parent):
        raise apsw.CorruptError("the columns of a session disagree")
    session = replace(
        described,
        owner=owner,
        fence=fence,
        last_seq=last_seq,
        messages=messages,
        updated_at=updated_at,
    )
    return ord, session


LAST = (1 << POSITION_BITS) - 1
"""Upper bound for the numbers of a session's events."""


def value_of(body: Any, kind: type[S]) -> S:
    """Decode a value from its column. Raises `apsw.CorruptError`."""
    try:
        return decode(body, kind)
    except (msgspec.DecodeError, TypeError) as error:
        raise apsw.CorruptError(f"a row of {kind.__name__} cannot be read: {error}") from None


def integer(value: Any) -> int:
    """Decode a number from its column. Raises `apsw.CorruptError`."""
    if type(value) is not int:
        raise apsw.CorruptError("a number is missing")
    return value


def position_of(ord: int, seq: int) -> int:
    if seq >> POSITION_BITS:
        raise ValueError("a session holds no more events")
    return ord << POSITION_BITS | seq


def seq_of(position: int) -> int:
    return position & ((1 << POSITION_BITS) - 1)


def where_key(kind: type[Any], key: Hashable) -> tuple[str, tuple[Any, ...]]:
    if kind is SharedEntry:
        assert isinstance(key, tuple)
        return "kind = ? and name = ?", key
    if kind is Blob:
        return "sha256 = ?", (key,)
    return "id = ?", (key,)
