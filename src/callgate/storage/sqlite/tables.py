"""How values lie in the tables, for those who read them and those who write them."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from typing import Any

import apsw
import msgspec
from msgspec.structs import replace

from callgate.core.stored import (
    CutSession,
    OutboxRecord,
    Pin,
    StoredCall,
    StoredConfirmation,
    StoredGrant,
    StoredSecret,
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

_log = logging.getLogger("callgate.store")

TABLES: dict[type[Any], str] = {
    StoredCall: "calls",
    StoredConfirmation: "confirmations",
    StoredGrant: "grants",
    Pin: "pins",
    Blob: "blobs",
    OutboxRecord: "outbox",
    CutSession: "cut_sessions",
    StoredSecret: "secrets",
}


def select(db: apsw.Connection, sql: str, values: Sequence[Any] = ()) -> list[Any]:
    return db.execute(sql, values).fetchall()


def session_of(columns: Sequence[Any]) -> tuple[int, StoredSession]:
    """A session and its ord, from the columns of `SESSION`."""
    ord, id, workspace, parent, owner, fence, last_seq, messages, updated_at, _, body = columns
    try:
        described = decode(body, StoredSession)
    except msgspec.DecodeError:
        _log.error("the description of session %s is damaged", id)
        described = StoredSession(
            id=id, workspace=workspace, parent=parent, created_at=updated_at, updated_at=0.0
        )
    session = replace(
        described,
        owner=owner,
        fence=fence,
        last_seq=last_seq,
        messages=messages,
        updated_at=updated_at,
    )
    return ord, session


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
    if kind is Blob:
        return "sha256 = ?", (key,)
    return "id = ?", (key,)
