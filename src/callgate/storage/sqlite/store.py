"""The store in a file: its threads, and what only this engine knows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Self, TypeVar

import apsw

from callgate.core.disk.file_locks import ensure_locks
from callgate.core.stored import OutboxRecord
from callgate.core.stores import PAGE
from callgate.storage.commits import Commit
from callgate.storage.hints import Hints
from callgate.storage.owners import Owners
from callgate.storage.sqlite import reads
from callgate.storage.sqlite.files import WAIT_S, Location, check
from callgate.storage.sqlite.readers import Readers
from callgate.storage.sqlite.watcher import Watcher
from callgate.storage.sqlite.writer import Writer
from callgate.storage.threaded_store import ThreadedStore

if TYPE_CHECKING:  # few commands prune
    from callgate.core.pruning.usage import PrunablePage, StoreUsage

T = TypeVar("T")


class SqliteStore(ThreadedStore[apsw.Connection]):
    """Implements `core.stores.Store`."""

    def __init__(
        self,
        location: Location,
        owner: str | None = None,
        before_commit: Callable[[], None] = lambda: None,
    ) -> None:
        self._watcher = Watcher(location, self._from_others)
        super().__init__(reads, owner)
        self._location = location
        self._owners = Owners(location.owners, self.owner)
        self._writer = Writer(location, self._owners, self._from_writer, before_commit)
        self._readers = Readers(location)

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
        """The store of a home. Without a file there is none until something is committed.

        `owner` names this process, and no other one ever; None: a name of its own.
        `before_commit` makes durable what the store follows from; it is called in a thread.

        Raises `StoreTooNew`, `StoreDamaged` or `StoreUnlocked`; never because a disk cannot be
        written.
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
        return Hints(self._watcher.want)

    def _write(self, commits: list[Commit]) -> None:
        self._writer.write(commits)

    def _ask(self, question: Callable[[apsw.Connection], T]) -> Awaitable[T]:
        return self._readers.ask(question)

    def _end(self) -> None:
        self._watcher.close()
        self._readers.close()
        self._writer.close()
        self._owners.withdraw()

    async def alive(self, owner: str) -> bool:
        return self._owners.alive(owner)

    async def dead_owners(self) -> Sequence[str]:
        return await self._read(reads.dead_owners, self._owners.alive)

    async def outbox(self, *, of_dead: bool = False) -> Sequence[OutboxRecord]:
        records = await self._read(reads.outbox)
        return [r for r in records if not self._owners.alive(r.owner)] if of_dead else records

    async def prunable(
        self, before: float, cursor: str | None = None, limit: int = PAGE
    ) -> PrunablePage:
        from callgate.storage.sqlite import pruning  # lazy: few commands prune  # noqa: PLC0415

        return await self._read(pruning.prunable, before, cursor, limit, self._owners.alive)

    async def usage(self) -> StoreUsage:
        from callgate.storage.sqlite import pruning  # lazy: as above  # noqa: PLC0415

        return await self._read(pruning.usage)
