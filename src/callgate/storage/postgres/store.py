"""The store on PostgreSQL: its threads, and what only this engine knows."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Self, TypeVar

from callgate.core.stored import OutboxRecord
from callgate.core.stores import PAGE, Lease, StoreUnreadable, StoreUnwritable, Trouble
from callgate.core.task_sets import start_task
from callgate.storage.commits import Commit, Outcome
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
_LOOK_S = (0.05, 1.0)
"""How often a database that is away is looked for; less and less often."""

T = TypeVar("T")


class PostgresStore(ThreadedStore[Connection]):
    """Implements `core.stores.Store`.

    While the database is known to be away nobody waits for it: reads and commits fail at once, and
    one task looks for its return.
    """

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
        """What the writer has taken, in this order."""
        self._no_writes = False
        self._no_reads = False
        """Whether the database is away, as far as whoever tried last knows."""
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
        """The store in a schema of a database, whose tables are made if they are not there.

        `home` is where this process says to others of this machine that it lives. `owner` names
        this process, and no other one ever; None: a name of its own. `before_commit` makes durable
        what the store follows from; it is called in a thread.

        Raises `StoreTooNew` or `EngineTooOld`; never because the database cannot be reached.
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
        """See that the tables can be used, and make them if they are not there; False if the
        database is away."""
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
                _log.warning("%s cannot be used now: %s", self.location.place, error)
            self._listener.start()
            return trouble is not Trouble.UNREACHABLE
        self._listener.start()
        return True

    @property
    def is_dead(self) -> bool:
        return self._writer.is_dead

    def _taken_for_dead(self) -> None:
        if not self._writer.is_dead:
            _log.error("other servers took this process for dead; it has to start anew")
        self._writer.is_dead = True

    def _write(self, commits: list[Commit]) -> None:
        if self._no_writes:
            self._refuse(commits)
            return
        self._in_flight |= {id(commit): commit for commit in commits}
        self._writer.write(commits)

    def _settle(self, outcomes: Sequence[Outcome], changed: Mapping[str, int]) -> None:
        # Those that were refused before say nothing about now: the database may be back since.
        waited_for = [outcome for commit, outcome in outcomes if not commit.waiter.done()]
        super()._settle(outcomes, changed)
        for commit, _ in outcomes:
            self._in_flight.pop(id(commit), None)
        if any(map(_is_unreachable, waited_for)):
            # In their order, and before anything that comes later. They are still tried: whoever
            # commits them again gets what became of them.
            self._refuse([*self._in_flight.values()])
            self._no_writes = True
            self._look_for_return()

    def _refuse(self, commits: Sequence[Commit]) -> None:
        for commit in commits:
            if not commit.waiter.done():
                commit.waiter.set_exception(
                    StoreUnwritable(
                        self.location.place,
                        Trouble.UNREACHABLE,
                        outcome_unknown=id(commit) in self._in_flight,
                    )
                )

    async def _ask(self, question: Callable[[Connection], T]) -> T:
        if self._no_reads:
            raise StoreUnreadable(self.location.place, Trouble.UNREACHABLE)
        try:
            return await self._readers.ask(question)
        except StoreUnreadable as error:
            if _is_unreachable(error) and not self._closed:
                self._no_reads = True
                self._look_for_return()
            raise

    # While it is away.

    def _look_for_return(self) -> None:
        if self._looking is None and not self._closed:
            _log.warning("%s is away; what needs it is refused meanwhile", self.location.place)
            self._looking = start_task(self._await_return())

    async def _await_return(self) -> None:
        wait_s = _LOOK_S[0]
        while self._no_reads or self._no_writes:
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, _LOOK_S[1])
            try:
                is_back = await self._readers.run(self._check)
            except Exception as error:  # whoever reads or writes next is told why
                _log.warning("%s cannot be used: %s", self.location.place, error)
                is_back = True
            if is_back:
                self._is_back()

    def _is_back(self) -> None:
        if self._no_reads or self._no_writes:
            _log.warning("%s is back", self.location.place)
        self._no_reads = self._no_writes = False
        looking, self._looking = self._looking, None
        if looking is not None and looking is not asyncio.current_task():
            looking.cancel()

    def _from_others(self, changed: Mapping[str, int] | None) -> None:
        if changed is None:  # the listener has a connection again
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


def _is_unreachable(outcome: object) -> bool:
    return (
        isinstance(outcome, StoreUnwritable | StoreUnreadable)
        and outcome.reason is Trouble.UNREACHABLE
    )
