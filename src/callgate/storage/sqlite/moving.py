"""Work on the whole file: move its contents (`storage.moving`), or rewrite it.

An older file needs one complete rewrite before it can shrink step by step.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice

import apsw

from callgate.core.stores import StoreDamaged, StoreUnwritable, Trouble
from callgate.storage.moving import (
    NUMBERS,
    TABLES,
    EmptyContents,
    MoveInterrupted,
    NotMovable,
    Numbers,
    Row,
    StoreNotEmpty,
)
from callgate.storage.owners import Owners
from callgate.storage.sqlite.files import (
    Location,
    check,
    mark_damage,
    open_reader,
    open_writer,
    shorten_log,
)
from callgate.storage.sqlite.salvage import salvage
from callgate.storage.sqlite.tables import (
    DAMAGE,
    INCREMENTAL,
    POSITION_BITS,
    TROUBLE,
    insert,
    position_of,
    select,
    unwritable,
)


def vacuum(location: Location) -> None:
    """Rewrite the file without empty pages, so that it can later shrink step by step.

    No other process may write during this, so it is refused while another process uses the store.
    It temporarily needs the same disk space again.
    """
    names = os.listdir(location.owners) if os.path.isdir(location.owners) else []
    owners = Owners(location.owners, "")
    if any(owners.alive(each.removesuffix(".lock")) for each in names if each.startswith("own_")):
        raise StoreUnwritable(location.path, Trouble.BUSY)
    try:
        db = open_writer(location)
        try:
            db.pragma("auto_vacuum", INCREMENTAL)
            db.execute("vacuum")
            shorten_log(db, location)
        finally:
            db.close()
    except TROUBLE as error:
        raise unwritable(location.path, error) from error


_BATCH = 512
_SEQ = f"place & {(1 << POSITION_BITS) - 1}"
_ORD = f"place >> {POSITION_BITS}"
_EXPRESSIONS = {"events": {"ord": _ORD, "seq": _SEQ}, "messages": {"ord": _ORD, "seq": _SEQ}}
_MOST_SESSIONS = 1 << (63 - POSITION_BITS)
"""A number of a session that this file cannot represent."""


class SqliteMovable:
    """Implements `storage.moving.MovableStore`."""

    def __init__(self, location: Location) -> None:
        self._location = location

    @property
    def label(self) -> str:
        return self._location.path

    def living(self) -> Sequence[str]:
        directory = self._location.owners
        names = sorted(os.listdir(directory)) if os.path.isdir(directory) else []
        owners = Owners(directory, "")
        found = [name.removesuffix(".lock") for name in names if name.startswith("own_")]
        return [each for each in found if owners.alive(each)]

    def row_counts(self) -> Mapping[str, int]:
        with self._troubled():
            db = open_reader(self._location)
            try:
                found = SqliteContents(db, self.label)
                return _filled(found)
            finally:
                db.close(force=True)

    @contextmanager
    def reading(self) -> Iterator[SqliteContents]:
        """Lock the file for writing, so that no process adds rows during the move."""
        with self._troubled():
            check(self._location)  # reports a damaged or too new file
            if not os.path.exists(self._location.path):
                raise NotMovable(f"{self.label} does not exist.")
            db = self._open_locked()
            try:
                self._ensure_whole(db)
                yield SqliteContents(db, self.label)
            finally:
                if db.in_transaction:
                    db.execute("rollback")
                db.close(force=True)

    def _open_locked(self) -> apsw.Connection:
        try:
            db = open_writer(self._location)
        except apsw.ReadOnlyError:  # then no process writes
            db = open_reader(self._location)
            db.execute("begin")
            return db
        try:
            db.execute("begin immediate")
        except BaseException:
            db.close(force=True)
            raise
        return db

    def _ensure_whole(self, db: apsw.Connection) -> None:
        found = [row[0] for row in db.execute("pragma integrity_check(1)")]
        if found != ["ok"]:
            raise apsw.CorruptError(found[0])

    @contextmanager
    def writing(self) -> Iterator[EmptyContents]:
        with self._troubled():
            db = open_writer(self._location)
            try:
                db.execute("begin immediate")
                contents = SqliteContents(db, self.label)
                filled = _filled(contents)
                if filled:
                    raise StoreNotEmpty(self.label, filled)
                db.execute("delete from marks")  # marks of an empty file
                yield contents
                db.execute("commit")
                shorten_log(db, self._location)
            finally:
                if db.in_transaction:
                    db.execute("rollback")
                db.close(force=True)

    @contextmanager
    def _troubled(self) -> Iterator[None]:
        """Translate SQLite's errors into errors of a move."""
        try:
            yield
        except DAMAGE:
            mark_damage(self._location)
            raise StoreDamaged(self.label, salvage(self.label)) from None
        except TROUBLE as error:
            named = unwritable(self.label, error)
            if not hasattr(named, "reason"):
                raise named from error
            raise MoveInterrupted(self.label, named.reason) from error


def _filled(contents: SqliteContents) -> dict[str, int]:
    """Return the number of rows, without the marks that every file has."""
    counts = {table: contents.count(table) for table in TABLES if table != "marks"}
    return {table: count for table, count in counts.items() if count}


class SqliteContents:
    """Implements `storage.moving.EmptyContents`, inside a transaction."""

    def __init__(self, db: apsw.Connection, label: str) -> None:
        self._db = db
        self._label = label

    def count(self, table: str) -> int:
        [(count,)] = select(self._db, f"select count(*) from {table} where {_where(table)}")  # noqa: S608
        return int(count)

    def rows(self, table: str) -> Iterator[Row]:
        described = TABLES[table]
        expressions = _EXPRESSIONS.get(table, {})
        columns = ", ".join(expressions.get(name, name) for name in described.columns)
        keys = "place" if table == "messages" else ", ".join(described.keys)
        found = self._db.execute(
            f"select {columns} from {table} where {_where(table)} order by {keys}"  # noqa: S608
        )
        try:
            yield from found
        except UnicodeDecodeError:
            raise apsw.CorruptError(f"a text in {table}") from None

    def numbers(self) -> Numbers:
        marks = dict(select(self._db, "select name, value from marks"))
        [(n, touch, ord)] = select(
            self._db,
            "select (select ifnull(max(n), 0) from events),"
            " max((select ifnull(max(touch), 0) from sessions),"
            " (select ifnull(max(touch), 0) from entry_kinds)),"
            " (select ifnull(max(seq), 0) from sqlite_sequence where name = 'sessions')",
        )
        return Numbers(max(n, marks.get("n", 0)), max(touch, marks.get("touch", 0)), ord)

    def write(self, table: str, rows: Iterable[Row]) -> None:
        into = f"insert into {table}"
        if table == "sessions":
            into = f"{into} ({', '.join(TABLES[table].columns)})"
        found = iter(rows)
        size = 8 if table == "blobs" else _BATCH
        while batch := [*islice(found, size)]:
            if table in _EXPRESSIONS:
                batch = [_placed(table, row) for row in batch]
            insert(self._db, into, batch)

    def set_numbers(self, numbers: Numbers) -> None:
        insert(self._db, "insert into marks", [("n", numbers.n), ("touch", numbers.touch)])
        self._db.execute("delete from sqlite_sequence where name = 'sessions'")
        insert(self._db, "insert into sqlite_sequence", [("sessions", numbers.ord)])


def _where(table: str) -> str:
    if table != "marks":
        return "true"
    return f"name not in ({', '.join(repr(name) for name in NUMBERS)})"


def _placed(table: str, row: Row) -> Row:
    *before, ord, seq, id, body = row
    if ord >= _MOST_SESSIONS:
        raise NotMovable(f"The file has no room for the number {ord} of a session.")
    try:
        return (*before, position_of(ord, seq), id, body)
    except ValueError:
        raise NotMovable(f"A session has too many events for a file: {seq}.") from None
