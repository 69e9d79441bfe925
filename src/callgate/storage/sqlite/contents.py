"""Checks that each row can be read as what it is. SQLite's own check knows pages, not values."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import apsw

from callgate.core.events import Event
from callgate.core.stored import (
    Pin,
    SharedEntry,
    StoredCall,
    StoredConfirmation,
    StoredMessage,
)
from callgate.storage.sqlite.tables import SESSION, TABLES, integer, session_of, value_of
from callgate.storage.views import Blob

_PAIRS: dict[type[Any], str] = {Pin: "source, tool", SharedEntry: "kind, name"}
"""Kinds of rows whose key is a pair."""
_WITH_STATE = frozenset({StoredCall, StoredConfirmation})
"""Kinds of rows that are also found by their state."""


def check_contents(db: apsw.Connection) -> None:
    """Read every row. Raises one of `problems.DAMAGE` at the first that cannot be read."""
    for row in db.execute(SESSION):
        session_of(row)
    for table, kind in (("events", Event), ("messages", StoredMessage)):
        for id, position, body in db.execute(f"select id, place, body from {table}"):  # noqa: S608
            integer(position)
            found: Any = value_of(body, kind)
            _ensure_key(kind, id, found.id)
    for kind, table in TABLES.items():
        if kind is not Blob:
            for key, found in _keys(db, kind, table):
                _ensure_key(kind, key, found)
    for sha256, data in db.execute("select sha256, data from blobs"):
        _ensure_key(Blob, sha256, hashlib.sha256(data).hexdigest())


def _keys(db: apsw.Connection, kind: type[Any], table: str) -> Iterator[tuple[Any, Any]]:
    """Of each row: what it is found by, in the table and in its value."""
    columns = "id, state" if kind in _WITH_STATE else _PAIRS.get(kind, "id")
    for *key, body in db.execute(f"select {columns}, body from {table}"):  # noqa: S608
        value: Any = value_of(body, kind)
        found = value.key if kind in _PAIRS else (value.key,)
        yield tuple(key), (*found, value.state) if kind in _WITH_STATE else found


def _ensure_key(kind: type[Any], key: Any, found: Any) -> None:
    if key != found:
        raise apsw.CorruptError(f"the columns of a {kind.__name__} disagree")
