"""The store's face to the event loop: queues commits, hands reads to threads, passes hints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

import apsw

from callgate.core.events import Event
from callgate.core.ids import owner_id
from callgate.core.ops import Op
from callgate.core.stored import (
    CutSession,
    OutboxRecord,
    Pin,
    SharedEntry,
    StoredCall,
    StoredConfirmation,
    StoredGrant,
    StoredMessage,
    StoredSession,
)
from callgate.core.stores import (
    PAGE,
    Behind,
    EventPage,
    Hint,
    SessionPage,
    Snapshot,
    StoreClosed,
)
from callgate.storage.commits import BATCH_OPS, Commit, Outcome
from callgate.storage.encoding import encode_ops
from callgate.storage.hints import Hints
from callgate.storage.owners import Owners
from callgate.storage.sqlite import reads
from callgate.storage.sqlite.files import WAIT_S, Location, check
from callgate.storage.sqlite.readers import Readers
from callgate.storage.sqlite.watcher import Watcher
from callgate.storage.sqlite.writer import Writer

if TYPE_CHECKING:  # few commands prune
    from callgate.core.pruning.usage import PrunablePage, StoreUsage

P = ParamSpec("P")
T = TypeVar("T")


class SqliteStore:
    """Implements `core.stores.Store`; belongs to the event loop in which it was opened."""

    def __init__(
        self,
        location: Location,
        owner: str | None = None,
        before_commit: Callable[[], None] = lambda: None,
    ) -> None:
        self.owner = owner or owner_id()
        self._location = location
        self._loop = asyncio.get_running_loop()
        self._owners = Owners(location.owners, self.owner)
        self._writer = Writer(location, self._owners, self._from_writer, before_commit)
        self._watcher = Watcher(location, self._from_watcher)
        self._hints = Hints(self._watcher.want)
        self._pending: list[Commit] = []
        self._readers = Readers(location)
        self._closed = False

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

        Raises `StoreTooNew` or `StoreDamaged`; never because a disk cannot be written.
        """
        store = cls(Location(home=home, vfs=vfs, wait_s=wait_s), owner, before_commit)
        try:
            await store._readers.run(lambda: check(store._location))
        except BaseException:
            await store.close()
            raise
        return store

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # Committing.

    def commit(self, *ops: Op[Any]) -> asyncio.Future[tuple[Any, ...]]:
        if self._closed:
            raise StoreClosed
        future: asyncio.Future[tuple[Any, ...]] = self._loop.create_future()
        owned, texts = encode_ops(ops)
        if not self._pending:
            # In the next round of the loop: then everyone whom this round wakes is aboard.
            self._loop.call_soon(self._hand_over)
        self._pending.append(Commit(owned, texts, future))
        if len(self._pending) >= BATCH_OPS:
            self._hand_over()
        return future

    def _hand_over(self) -> None:
        if self._pending:
            pending, self._pending = self._pending, []
            self._writer.write(pending)

    def _from_writer(self, outcomes: Sequence[Outcome], changed: dict[str, int]) -> None:
        self._in_loop(self._settle, outcomes, changed)

    def _settle(self, outcomes: Sequence[Outcome], changed: dict[str, int]) -> None:
        for commit, outcome in outcomes:
            if commit.waiter.done():  # cancelled: written all the same
                continue
            if isinstance(outcome, Exception):
                commit.waiter.set_exception(outcome)
            else:
                commit.waiter.set_result(outcome)
        self._hints.fire(changed)

    # Hints.

    def wake(self, *sessions: str) -> Hint:
        return self._hints.wake(*sessions)

    def _from_watcher(self, changed: dict[str, int] | None) -> None:
        if changed is None:
            self._in_loop(self._hints.fire_all)
        else:
            self._in_loop(self._hints.fire, changed)

    def _in_loop(self, callback: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop has ended without closing us; nobody waits
            pass

    # Reading.

    async def _read(
        self,
        ask: Callable[Concatenate[apsw.Connection, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        if self._closed:
            raise StoreClosed
        return await self._readers.ask(lambda db: ask(db, *args, **kwargs))

    async def read_events(self, session: str, after: int = 0, limit: int = PAGE) -> Sequence[Event]:
        return await self._read(reads.read_events, session, after, limit)

    async def read_all(self, after: str | None = None, limit: int = PAGE) -> EventPage:
        return await self._read(reads.read_all, after, limit)

    async def read_last(
        self, after: str | None = None, upto: str | None = None, limit: int = PAGE
    ) -> EventPage:
        return await self._read(reads.read_last, after, upto, limit)

    async def behind(self, after: str | None = None) -> Behind:
        return await self._read(reads.behind, after)

    async def read_messages(
        self, session: str, after: int = 0, limit: int = PAGE
    ) -> Sequence[StoredMessage]:
        return await self._read(reads.read_messages, session, after, limit)

    async def get_session(self, session: str) -> StoredSession:
        return await self._read(reads.get_session, session)

    async def list_sessions(
        self,
        workspace: str | None = None,
        *,
        cursor: str | None = None,
        limit: int = 50,
        workers: bool = False,
    ) -> SessionPage:
        return await self._read(reads.list_sessions, workspace, cursor, limit, workers)

    async def workers_of(self, session: str) -> Sequence[StoredSession]:
        return await self._read(reads.workers_of, session)

    async def find_sessions(self, part: str) -> Sequence[str]:
        return await self._read(reads.find_sessions, part)

    async def snapshot(self, session: str) -> Snapshot:
        return await self._read(reads.snapshot, session)

    async def open_confirmations(self, session: str | None = None) -> Sequence[StoredConfirmation]:
        return await self._read(reads.open_confirmations, session)

    async def get_confirmation(self, id: str) -> StoredConfirmation:
        return await self._read(reads.get_confirmation, id)

    async def open_calls(
        self, session: str | None = None, owner: str | None = None
    ) -> Sequence[StoredCall]:
        return await self._read(reads.open_calls, session, owner)

    async def get_call(self, id: str) -> StoredCall | None:
        return await self._read(reads.get_call, id)

    async def grants(self, session: str) -> Sequence[StoredGrant]:
        return await self._read(reads.grants, session)

    async def pins(self, source: str | None = None) -> Sequence[Pin]:
        return await self._read(reads.pins, source)

    async def get_blob(self, sha256: str) -> bytes | None:
        return await self._read(reads.get_blob, sha256)

    async def prunable(
        self, before: float, cursor: str | None = None, limit: int = PAGE
    ) -> PrunablePage:
        from callgate.storage.sqlite import pruning  # lazy: few commands prune  # noqa: PLC0415

        return await self._read(pruning.prunable, before, cursor, limit, self._owners.alive)

    async def usage(self) -> StoreUsage:
        from callgate.storage.sqlite import pruning  # lazy: as above  # noqa: PLC0415

        return await self._read(pruning.usage)

    async def dead_owners(self) -> Sequence[str]:
        return await self._read(reads.dead_owners, self._owners.alive)

    async def outbox(self, *, of_dead: bool = False) -> Sequence[OutboxRecord]:
        records = await self._read(reads.outbox)
        return [r for r in records if not self._owners.alive(r.owner)] if of_dead else records

    async def cut_sessions(self) -> Sequence[CutSession]:
        return await self._read(reads.cut_sessions)

    async def entries(self, kind: str) -> Sequence[SharedEntry]:
        return await self._read(reads.entries, kind)

    async def alive(self, owner: str) -> bool:
        return self._owners.alive(owner)

    async def get_secret(self, name: str) -> str | None:
        return await self._read(reads.get_secret, name)

    async def audited_from(self) -> str | None:
        return await self._read(reads.audited_from)

    async def close(self) -> None:
        """Write what was committed and leave; the sessions owned here are free again."""
        if self._closed:
            return
        self._closed = True
        self._hand_over()
        await self._loop.run_in_executor(None, self._end)

    def _end(self) -> None:
        self._watcher.close()
        self._readers.close()
        self._writer.close()
        self._owners.withdraw()
