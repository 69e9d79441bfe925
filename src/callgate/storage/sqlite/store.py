"""The store in a file: its writer and reader threads, and the watcher of other processes.

Two threads read, each with its own connection; the writer never blocks them. SQLite does not notify
of changes by other processes, so the watcher polls one number, which costs a few microseconds, and
only while a caller waits.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self, TypeVar

import apsw

from callgate.core.ids import owner_id
from callgate.core.local.disk import ensure_locks
from callgate.core.stored import OutboxRecord
from callgate.core.stores import PAGE, StoreError
from callgate.core.tasks import TaskSet
from callgate.storage.owners import Owners
from callgate.storage.sqlite.files import (
    REQUESTS,
    WAIT_S,
    Location,
    check,
    lasting,
    mark_damage,
    open_reader,
    open_writer,
    shorten_log,
)
from callgate.storage.sqlite.reads import READS
from callgate.storage.sqlite.rows import SqliteRows
from callgate.storage.sqlite.saving import Repeated
from callgate.storage.sqlite.tables import (
    DAMAGE,
    TROUBLE,
    ensure_schema,
    from_system,
    select,
    unreadable,
    unwritable,
)
from callgate.storage.threaded_store import (
    BatchWriter,
    Commit,
    Hints,
    Outcome,
    Tell,
    ThreadedStore,
    apply_all,
    log,
)

if TYPE_CHECKING:
    from callgate.core.budgets import PrunablePage, StoreUsage
    from callgate.storage.sqlite.flush_requests import Flush, FlushClient, FlushRequests


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
        """Truncate the log. If there are readers, the next batch retries."""
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
            self._disconnect()  # waiters get the error; the next commit creates a new file
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
        """Whether the open file is still the one at its path."""
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
    """Run one transaction; return the outcome of each commit, and the changed sessions."""
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


READERS = 2

T = TypeVar("T")


class Writers:
    """The other writers of the home, whose events a reader requests before it reads."""

    def __init__(self, location: Location, owner: str) -> None:
        self._directory = location.owners
        self._owner = owner
        self._client: FlushClient | None = None

    def request(self) -> None:
        """Return when all writers have written their events. Blocks for a moment."""
        if self._client is None:
            try:
                names = os.listdir(self._directory)
            except OSError:
                return  # no process has written
            if not any(each.endswith(REQUESTS) for each in names):
                return
            from callgate.storage.sqlite import flush_requests  # lazy: few need it  # noqa: PLC0415

            self._client = flush_requests.FlushClient(self._directory, self._owner)
        self._client.request()

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


class Readers:
    def __init__(self, location: Location, writers: Writers) -> None:
        self._location = location
        self._writers = writers
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="callgate-store-reader")
        self._local = threading.local()
        self._open: set[apsw.Connection] = set()

    async def run(self, act: Callable[[], T]) -> T:
        """Run a query in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, act)

    async def ask(self, question: Callable[[apsw.Connection], T]) -> T:
        return await self.run(lambda: self._answer(question))

    def _answer(self, question: Callable[[apsw.Connection], T]) -> T:
        self._writers.request()
        try:
            db = self._connection()
            try:
                return question(db)
            except apsw.SQLError:
                ensure_schema(db, self._location.path)
                raise
            finally:
                if db not in self._open:
                    db.close(force=True)
        except DAMAGE + TROUBLE as error:
            self._disconnect()
            if isinstance(error, DAMAGE):
                mark_damage(self._location)
            raise unreadable(self._location.path, error) from error

    def _connection(self) -> apsw.Connection:
        db: apsw.Connection | None = getattr(self._local, "db", None)
        if db is None:
            db = open_reader(self._location)
            if lasting(db):
                self._local.db = db
                self._open.add(db)
        return db

    def _disconnect(self) -> None:
        db: apsw.Connection | None = getattr(self._local, "db", None)
        self._local.db = None
        if db is not None:
            self._open.discard(db)
            db.close(force=True)

    def close(self) -> None:
        self._threads.shutdown()
        for db in self._open:
            db.close(force=True)


LOOK_S = 0.03
"""Polling interval: answers from other processes must arrive within a tenth of a second."""

_LAST_TOUCH = """
select max(
    (select ifnull(max(touch), 0) from sessions),
    (select ifnull(max(touch), 0) from entry_kinds)
)
"""
_NEWER = (
    "select id, touch from sessions where touch > ?"
    " union all select '@' || kind, touch from entry_kinds where touch > ?"
)

TellNumbers = Callable[[dict[str, int] | None], None]
"""Receives the changed sessions (None: unknown), in the watcher's thread."""


class Watcher:
    def __init__(self, location: Location, writers: Writers, tell: TellNumbers) -> None:
        self._location = location
        self._writers = writers
        self._tell = tell
        self._thread: threading.Thread | None = None
        self._wanted = threading.Event()
        self._closed = threading.Event()
        self._db: apsw.Connection | None = None
        self._version = 0
        self._touch: int | None = None

    def want(self, wanted: bool) -> None:
        """Start or stop watching, as the first waiter begins or the last one ends."""
        if not wanted:
            self._wanted.clear()
            return
        self._wanted.set()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="callgate-store-watcher", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(LOOK_S):
            if not self._wanted.is_set():
                self._touch = None  # what happens from here on is not followed
                self._wanted.wait()
            try:
                self._look()
            except apsw.Error:  # disk failure: readers get the error, and this thread retries
                self._disconnect()
        self._disconnect()

    def _look(self) -> None:
        self._writers.request()
        if self._db is None:
            self._db = open_reader(self._location)
            self._touch = None
            if not lasting(self._db):  # there is no file yet, or none that changes
                self._disconnect()
                return
        version = self._db.pragma("data_version")
        if self._touch is None:
            # A new waiter has read all earlier changes, but possibly missed
            # changes between that and this first look.
            [(touch,)] = select(self._db, _LAST_TOUCH)
            self._version, self._touch = version, touch
            self._tell(None)
        elif version != self._version:
            changed: dict[str, int] = dict(select(self._db, _NEWER, (self._touch, self._touch)))
            self._version = version
            self._touch = max(changed.values(), default=self._touch)
            self._tell(changed)

    def _disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close(force=True)


class SqliteStore(ThreadedStore[apsw.Connection]):
    """Implements `core.stores.Store`."""

    def __init__(
        self,
        location: Location,
        owner: str | None = None,
        before_commit: Callable[[], None] = lambda: None,
    ) -> None:
        owner = owner or owner_id()
        self._writers = Writers(location, owner)
        self._watcher = Watcher(location, self._writers, self._from_others)
        super().__init__(READS, owner)
        self._requests: FlushRequests | None = None
        self._cannot_listen = False
        self._location = location
        self._owners = Owners(location.owners, self.owner)
        self._tasks = TaskSet()
        self._writer = Writer(location, self._owners, self._from_writer, before_commit)
        self._readers = Readers(location, self._writers)

    @classmethod
    async def open(
        cls,
        home: str,
        *,
        vfs: str | None = None,
        wait_s: float = WAIT_S,
        owner: str | None = None,
        before_commit: Callable[[], None] = lambda: None,
    ) -> Self:
        """Open the store of a home. A missing file is created by the first commit.

        `owner` is the unique name of this process; None generates one. `before_commit` makes
        durable the lines from which the store follows; it is called in a thread.

        Raises `StoreTooNew`, `StoreDamaged` or `StoreUnlocked`; an unwritable disk raises nothing
        here.
        """
        store = cls(Location(home=home, vfs=vfs, wait_s=wait_s), owner, before_commit)
        try:
            await store._readers.run(lambda: ensure_locks(home))
            await store._readers.run(lambda: check(store._location))
        except BaseException:
            await store.close()
            raise
        return store

    def _make_hints(self) -> Hints:
        return Hints(self._waiters_changed)

    def _waiters_changed(self, waiting: bool) -> None:
        self._watcher.want(waiting)
        if waiting and self._flush_held is not None:
            self._tasks.start(self._flush_held())

    def may_hold(self, flush: Flush) -> bool:
        if self._requests is None and not self._cannot_listen:
            from callgate.storage.sqlite import flush_requests  # lazy: few need it  # noqa: PLC0415

            try:
                self._requests = flush_requests.FlushRequests(
                    self._location.owners, self.owner, flush
                )
            except OSError as error:
                log.debug("events are written promptly: %s", error)
                self._cannot_listen = True
            else:
                self._flush_held = flush
        return self._requests is not None and not self._requests.is_recent and not self._hints

    def _write(self, commits: list[Commit]) -> None:
        self._writer.write(commits)

    def _ask(self, question: Callable[[apsw.Connection], T]) -> Awaitable[T]:
        return self._readers.ask(question)

    async def close(self) -> None:
        if self._requests is not None:
            self._requests.close()
            self._requests = self._flush_held = None
            self._cannot_listen = True
        await super().close()

    def _end(self) -> None:
        self._watcher.close()
        self._readers.close()
        self._writers.close()
        self._writer.close()
        self._owners.withdraw()

    async def alive(self, owner: str) -> bool:
        return self._owners.alive(owner)

    async def dead_owners(self) -> Sequence[str]:
        return [each for each in await self._read(READS.owners) if not self._owners.alive(each)]

    async def outbox(self, *, of_dead: bool = False) -> Sequence[OutboxRecord]:
        records = await self._read(READS.outbox)
        return [r for r in records if not self._owners.alive(r.owner)] if of_dead else records

    async def prunable(
        self, before: float, cursor: str | None = None, limit: int = PAGE
    ) -> PrunablePage:
        from callgate.storage.sqlite import pruning  # lazy: few commands prune  # noqa: PLC0415

        return await self._read(pruning.prunable, before, cursor, limit, self._owners.alive)

    async def usage(self) -> StoreUsage:
        from callgate.storage.sqlite import pruning  # lazy: as above  # noqa: PLC0415

        return await self._read(pruning.usage)
