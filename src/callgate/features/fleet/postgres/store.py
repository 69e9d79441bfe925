"""The store on PostgreSQL: its threads, and the operations that only this engine has.

Each reader thread has a separate connection. The writer never blocks it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Self, TypeVar

import psycopg

from callgate.core.stored import OutboxRecord
from callgate.core.stores import PAGE, Lease, StoreUnreadable, StoreUnwritable, Trouble
from callgate.core.tasks import start_task
from callgate.features.fleet.postgres import PostgresLocation, reads
from callgate.features.fleet.postgres.connections import TROUBLE, Connection, trouble_of, unreadable
from callgate.features.fleet.postgres.listener import Listener
from callgate.features.fleet.postgres.schema import migrate
from callgate.features.fleet.postgres.writer import Writer
from callgate.storage.owners import Owners
from callgate.storage.threaded_store import Commit, Outcome, ThreadedStore

if TYPE_CHECKING:
    from callgate.core.budgets import PrunablePage, StoreUsage

T = TypeVar("T")


class Readers:
    def __init__(self, location: PostgresLocation) -> None:
        self._location = location
        self._threads = ThreadPoolExecutor(
            location.readers, thread_name_prefix="callgate-store-reader"
        )
        self._local = threading.local()
        self._open: set[Connection] = set()

    async def run(self, act: Callable[[], T]) -> T:
        """Run a function in one of the threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, act)

    async def ask(self, question: Callable[[Connection], T]) -> T:
        return await self.run(lambda: self._answer(question))

    def _answer(self, question: Callable[[Connection], T]) -> T:
        was_open = getattr(self._local, "db", None) is not None
        try:
            return self._ask(question)
        except TROUBLE as error:
            if not was_open or not _is_lost(error):
                raise self._named(error) from error
        try:  # the connection had ended: use a new one
            return self._ask(question)
        except TROUBLE as error:
            raise self._named(error) from error

    def _ask(self, question: Callable[[Connection], T]) -> T:
        try:
            return question(self._connection())
        except TROUBLE as error:
            if trouble_of(error) is not None or _is_lost(error):
                self._disconnect()
            raise

    def _named(self, error: BaseException) -> BaseException:
        return unreadable(self._location.label, error) or error

    def _connection(self) -> Connection:
        db: Connection | None = getattr(self._local, "db", None)
        if db is None:
            db = Connection(self._location)
            try:
                migrate(db)  # also if the database was away at the start
            except BaseException:
                db.close()
                raise
            self._local.db = db
            self._open.add(db)
        return db

    def _disconnect(self) -> None:
        db: Connection | None = getattr(self._local, "db", None)
        self._local.db = None
        if db is not None:
            self._open.discard(db)
            db.close()

    def close(self) -> None:
        self._threads.shutdown()
        for db in self._open:
            db.close()


def _is_lost(error: BaseException) -> bool:
    """Whether to repeat a query on a new connection. This includes statements that the server does
    not understand, because connecting shows whether a newer callgate has changed the tables.
    """
    return isinstance(
        error, psycopg.OperationalError | psycopg.InterfaceError | psycopg.ProgrammingError
    )


_log = logging.getLogger("callgate.store")
_LOOK_S = (0.05, 1.0)
"""Interval of the checks for an unavailable database, from the first to the last."""


class PostgresStore(ThreadedStore[Connection]):
    """Implements `core.stores.Store`.

    While the database is known to be unavailable, reads and commits fail immediately, and one task
    checks for its return.
    """

    def __init__(
        self,
        location: PostgresLocation,
        home: str | None = None,
        owner: str | None = None,
        before_commit: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(reads.READS, owner)
        self.location = location
        local = None if home is None else Owners(os.path.join(home, "run"), self.owner)
        self._local = local
        self.lease = Lease(min(location.stopped_s, location.silent_s))
        self._listener = Listener(
            location, self.owner, self._from_others, self._taken_for_dead, self.lease
        )
        self._writer = Writer(
            location,
            self.owner,
            local,
            self._listener,
            self._from_writer,
            before_commit,
            self.lease,
        )
        self._readers = Readers(location)
        self._in_flight: dict[int, Commit] = {}
        """Commits that the writer has accepted, in order."""
        self._no_writes = False
        self._no_reads = False
        """Whether the database was unavailable at the last attempt."""
        self._looking: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        location: PostgresLocation,
        *,
        home: str | None = None,
        owner: str | None = None,
        before_commit: Callable[[], None] = lambda: None,
    ) -> Self:
        """Open the store in a schema of a database. Missing tables are created.

        `home` is the directory that announces this process on this machine. `owner` is a unique
        name of this process; None: a generated name. `before_commit` makes durable the data on
        which the store depends; it is called in a thread.

        Raises `StoreTooNew` or `EngineTooOld`, but no error if the database is unreachable.
        """
        store = cls(location, home, owner, before_commit)
        try:
            if not await store._readers.run(store._check):
                store._no_writes = store._no_reads = True
                store._look_for_return()
        except BaseException:
            await store.close()
            raise
        return store

    def _check(self) -> bool:
        """Check the tables, and create missing ones. False if the database is unavailable."""
        try:
            db = Connection(self.location)
            try:
                migrate(db)
            finally:
                db.close()
        except TROUBLE as error:
            trouble = trouble_of(error)
            if trouble is None:
                raise
            if self._looking is None:
                _log.warning("%s is unavailable: %s", self.location.label, error)
            self._listener.start()
            return trouble is not Trouble.UNREACHABLE
        self._listener.start()
        return True

    @property
    def is_dead(self) -> bool:
        return self._writer.is_dead

    def _taken_for_dead(self) -> None:
        if not self._writer.is_dead:
            _log.error("other servers marked this process as dead; restart it")
        self._writer.is_dead = True

    def _write(self, commits: list[Commit]) -> None:
        if self._no_writes:
            self._refuse(commits)
            return
        self._in_flight |= {id(commit): commit for commit in commits}
        self._writer.write(commits)

    def _settle(self, outcomes: Sequence[Outcome], changed: Mapping[str, int]) -> None:
        # Commits refused earlier prove nothing, because the database may have returned since.
        waited_for = [outcome for commit, outcome in outcomes if not commit.waiter.done()]
        super()._settle(outcomes, changed)
        for commit, _ in outcomes:
            self._in_flight.pop(id(commit), None)
        if any(map(_is_unreachable, waited_for)):
            # In order, and before any later commit. The writer still tries them, and a repeated
            # commit gets their outcome.
            self._refuse([*self._in_flight.values()])
            self._no_writes = True
            self._look_for_return()

    def _refuse(self, commits: Sequence[Commit]) -> None:
        for commit in commits:
            if not commit.waiter.done():
                commit.waiter.set_exception(
                    StoreUnwritable(
                        self.location.label,
                        Trouble.UNREACHABLE,
                        outcome_unknown=id(commit) in self._in_flight,
                    )
                )

    async def _ask(self, question: Callable[[Connection], T]) -> T:
        if self._no_reads:
            raise StoreUnreadable(self.location.label, Trouble.UNREACHABLE)
        try:
            return await self._readers.ask(question)
        except StoreUnreadable as error:
            if _is_unreachable(error) and not self._closed:
                self._no_reads = True
                self._look_for_return()
            raise

    # The database is unavailable.

    def _look_for_return(self) -> None:
        if self._looking is None and not self._closed:
            _log.warning(
                "%s is unavailable; operations that need it are refused", self.location.label
            )
            self._looking = start_task(self._await_return())

    async def _await_return(self) -> None:
        wait_s = _LOOK_S[0]
        while self._no_reads or self._no_writes:
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, _LOOK_S[1])
            try:
                is_back = await self._readers.run(self._check)
            except Exception as error:  # the next read or write gets the error
                _log.warning("%s cannot be used: %s", self.location.label, error)
                is_back = True
            if is_back:
                self._is_back()

    def _is_back(self) -> None:
        if self._no_reads or self._no_writes:
            _log.warning("%s is available again", self.location.label)
        self._no_reads = self._no_writes = False
        looking, self._looking = self._looking, None
        if looking is not None and looking is not asyncio.current_task():
            looking.cancel()

    def _from_others(self, changed: Mapping[str, int] | None) -> None:
        if changed is None:  # the listener is connected again
            self._in_loop(self._is_back)
        super()._from_others(changed)

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        await super().close()

    def _end(self) -> None:
        self._readers.close()
        self._writer.close()
        self._listener.close()
        if self._local is not None:
            self._local.withdraw()

    async def dead_owners(self) -> Sequence[str]:
        return await self._read(reads.READS.dead_owners)

    async def alive(self, owner: str) -> bool:
        return await self._read(reads.READS.alive, owner)

    async def outbox(self, *, of_dead: bool = False) -> Sequence[OutboxRecord]:
        return await self._read(reads.READS.outbox_of_dead if of_dead else reads.READS.outbox)

    async def prunable(
        self, before: float, cursor: str | None = None, limit: int = PAGE
    ) -> PrunablePage:
        return await self._read(reads.prunable, before, cursor, limit)

    async def usage(self) -> StoreUsage:
        return await self._read(reads.usage)


def _is_unreachable(outcome: object) -> bool:
    return (
        isinstance(outcome, StoreUnwritable | StoreUnreadable)
        and outcome.reason is Trouble.UNREACHABLE
    )
