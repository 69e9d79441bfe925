"""A batch of commits in one transaction of SQLite."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

import apsw

from callgate.core.stores import StoreError
from callgate.storage.commits import BatchWriter, Commit, Outcome, Tell, apply_all, log
from callgate.storage.owners import Owners
from callgate.storage.sqlite.files import Location, mark_damage, open_writer, shorten_log
from callgate.storage.sqlite.problems import DAMAGE, TROUBLE, from_system, unwritable
from callgate.storage.sqlite.rows import SqliteRows
from callgate.storage.sqlite.saving import Repeated
from callgate.storage.sqlite.schema import ensure_schema


class Writer(BatchWriter):
    def __init__(
        self, location: Location, owners: Owners, tell: Tell, before_commit: Callable[[], None]
    ) -> None:
        super().__init__(tell, before_commit)
        self._location = location
        self._owners = owners
        self._db: apsw.Connection | None = None
        self._rows: SqliteRows | None = None
        self._file: os.stat_result | None = None
        self._damaged: StoreError | None = None

    def _after_batch(self, changed: Mapping[str, int]) -> None:
        """Shorten the log. Where others read just now, the next batch tries again."""
        if self._db is None or self._rows is None or not self._rows.left_in_log:
            return
        try:
            self._rows.left_in_log = not shorten_log(self._db, self._location)
        except TROUBLE:  # the next commit finds out whether things are better
            log.debug("the log could not be shortened", exc_info=True)

    def _transact(self, batch: list[Commit]) -> tuple[list[Outcome], dict[str, int]]:
        if self._damaged is not None:
            raise self._damaged
        try:
            db, rows = self._connect()
            try:
                try:
                    return transact(db, rows, batch, look=False)
                except Repeated:
                    return transact(db, rows, batch, look=True)
            except apsw.SQLError:
                ensure_schema(db, self._location.path)
                raise
        except DAMAGE as error:
            self._disconnect()
            mark_damage(self._location)
            self._damaged = unwritable(self._location.path, error)
            raise self._damaged from error
        except TROUBLE as error:
            if not isinstance(error, apsw.FullError | apsw.BusyError):
                self._disconnect()  # the next commit finds out whether things are better
            raise unwritable(self._location.path, error) from error

    def _connect(self) -> tuple[apsw.Connection, SqliteRows]:
        if self._db is not None and not self._in_place():
            self._disconnect()  # whoever waits is told; the next commit makes a new file
            raise apsw.CantOpenError("the file was removed")
        if self._db is None or self._rows is None:
            self._db = open_writer(self._location)
            self._rows = SqliteRows(self._db, self._location.path, self._owners)
            self._file = os.stat(self._location.path)
        try:
            self._owners.declare()
        except OSError as error:
            raise from_system(error) from error
        return self._db, self._rows

    def _in_place(self) -> bool:
        """Whether the file that is open is the one that others find at its path."""
        try:
            return self._file is not None and os.path.samestat(
                self._file, os.stat(self._location.path)
            )
        except OSError:
            return False

    def _disconnect(self) -> None:
        db, self._db, self._rows = self._db, None, None
        if db is not None:
            try:
                db.close()
            except apsw.Error:
                log.debug("closing after an error", exc_info=True)


def transact(
    db: apsw.Connection, rows: SqliteRows, batch: Sequence[Commit], *, look: bool
) -> tuple[list[Outcome], dict[str, int]]:
    """One transaction: the outcome of each commit, and the sessions that changed."""
    db.execute("begin immediate")
    try:
        rows.begin(look=look)
        rows.load(op for commit in batch for op in commit.ops)
        outcomes, view = apply_all(batch, rows)
        changed = rows.save(view)
        db.execute("commit" if view.changed else "rollback")
    except BaseException:
        rows.forget()
        if db.in_transaction:
            db.execute("rollback")
        raise
    return outcomes, changed
