"""How values lie in the tables, for those who read them and those who write them."""

from __future__ import annotations

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
    Pin,
    SharedEntry,
    StoredCall,
    StoredConfirmation,
    StoredGrant,
    StoredSession,
)
from callgate.storage.encoding import decode
from callgate.storage.sqlite.schema import POSITION_BITS
from callgate.storage.views import Blob

SESSION = (
    "select ord, id, workspace, parent, owner, fence, last_seq, messages, updated_at, touch,"
    " body from sessions"
)

TOUCH = 9
"""Which of these columns it is."""

_MOST_ROWS = 64
"""In one statement; a power of two."""
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
    Pin: "pins",
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
    """Set what grows with each event: ord, last_seq, messages, updated_at and touch."""
    for some, placeholders in _in_steps(rows):
        db.execute(_COUNT.format(placeholders), some)


def _in_steps(rows: Sequence[tuple[Any, ...]]) -> Iterator[tuple[list[Any], str]]:
    """The values of many rows for few statements, of few sizes, each prepared once.

    With every statement the thread lets go of the interpreter and has to wait for it again: one
    a row would cost more than to write the rows."""
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
"""Of the columns of `SESSION` before its body."""


def session_of(columns: Sequence[Any]) -> tuple[int, StoredSession]:
    """A session and its ord, from the columns of `SESSION`. Raises `apsw.CorruptError`."""
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
"""No event of a session has a greater number."""


def value_of(body: Any, kind: type[S]) -> S:
    """A value from the column that holds it. Raises `apsw.CorruptError`."""
    try:
        return decode(body, kind)
    except (msgspec.DecodeError, TypeError) as error:
        raise apsw.CorruptError(f"a row of {kind.__name__} cannot be read: {error}") from None


def integer(value: Any) -> int:
    """A number from its column. Raises `apsw.CorruptError`."""
    if type(value) is not int:
        raise apsw.CorruptError("a number is none")
    return value


def position_of(ord: int, seq: int) -> int:
    if seq >> POSITION_BITS:
        raise ValueError("a session holds no more events")
    return ord << POSITION_BITS | seq


def seq_of(position: int) -> int:
    return position & ((1 << POSITION_BITS) - 1)


def where_key(kind: type[Any], key: Hashable) -> tuple[str, tuple[Any, ...]]:
    if kind is Pin:
        assert isinstance(key, tuple)
        return "source = ? and tool = ?", key
    if kind is SharedEntry:
        assert isinstance(key, tuple)
        return "kind = ? and name = ?", key
    if kind is Blob:
        return "sha256 = ?", (key,)
    return "id = ?", (key,)
