"""The store on PostgreSQL: its threads, and what only this engine knows."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Self, TypeVar

from callgate.core.stored import OutboxRecord
from callgate.core.stores import PAGE
from callgate.storage.commits import Commit
from callgate.storage.owners import Owners
from callgate.storage.postgres import reads
from callgate.storage.postgres.connections import Connection
from callgate.storage.postgres.listener import Listener
from callgate.storage.postgres.location import PostgresLocation
from callgate.storage.postgres.problems import TROUBLE, trouble_of
from callgate.storage.postgres.readers import Readers
from callgate.storage.postgres.schema import migrate
from callgate.storage.postgres.writer import Writer
from callgate.storage.threaded_store import ThreadedStore

if TYPE_CHECKING:  # few commands prune
    from callgate.core.pruning.usage import PrunablePage, StoreUsage

_log = logging.getLogger("callgate.store")

T = TypeVar("T")


class PostgresStore(ThreadedStore[Connection]):
    """Implements `core.stores.Store`."""

    def __init__(
        self,
        location: PostgresLocation,
        home: str | None = None,
        owner: str | None = None,
        before_commit: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(reads, owner)
        self.location = location
        local = None if home is None else Owners(os.path.join(home, "run"), self.owner)
        self._local = local
        self._listener = Listener(location, self.owner, self._from_others, self._taken_for_dead)
        self._writer = Writer(
            location, self.owner, local, self._listener, self._from_writer, before_commit
        )
        self._readers = Readers(location)

    @classmethod
    async def open(
        cls,
        location: PostgresLocation,
        *,
        home: str | None = None,
        owner: str | None = None,
        before_commit: Callable[[], None] = lambda: None,
    ) -> Self:
        """The store in a schema of a database, whose tables are made if they are not there.

        `home` is where this process says to others of this machine that it lives. `owner` names
        this process, and no other one ever; None: a name of its own. `before_commit` makes durable
        what the store follows from; it is called in a thread.

        Raises `StoreTooNew` or `EngineTooOld`; never because the database cannot be reached.
        """
        store = cls(location, home, owner, before_commit)
        try:
            await store._readers.run(store._check)
        except BaseException:
            await store.close()
            raise
        return store

    def _check(self) -> None:
        """See that the tables can be used, and make them if they are not there."""
        try:
            db = Connection(self.location)
            try:
                migrate(db)
            finally:
                db.close()
        except TROUBLE as error:
            if trouble_of(error) is None:
                raise
            _log.warning("%s cannot be used now: %s", self.location.place, error)
        self._listener.start()

    @property
    def is_dead(self) -> bool:
        return self._writer.is_dead

    def _taken_for_dead(self) -> None:
        if not self._writer.is_dead:
            _log.error("other servers took this process for dead; it has to start anew")
        self._writer.is_dead = True

    def _write(self, commits: list[Commit]) -> None:
        self._writer.write(commits)

    def _ask(self, question: Callable[[Connection], T]) -> Awaitable[T]:
        return self._readers.ask(question)

    def _end(self) -> None:
        self._readers.close()
        self._writer.close()
        self._listener.close()
        if self._local is not None:
            self._local.withdraw()

    async def dead_owners(self) -> Sequence[str]:
        return await self._read(reads.dead_owners)

    async def alive(self, owner: str) -> bool:
        return await self._read(reads.alive, owner)

    async def outbox(self, *, of_dead: bool = False) -> Sequence[OutboxRecord]:
        return await self._read(reads.outbox, of_dead)

    async def prunable(
        self, before: float, cursor: str | None = None, limit: int = PAGE
    ) -> PrunablePage:
        from callgate.storage.postgres import pruning  # lazy: few commands prune  # noqa: PLC0415

        return await self._read(pruning.prunable, before, cursor, limit)

    async def usage(self) -> StoreUsage:
        from callgate.storage.postgres import pruning  # lazy: as above  # noqa: PLC0415

        return await self._read(pruning.usage)
