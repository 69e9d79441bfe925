"""What stores with a writer thread and reader threads share: their face to the event loop.

commit() ---> pending ---> [writer thread], all that one round of the loop brought at once
read_*() ---> [reader threads], by the functions of the engine (`Reads`)
wake()   ---> hints, in this process at once and from other processes by the engine
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from callgate.core.events import Event
from callgate.core.ids import owner_id
from callgate.core.ops import Op
from callgate.core.stored import (
    CutSession,
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
    Lease,
    SessionPage,
    Snapshot,
    StoreClosed,
)
from callgate.storage.commits import BATCH_OPS, Commit, Outcome
from callgate.storage.encoding import encode_ops
from callgate.storage.hints import Hints

C = TypeVar("C")
D = TypeVar("D", contravariant=True)
P = ParamSpec("P")
T = TypeVar("T")


class Reads(Protocol[D]):
    """What can be asked of an engine; each function takes a connection that only reads."""

    def read_events(self, db: D, session: str, after: int, limit: int) -> list[Event]: ...
    def read_all(self, db: D, after: str | None, limit: int) -> EventPage: ...
    def read_last(self, db: D, after: str | None, upto: str | None, limit: int) -> EventPage: ...
    def behind(self, db: D, after: str | None) -> Behind: ...
    def read_messages(self, db: D, session: str, after: int, limit: int) -> list[StoredMessage]: ...
    def get_session(self, db: D, session: str) -> StoredSession: ...
    def list_sessions(
        self, db: D, workspace: str | None, cursor: str | None, limit: int, workers: bool
    ) -> SessionPage: ...
    def workers_of(self, db: D, session: str) -> list[StoredSession]: ...
    def find_sessions(self, db: D, part: str) -> list[str]: ...
    def snapshot(self, db: D, session: str) -> Snapshot: ...
    def open_confirmations(self, db: D, session: str | None) -> list[StoredConfirmation]: ...
    def get_confirmation(self, db: D, id: str) -> StoredConfirmation: ...
    def open_calls(self, db: D, session: str | None, owner: str | None) -> list[StoredCall]: ...
    def get_call(self, db: D, id: str) -> StoredCall | None: ...
    def grants(self, db: D, session: str) -> list[StoredGrant]: ...
    def pins(self, db: D, source: str | None) -> list[Pin]: ...
    def get_blob(self, db: D, sha256: str) -> bytes | None: ...
    def cut_sessions(self, db: D) -> list[CutSession]: ...
    def entries(self, db: D, kind: str) -> list[SharedEntry]: ...
    def audited_from(self, db: D) -> str | None: ...


class ThreadedStore(Generic[C]):
    """Belongs to the event loop in which it was opened."""

    lease: Lease | None = None

    def __init__(self, reads: Reads[C], owner: str | None) -> None:
        self.owner = owner or owner_id()
        self._reads = reads
        self._loop = asyncio.get_running_loop()
        self._hints = self._make_hints()
        self._pending: list[Commit] = []
        self._closed = False

    @property
    def is_dead(self) -> bool:
        """Whether other processes took this one for dead: it has to start anew."""
        return False

    def _make_hints(self) -> Hints:
        return Hints()

    @abstractmethod
    def _write(self, commits: list[Commit]) -> None:
        """Have the writer's thread take these."""

    @abstractmethod
    def _ask(self, question: Callable[[C], T]) -> Awaitable[T]:
        """Have a reader's thread answer."""

    @abstractmethod
    def _end(self) -> None:
        """Write what was taken, end all threads. Called in a thread."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Write what was committed and leave; the sessions owned here are free again."""
        if self._closed:
            return
        self._closed = True
        self._hand_over()
        await self._loop.run_in_executor(None, self._end)

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
            self._write(pending)

    def _from_writer(self, outcomes: Sequence[Outcome], changed: Mapping[str, int]) -> None:
        """Called in the writer's thread."""
        self._in_loop(self._settle, outcomes, changed)

    def _settle(self, outcomes: Sequence[Outcome], changed: Mapping[str, int]) -> None:
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

    def _from_others(self, changed: Mapping[str, int] | None) -> None:
        """What other processes changed; None: anything. Called in any thread."""
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
        self, ask: Callable[Concatenate[C, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if self._closed:
            raise StoreClosed
        return await self._ask(lambda db: ask(db, *args, **kwargs))

    async def read_events(self, session: str, after: int = 0, limit: int = PAGE) -> Sequence[Event]:
        return await self._read(self._reads.read_events, session, after, limit)

    async def read_all(self, after: str | None = None, limit: int = PAGE) -> EventPage:
        return await self._read(self._reads.read_all, after, limit)

    async def read_last(
        self, after: str | None = None, upto: str | None = None, limit: int = PAGE
    ) -> EventPage:
        return await self._read(self._reads.read_last, after, upto, limit)

    async def behind(self, after: str | None = None) -> Behind:
        return await self._read(self._reads.behind, after)

    async def read_messages(
        self, session: str, after: int = 0, limit: int = PAGE
    ) -> Sequence[StoredMessage]:
        return await self._read(self._reads.read_messages, session, after, limit)

    async def get_session(self, session: str) -> StoredSession:
        return await self._read(self._reads.get_session, session)

    async def list_sessions(
        self,
        workspace: str | None = None,
        *,
        cursor: str | None = None,
        limit: int = 50,
        workers: bool = False,
    ) -> SessionPage:
        return await self._read(self._reads.list_sessions, workspace, cursor, limit, workers)

    async def workers_of(self, session: str) -> Sequence[StoredSession]:
        return await self._read(self._reads.workers_of, session)

    async def find_sessions(self, part: str) -> Sequence[str]:
        return await self._read(self._reads.find_sessions, part)

    async def snapshot(self, session: str) -> Snapshot:
        return await self._read(self._reads.snapshot, session)

    async def open_confirmations(self, session: str | None = None) -> Sequence[StoredConfirmation]:
        return await self._read(self._reads.open_confirmations, session)

    async def get_confirmation(self, id: str) -> StoredConfirmation:
        return await self._read(self._reads.get_confirmation, id)

    async def open_calls(
        self, session: str | None = None, owner: str | None = None
    ) -> Sequence[StoredCall]:
        return await self._read(self._reads.open_calls, session, owner)

    async def get_call(self, id: str) -> StoredCall | None:
        return await self._read(self._reads.get_call, id)

    async def grants(self, session: str) -> Sequence[StoredGrant]:
        return await self._read(self._reads.grants, session)

    async def pins(self, source: str | None = None) -> Sequence[Pin]:
        return await self._read(self._reads.pins, source)

    async def get_blob(self, sha256: str) -> bytes | None:
        return await self._read(self._reads.get_blob, sha256)

    async def cut_sessions(self) -> Sequence[CutSession]:
        return await self._read(self._reads.cut_sessions)

    async def entries(self, kind: str) -> Sequence[SharedEntry]:
        return await self._read(self._reads.entries, kind)

    async def audited_from(self) -> str | None:
        return await self._read(self._reads.audited_from)
