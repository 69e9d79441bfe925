"""One thread that commits: everything that waits goes into one transaction, up to a bound.

Nobody waits for company: a lone commit is written at once, and those that arrive while it is
on its way to the disk share the next transaction. Whatever happens here, whoever waits is
told.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Sequence

import apsw

from callgate.core.stores import StoreError
from callgate.storage.commits import Commit, Outcome, Tell, apply_all, batches
from callgate.storage.owners import Owners
from callgate.storage.sqlite.files import Location, mark_damage, open_writer, shorten_log
from callgate.storage.sqlite.problems import DAMAGE, TROUBLE, from_system, unwritable
from callgate.storage.sqlite.rows import SqliteRows
from callgate.storage.sqlite.saving import Repeated

_log = logging.getLogger("callgate.store")


class Writer:
    def __init__(
        self, location: Location, owners: Owners, tell: Tell, before_commit: Callable[[], None]
    ) -> None:
        """`before_commit` is called in the writer's thread."""
        self._location = location
        self._owners = owners
        self._tell = tell
        self._before_commit = before_commit
        self._queue: queue.SimpleQueue[list[Commit] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._db: apsw.Connection | None = None
        self._rows: SqliteRows | None = None
        self._file: os.stat_result | None = None
        self._damaged: StoreError | None = None

    def write(self, commits: list[Commit]) -> None:
        """Take these, in their order. The thread starts with the first ones."""
        self._queue.put(commits)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="callgate-store-writer", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Write what was taken, and end."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
        self._disconnect()

    def _run(self) -> None:
        ending = False
        while not ending:
            taken = [self._queue.get()]
            while not self._queue.empty():
                taken.append(self._queue.get())
            ending = None in taken
            commits = [commit for some in taken if some is not None for commit in some]
            if commits:
                self._before_commit()
            for batch in batches(commits):
                self._write(batch)

    def _write(self, batch: list[Commit]) -> None:
        """Write a batch and tell its outcome."""
        changed: dict[str, int] = {}
        try:
            outcomes, changed = self._transact(batch)
        except StoreError as error:
            outcomes = [(commit, error) for commit in batch]
        except Exception as error:
            if len(batch) > 1:  # one of them is the cause: the others need not suffer
                for commit in batch:
                    self._write([commit])
                return
            _log.exception("a commit failed")
            outcomes = [(batch[0], error)]
        self._tell(outcomes, changed)
        self._shorten_log()

    def _shorten_log(self) -> None:
        """Nobody waits for this; where others read just now, the next batch tries again."""
        if self._db is None or self._rows is None or not self._rows.left_in_log:
            return
        try:
            self._rows.left_in_log = not shorten_log(self._db, self._location)
        except TROUBLE:  # the next commit finds out whether things are better
            _log.debug("the log could not be shortened", exc_info=True)

    def _transact(self, batch: list[Commit]) -> tuple[list[Outcome], dict[str, int]]:
        if self._damaged is not None:
            raise self._damaged
        try:
            db, rows = self._connect()
            try:
                return transact(db, rows, batch, look=False)
            except Repeated:
                return transact(db, rows, batch, look=True)
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
                _log.debug("closing after an error", exc_info=True)


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
