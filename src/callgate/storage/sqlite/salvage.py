"""Salvage a damaged file: check its contents, and copy the readable rows to a sound file.

SQLite's own check covers pages, not values, so each row is decoded. The damaged file and its log
are copied first and only the copies are opened (a broken first page is rebuilt), so the originals
stay unchanged. Rows in damaged pages are skipped. A session's events keep their order; one event
states the number of missing ones.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import apsw
import msgspec
from msgspec.structs import replace

from callgate.core.events import Event
from callgate.core.ids import ulid
from callgate.core.stored import (
    SharedEntry,
    StoredCall,
    StoredConfirmation,
    StoredMessage,
    StoredSession,
)
from callgate.core.stores import Salvage
from callgate.storage.encoding import decode, encode
from callgate.storage.owners import Owners
from callgate.storage.session_changes import lost_event
from callgate.storage.sqlite.rows import SqliteRows
from callgate.storage.sqlite.tables import (
    DAMAGE,
    POSITION_BITS,
    SESSION,
    TABLES,
    integer,
    make_shrinkable,
    migrate,
    seq_of,
    session_of,
    value_of,
)
from callgate.storage.views import Blob, MessageRow, View

_PAIRS: dict[type[Any], str] = {SharedEntry: "kind, name"}
"""Kinds of rows with a pair as key."""
_WITH_STATE = frozenset({StoredCall, StoredConfirmation})
"""Kinds of rows with an additional index by state."""


def check_contents(db: apsw.Connection) -> None:
    """Read every row. Raises one of `problems.DAMAGE` at the first unreadable one."""
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
    """Yield the key of each row, from the table and from its value."""
    columns = "id, state" if kind in _WITH_STATE else _PAIRS.get(kind, "id")
    for *key, body in db.execute(f"select {columns}, body from {table}"):  # noqa: S608
        value: Any = value_of(body, kind)
        found = value.key if kind in _PAIRS else (value.key,)
        yield tuple(key), (*found, value.state) if kind in _WITH_STATE else found


def _ensure_key(kind: type[Any], key: Any, found: Any) -> None:
    if key != found:
        raise apsw.CorruptError(f"the columns of a {kind.__name__} disagree")


_PAGE_SIZE = 4096


def open_damaged(copy: str) -> tuple[apsw.Connection, bool]:
    """Open a connection; return it, and whether the file itself lists its tables."""
    try:
        return _tried(copy), True
    except DAMAGE:
        _mend_first_page(copy)
    try:
        return _tried(copy), False
    except DAMAGE:  # not one page of it says anything
        return _empty(copy + ".empty"), False


def _empty(path: str) -> apsw.Connection:
    db = apsw.Connection(path)
    migrate(db, path)
    return db


def _tried(copy: str) -> apsw.Connection:
    db = apsw.Connection(copy)
    try:
        db.execute("select * from sqlite_schema").fetchall()
        db.execute(f"{SESSION} limit 0")
    except BaseException as error:
        db.close(force=True)
        if isinstance(error, apsw.SQLError):  # the tables are not in the schema
            raise apsw.CorruptError(str(error)) from None
        raise
    return db


def _mend_first_page(copy: str) -> None:
    """Replace an unreadable first page by that of a new file.

    It lists the first pages of the tables, which depend only on the migrations.
    """
    fresh = copy + ".fresh"
    db = apsw.Connection(fresh)
    if _is_shrinkable(copy):
        make_shrinkable(db)
    migrate(db, fresh)
    size = int(db.pragma("page_size"))
    db.close()
    with open(fresh, "rb") as file:
        page = bytearray(file.read(size))
    pages = -(-os.stat(copy).st_size // size)
    page[18:20] = b"\2\2"  # its changes are in a log
    page[28:32] = pages.to_bytes(4, "big")
    page[32:40] = bytes(8)  # no page is free, as far as we know
    page[92:96] = page[24:28]
    with open(copy, "r+b") as file:
        file.write(page)
        file.truncate(pages * size)


def _is_shrinkable(copy: str) -> bool:
    """Whether the second page is a pointer map, which lists the movable pages."""
    with open(copy, "rb") as file:
        file.seek(_PAGE_SIZE)
        return file.read(1) == b"\1"


_log = logging.getLogger("callgate.store")
_CHUNK = 500
_UNDECODABLE = (msgspec.DecodeError, TypeError, ValueError)
_KEYS = {"entries": "kind {0}, name {0}"}
"""The keys of tables that have no `id`."""


def salvage(path: str) -> Salvage | None:
    """Save the readable rows; None if they cannot be written, or no row is readable."""
    stamp = datetime.fromtimestamp(os.stat(path).st_mtime, UTC).strftime("%Y%m%dT%H%M%SZ")
    saved = f"{path}.saved-{stamp}"
    try:
        with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as directory:
            copy = os.path.join(directory, "damaged.db")
            for suffix in ("", "-wal"):
                if os.path.exists(path + suffix):
                    shutil.copyfile(path + suffix, copy + suffix)
            copied = os.path.join(directory, "saved.db")
            found = _Remains(*open_damaged(copy))
            _write(found, copied)
            os.chmod(copied, 0o600)
            os.replace(copied, saved)
    except (OSError, apsw.Error) as error:
        _log.error("nothing of %s could be saved: %s", path, error)
        return None
    return Salvage(path=saved, rows=dict(found.counts), lost_events=found.lost)


class _Remains:
    """The salvaged rows by session."""

    def __init__(self, db: apsw.Connection, named: bool) -> None:
        """`named`: whether the file itself lists its tables."""
        self.sessions: dict[int, StoredSession] = {}
        self._ids: set[str] = set()
        """Ids of these sessions."""
        self.events: dict[int, dict[int, Event]] = defaultdict(dict)
        self.messages: dict[int, dict[int, StoredMessage]] = defaultdict(dict)
        self.values: list[Any] = []
        self.counts: Counter[str] = Counter()
        self.lost = 0
        self._db = db
        self._dropped: set[int] = set()
        """Missing sessions with remaining rows."""
        self.pruned: dict[int, int] = {}
        """The number of the last pruned event of a session."""
        try:
            if named:
                self._read_pruned()
            self._read()
        finally:
            db.close(force=True)

    def _read_pruned(self) -> None:
        if not self._db.table_exists("main", "pruned_events"):
            return  # the file is older than that
        dropped = self._numbered("dropped_sessions", "ord", "ord from dropped_sessions")
        self._dropped = {ord for ord, _ in dropped}
        self.pruned = dict(self._numbered("pruned_events", "ord", "upto from pruned_events"))

    def _read(self) -> None:
        for row in self._numbered("sessions", "ord", SESSION.removeprefix("select ")):
            try:
                ord, session = session_of(row[1:])
            except DAMAGE:
                continue  # its events tell of it
            self._ids.add(session.id)
            self.sessions[ord] = session
        text = "place, cast(body as blob)"
        for _, position, body in self._numbered("events", "n", f"{text} from events"):
            self._take(self.events, position, body, Event)
        for _, position, body in self._numbered("messages", "place", f"{text} from messages"):
            self._take(self.messages, position, body, StoredMessage)
        for kind, table in TABLES.items():
            if kind is Blob:
                continue
            for body in self._either_end(table):
                try:
                    self.values.append(decode(body, kind))
                except _UNDECODABLE:
                    continue
                self.counts[table] += 1
        for _, sha256, data in self._numbered("blobs", "rowid", "sha256, data from blobs"):
            if type(data) is not bytes or hashlib.sha256(data).hexdigest() != sha256:
                continue
            self.values.append(Blob(sha256, data))
            self.counts["blobs"] += 1
        self._tally()

    def _take(
        self, into: dict[int, dict[int, Any]], position: Any, body: Any, kind: type[Any]
    ) -> None:
        try:
            value = decode(body, kind)
            ord = position >> POSITION_BITS
        except _UNDECODABLE:
            return
        if ord in self._dropped:
            return
        if kind is Event and ord not in self.sessions:
            if value.session_id in self._ids:  # its position is damaged
                return
            self._ids.add(value.session_id)
            self.sessions[ord] = StoredSession(
                id=value.session_id, workspace="", created_at=0.0, updated_at=value.timestamp
            )
        into[ord][seq_of(position)] = value

    def _tally(self) -> None:
        self.counts["sessions"] = len(self.sessions)
        self.counts["events"] = sum(map(len, self.events.values()))
        self.counts["messages"] = sum(map(len, self.messages.values()))
        for ord, session in self.sessions.items():
            last = max(self.events[ord], default=0)
            known = len(self.events[ord]) + self.pruned.get(ord, 0)
            self.lost += max(session.last_seq, last, known) - known

    def _numbered(self, table: str, key: str, columns: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a table with a number as key, except for those in damaged pages."""
        query = f"select {key}, {columns} where {key} > ? order by {key} limit {_CHUNK}"
        after = -1
        while True:
            count = 0
            try:
                for row in self._db.execute(query, (after,)):
                    yield row
                    after, count = row[0], count + 1
            except DAMAGE:
                found = self._beyond(query, after)
                if found is None:
                    return
                after = found
                continue
            if count < _CHUNK:
                return

    def _beyond(self, query: str, after: int) -> int | None:
        """Return the lowest number after the damage, to continue from; None if there is none."""
        low, step = after, 1
        while not self._readable(query, after + step):
            low, step = after + step, step * 2
            if step >> 62:
                return None
        high = after + step
        while high - low > 1:
            middle = (low + high) // 2
            if self._readable(query, middle):
                high = middle
            else:
                low = middle
        return high

    def _readable(self, query: str, after: int) -> bool:
        try:
            self._db.execute(query, (after,)).fetchone()
        except DAMAGE:
            return False
        return True

    def _either_end(self, table: str) -> Iterator[bytes]:
        """Yield rows from the front up to the damage, then from the back down to it."""
        seen: set[bytes] = set()
        for order in ("asc", "desc"):
            keys = _KEYS.get(table, "id {0}").format(order)
            query = f"select cast(body as blob) from {table} order by {keys}"  # noqa: S608
            try:
                for (body,) in self._db.execute(query):
                    if body in seen:
                        break
                    seen.add(body)
                    yield body
                else:
                    return
            except DAMAGE:
                continue
            except apsw.SQLError:  # a table that its format does not have
                return


def _write(found: _Remains, path: str) -> None:
    db = apsw.Connection(path)
    try:
        make_shrinkable(db)
        migrate(db, path)
        rows = SqliteRows(db, path, Owners("", ""))
        for ord, session in found.sessions.items():
            view = _begin(db, rows)
            pruned = found.pruned.get(ord, 0)
            view.describe(replace(session, last_seq=pruned, messages=0, owner=None, turn_id=None))
            view.append(session.id, _without_gaps(session, found.events[ord], pruned))
            messages = sorted(found.messages[ord].items())
            for seq, (_, message) in enumerate(messages, 1):
                view.put(MessageRow(message.id, session.id, seq, encode(message)))
            view.put(replace(view.session(session.id), messages=len(messages)))
            _commit(db, rows, view)
        known = {session.id for session in found.sessions.values()}
        view = _begin(db, rows)
        for value in found.values:
            if getattr(value, "session_id", None) in (None, *known):
                view.put(value)
        _commit(db, rows, view)
        db.pragma("journal_mode", "wal")
    finally:
        db.close(force=True)


def _begin(db: apsw.Connection, rows: SqliteRows) -> View:
    db.execute("begin immediate")
    rows.begin()
    return View(rows)


def _commit(db: apsw.Connection, rows: SqliteRows, view: View) -> None:
    rows.save(view)
    db.execute("commit")


def _without_gaps(session: StoredSession, events: dict[int, Event], before: int) -> list[Event]:
    """`before` is the number of the last pruned event."""
    listed: list[Event] = []
    for seq, event in sorted(events.items()):
        if event.session_id != session.id:
            continue
        if seq > before + 1:
            listed.append(lost_event(session.id, ulid(), seq - before - 1))
        listed.append(event)
        before = seq
    if session.last_seq > before:
        listed.append(lost_event(session.id, ulid(), session.last_seq - before))
    return listed
