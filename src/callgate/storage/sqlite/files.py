"""Creating, opening and checking the file. A damaged file is never changed.

While SQLite has the file open in this process, no other code may open and close it: closing
any descriptor of a file drops the locks that SQLite holds on it.
"""

from __future__ import annotations

import os
import random
import stat
import time
import urllib.parse
from collections.abc import Callable
from typing import TypeVar

import apsw
import msgspec

from callgate.core.local.disk import ensure_locks, make_private_directory
from callgate.core.stores import StoreDamaged, StoreUnwritable, Trouble
from callgate.storage.sqlite.tables import (
    DAMAGE,
    MIGRATIONS,
    TROUBLE,
    ensure_schema,
    from_system,
    make_shrinkable,
    migrate,
    unreadable,
    unwritable,
    version_of,
)

WAIT_S = 30.0
"""Maximum wait for the writers of other processes."""
CHECKPOINT_PAGES = 4_000
KEPT_WAL_BYTES = 64 << 20
_READER_CACHE_KIB = 8_000
"""Cache of each reading connection: a command that reads a large session fills it."""

REQUESTS = ".wake"
"""Suffix of the sockets in `run/` on which writers receive requests of readers."""

T = TypeVar("T")


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """Location of a store, with the parameters to open it."""

    home: str
    vfs: str | None = None
    """Name of a SQLite VFS other than the default."""
    wait_s: float = WAIT_S

    @property
    def path(self) -> str:
        return os.path.join(self.home, "callgate.db")

    @property
    def owners(self) -> str:
        return os.path.join(self.home, "run")

    @property
    def damage_mark(self) -> str:
        """File that exists after damage was found, so that the next start checks the whole file."""
        return self.path + "-damaged"


def check(location: Location) -> None:
    """Check that an existing file is usable, and migrate it to the current format.

    Raises `StoreTooNew`, `StoreDamaged` with the saved copy, or `StoreUnwritable` for an older file
    that cannot be migrated. Unreadable or unwritable disks do not fail here: each read and commit
    reports them.
    """
    if not os.path.exists(location.path):
        return
    ensure_file(location)
    migrating = False
    try:
        if 0 < _check(location) < len(MIGRATIONS):
            migrating = True
            open_writer(location).close()
    except DAMAGE:
        from callgate.storage.sqlite.salvage import salvage  # lazy: heavy, for a damaged store  # noqa: PLC0415

        raise StoreDamaged(location.path, salvage(location.path)) from None
    except TROUBLE as error:
        if migrating:
            raise unwritable(location.path, error) from error


def _check(location: Location) -> int:
    db = apsw.Connection(location.path, flags=apsw.SQLITE_OPEN_READWRITE, vfs=location.vfs)
    try:
        _configure(db, location)
        version = version_of(db, location.path)
        if version:
            _look(db, location)
        if os.path.exists(location.damage_mark):
            _check_whole(db, location)
        return version
    finally:
        db.close(force=True)


def _look(db: apsw.Connection, location: Location) -> None:
    try:
        db.execute("select max(touch) from sessions").fetchall()
    except apsw.SQLError:
        ensure_schema(db, location.path)
        raise


def _check_whole(db: apsw.Connection, location: Location) -> None:
    from callgate.storage.sqlite.salvage import check_contents  # lazy: heavy, after damage  # noqa: PLC0415

    found = [row[0] for row in db.execute("pragma integrity_check(1)")]
    if found != ["ok"]:
        raise apsw.CorruptError(found[0])
    if version_of(db, location.path) == len(MIGRATIONS):
        check_contents(db)
    try:
        os.unlink(location.damage_mark)
    except OSError:  # then the next start looks once more
        pass


def inspect(location: Location) -> None:
    """Check the whole file, without any change. Raises like `check` and `SqliteStore.open`.

    Raises `StoreUnreadable` if the file cannot be opened.
    """
    ensure_locks(location.home)
    if not os.path.exists(location.path):
        return
    ensure_file(location)
    try:
        db = apsw.Connection(location.path, flags=apsw.SQLITE_OPEN_READWRITE, vfs=location.vfs)
        try:
            _configure(db, location)
            db.pragma("query_only", True)
            if version_of(db, location.path):
                _check_whole(db, location)
        finally:
            db.close(force=True)
    except DAMAGE:
        mark_damage(location)  # so that the next start saves what can be read
        raise StoreDamaged(location.path) from None
    except TROUBLE as error:
        raise unreadable(location.path, error) from error


def mark_damage(location: Location) -> None:
    try:
        os.close(os.open(location.damage_mark, os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError:  # then the next start finds the damage where this one did
        pass


def ensure_file(location: Location) -> None:
    """Refuse anything but a regular file: opening a pipe would block."""
    if not stat.S_ISREG(os.stat(location.path).st_mode):
        raise StoreUnwritable(location.path, Trouble.NO_ACCESS)


def open_writer(location: Location) -> apsw.Connection:
    """Open a writing connection; creates a missing file."""
    _make(location)
    ensure_file(location)
    db = apsw.Connection(location.path, flags=apsw.SQLITE_OPEN_READWRITE, vfs=location.vfs)
    try:
        _configure(db, location)
        if db.readonly("main"):
            raise apsw.ReadOnlyError(location.path)
        make_shrinkable(db)
        patiently(location, lambda: db.pragma("journal_mode", "wal"))
        db.pragma("synchronous", "full")
        db.pragma("secure_delete", True)  # a deleted conversation is gone
        db.pragma("journal_size_limit", KEPT_WAL_BYTES)
        db.wal_autocheckpoint(CHECKPOINT_PAGES)
        migrate(db, location.path)
        if _in_log(location):  # what a process left that did not end well
            shorten_log(db, location)
    except BaseException:
        db.close(force=True)
        raise
    return db


def shorten_log(db: apsw.Connection, location: Location) -> bool:
    """Truncate the log, so that it has no overwritten or deleted data; False if there are readers.

    `secure_delete` removes the data from the file; the log still has the previous pages.
    """
    db.set_busy_handler(None)  # do not wait
    try:
        db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except (apsw.BusyError, apsw.LockedError):
        return False
    finally:
        db.set_busy_handler(_Patience(location.wait_s))
    return True


def open_reader(location: Location) -> apsw.Connection:
    """Open a read-only connection; an empty store if the file is missing or empty.

    Normal reading creates files next to the database. On a read-only disk, the file is read in its
    present state, if nothing of it is in the log; `lasting` is False then.
    """
    if not os.path.exists(location.path):
        return _empty(location)
    ensure_file(location)
    try:
        db = _reader(location, location.path, apsw.SQLITE_OPEN_READWRITE)
    except TROUBLE:
        if _in_log(location):
            raise
        as_it_stands = f"file:{urllib.parse.quote(location.path)}?immutable=1"
        db = _reader(location, as_it_stands, apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
    if db.pragma("user_version") == 0:  # someone is about to make it
        db.close()
        return _empty(location)
    return db


def lasting(db: apsw.Connection) -> bool:
    """Return whether the connection of a reader will see later commits."""
    return bool(db.filename) and not db.readonly("main")


def patiently(location: Location, act: Callable[[], T]) -> T:
    """Retry an action for which SQLite does not wait on other connections."""
    patience, tries = _Patience(location.wait_s), 0
    while True:
        try:
            return act()
        except (apsw.BusyError, apsw.LockedError):
            if not patience(tries):
                raise
            tries += 1


def _reader(location: Location, name: str, flags: int) -> apsw.Connection:
    db = apsw.Connection(name, flags=flags, vfs=location.vfs)
    try:
        _configure(db, location)
        db.pragma("cache_size", -_READER_CACHE_KIB)
        db.pragma("query_only", True)
        db.execute("select 1 from sqlite_schema").fetchall()  # opens the file
    except BaseException:
        db.close(force=True)
        raise
    return db


def _in_log(location: Location) -> bool:
    try:
        return os.stat(location.path + "-wal").st_size > 0
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _configure(db: apsw.Connection, location: Location) -> None:
    db.set_busy_handler(_Patience(location.wait_s))
    db.pragma("trusted_schema", False)
    db.pragma("cell_size_check", True)
    db.pragma("cache_size", -16_000)


class _Patience:
    """Busy handler of SQLite: try again shortly, but not forever."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._until = 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self._until = now + self._wait_s
        if now >= self._until:
            return False
        time.sleep(random.uniform(0.0005, 0.002))  # noqa: S311  # so that no two keep step
        return True


def _make(location: Location) -> None:
    try:
        make_private_directory(location.home)
        os.close(os.open(location.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        _make_private(location.path)
    except OSError as error:
        raise from_system(error) from error


def _make_private(path: str) -> None:
    try:
        mode = os.lstat(path).st_mode  # what a link leads to is not ours to change
        if stat.S_ISREG(mode) and mode & 0o077:
            os.chmod(path, 0o600)
    except OSError:  # not ours, or a disk that cannot be written: opening it tells
        pass


def _empty(location: Location) -> apsw.Connection:
    db = apsw.Connection(":memory:")
    migrate(db, location.path)
    return db
