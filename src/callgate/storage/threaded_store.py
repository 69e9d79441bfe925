"""Stores with a writer thread and reader threads: batched commits, and the interface to the loop.

Commits are batched in one thread, each on top of the ones before it:

    write --queue--> thread: before_commit -> a batch -> one transaction -> outcomes reported

A lone commit is written immediately. Commits that arrive while it is being written share the next
transaction. Every waiter gets an outcome, on any failure. The engine implements the transaction.

The interface to the loop:

    commit() ---> pending ---> [writer thread], all commits of one round of the loop
read_*() ---> [reader threads], by the functions of the engine (`Reads`)
wake()   ---> hints, from this process immediately and from other processes by the engine

A hint carries no data: it may be late, duplicate or unfounded, and its receiver reads the store.
Each change of a session has a growing number; one number wakes no waiter twice, so the notice of an
own commit, read back from the disk, does not wake again.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import msgspec

from callgate.core.events import Event
from callgate.core.ids import owner_id
from callgate.core.ops import Op
from callgate.core.stored import (
    CutSession,
    SharedEntry,
    StoredCall,
    StoredConfirmation,
    StoredGrant,
    StoredMessage,
    StoredSession,
)
from callgate.core.stores import (
    PAGE,
    POLL_S,
    Behind,
    EventPage,
    Hint,
    Lease,
    SessionPage,
    Snapshot,
    StoreClosed,
    StoreError,
)
from callgate.storage.changes import apply
from callgate.storage.encoding import encode_ops
from callgate.storage.queries import Queries
from callgate.storage.views import Rows, View

BATCH_OPS = 256
log = logging.getLogger("callgate.store")


class Commit(msgspec.Struct, frozen=True, eq=False):
    """One `commit` and its ops."""

    ops: Sequence[Op[Any]]
    texts: dict[str, str]
    """The encoded events, by id."""
    waiter: Any
    """Returned with the outcome."""


Outcome = tuple[Commit, tuple[Any, ...] | Exception]
Tell = Callable[[Sequence[Outcome], Mapping[str, int]], None]
"""Receives the outcomes of a batch and the changed sessions, in the writer's thread."""


def batches(commits: Iterable[Commit]) -> Iterable[list[Commit]]:
    """Split commits, in order, into batches of at most `BATCH_OPS` ops, or of one larger commit."""
    batch: list[Commit] = []
    room = BATCH_OPS
    for commit in commits:
        alone = any(op.sole for op in commit.ops)
        room -= len(commit.ops)
        if batch and (alone or room < 0):
            yield batch
            batch, room = [], BATCH_OPS - len(commit.ops)
        batch.append(commit)
        if alone:
            yield batch
            batch, room = [], BATCH_OPS
    if batch:
        yield batch


def apply_all(batch: Sequence[Commit], rows: Rows) -> tuple[list[Outcome], View]:
    """Apply each commit on top of the ones before it; one that fails leaves nothing."""
    view = View(rows)
    outcomes: list[Outcome] = []
    for commit in batch:
        view.begin(commit.texts)
        try:
            results = tuple([apply(op, view) for op in commit.ops])
        except UnicodeDecodeError:  # of a row, not of the commit
            raise
        except (StoreError, ValueError) as error:
            view.undo()
            outcomes.append((commit, error))
        else:
            outcomes.append((commit, results))
    return outcomes, view


class BatchWriter(ABC):
    idle_s: float | None = None
    """Time without commits until `_on_idle` is called; None: never."""

    def __init__(self, tell: Tell, before_commit: Callable[[], None]) -> None:
        """Both are called in the writer's thread."""
        self._tell = tell
        self._before_commit = before_commit
        self._queue: queue.SimpleQueue[list[Commit] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @abstractmethod
    def _transact(self, batch: list[Commit]) -> tuple[list[Outcome], dict[str, int]]:
        """Write a batch in one transaction: the outcome of each commit, and the sessions that
        changed. Raises `StoreError` where none of it can be written now."""

    @abstractmethod
    def _disconnect(self) -> None: ...

    def _on_idle(self) -> None:  # noqa: B027
        """Called after a time without commits."""

    def _split(self, batch: list[Commit]) -> Iterable[list[Commit]]:
        """Split a batch into the parts that need separate transactions."""
        return (batch,)

    @abstractmethod
    def _after_batch(self, changed: Mapping[str, int]) -> None:
        """Runs after waiters are notified, for work that no caller waits on."""

    def write(self, commits: list[Commit]) -> None:
        """Queue commits, in order. The first ones start the thread."""
        self._queue.put(commits)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="callgate-store-writer", daemon=True
            )
            self._thread.start()

    def close(self) -> None:
        """Write all accepted commits, and end."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
        self._disconnect()

    def _run(self) -> None:
        ending = False
        while not ending:
            taken = [self._wait_for_work()]
            while not self._queue.empty():
                taken.append(self._queue.get())
            ending = None in taken
            commits = [commit for some in taken if some is not None for commit in some]
            if commits:
                self._before_commit()
            for batch in batches(commits):
                for part in self._split(batch):
                    self._write(part)

    def _wait_for_work(self) -> list[Commit] | None:
        while True:
            try:
                return self._queue.get(timeout=self.idle_s)
            except queue.Empty:
                self._on_idle()

    def _write(self, batch: list[Commit]) -> None:
        """Write a batch, and report its outcome."""
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
            if not isinstance(error, ValueError):  # a mistake of the caller, who gets the error
                log.exception("a commit failed")
            outcomes = [(batch[0], error)]
        self._tell(outcomes, changed)
        self._after_batch(changed)


class Waiter:
    """One waiter, in a `with`."""

    def __init__(self, hints: Hints, sessions: frozenset[str]) -> None:
        self._hints = hints
        self._sessions = sessions
        self._event = asyncio.Event()

    def __enter__(self) -> Self:
        self._hints.add(self, self._sessions)
        return self

    def __exit__(self, *exc: object) -> None:
        self._hints.remove(self, self._sessions)

    def tell(self) -> None:
        self._event.set()

    async def wait(self, limit_s: float = POLL_S) -> bool:
        """Wait for a change since the last wait; False if none was reported."""
        try:
            async with asyncio.timeout(limit_s):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


class Hints:
    """The waiters of one store; used only in the thread of its event loop."""

    def __init__(self, on_change: Callable[[bool], None] = lambda waited_for: None) -> None:
        self._on_change = on_change
        """Called when the first waiter begins, and after the last one has ended."""
        self._by_session: dict[str | None, list[Waiter]] = {}
        self._last_seen: dict[str, int] = {}
        """The last reported number of each session, while there are waiters."""

    def wake(self, *sessions: str) -> Waiter:
        return Waiter(self, frozenset(sessions))

    def add(self, waiter: Waiter, sessions: frozenset[str]) -> None:
        first = not self._by_session
        for session in sessions or (None,):
            self._by_session.setdefault(session, []).append(waiter)
        if first:
            self._on_change(True)

    def __bool__(self) -> bool:
        """Whether there are waiters."""
        return bool(self._by_session)

    def remove(self, waiter: Waiter, sessions: frozenset[str]) -> None:
        for session in sessions or (None,):
            waiters = self._by_session[session]
            waiters.remove(waiter)
            if not waiters:
                del self._by_session[session]
        if not self._by_session:
            self._last_seen.clear()
            self._on_change(False)

    def fire(self, changed: Mapping[str, int]) -> None:
        """Report changed sessions, each with the number of the change."""
        if not self._by_session:
            return
        for session, number in changed.items():
            if number > self._last_seen.get(session, 0):
                self._last_seen[session] = number
                for waiter in self._by_session.get(session, ()):
                    waiter.tell()
                for waiter in self._by_session.get(None, ()):
                    waiter.tell()

    def fire_all(self) -> None:
        """Report that anything may have changed."""
        for waiters in self._by_session.values():
            for waiter in waiters:
                waiter.tell()


C = TypeVar("C")
P = ParamSpec("P")
T = TypeVar("T")


class ThreadedStore(Generic[C]):
    """Belongs to the event loop in which it was opened."""

    lease: Lease | None = None

    def __init__(self, reads: Queries[C], owner: str | None) -> None:
        self.owner = owner or owner_id()
        self._reads = reads
        self._loop = asyncio.get_running_loop()
        self._hints = self._make_hints()
        self._pending: list[Commit] = []
        self._flush_held: Callable[[], Coroutine[Any, Any, None]] | None = None
        """Writes the events that wait for a reader."""
        self._closed = False

    @property
    def is_dead(self) -> bool:
        """Whether other processes declared this one dead: it has to restart."""
        return False

    def _make_hints(self) -> Hints:
        return Hints()

    @abstractmethod
    def _write(self, commits: list[Commit]) -> None:
        """Pass commits to the writer's thread."""

    @abstractmethod
    def _ask(self, question: Callable[[C], T]) -> Awaitable[T]:
        """Run a query in a reader's thread."""

    @abstractmethod
    def _end(self) -> None:
        """Write all accepted commits, and end all threads. Called in a thread."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Write all commits and close; the sessions owned here become free."""
        if self._closed:
            return
        self._closed = True
        self._hand_over()
        await self._loop.run_in_executor(None, self._end)

    def may_hold(self, flush: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        return False

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
        """Report changes of other processes; None: anything. Called in any thread."""
        if changed is None:
            self._in_loop(self._hints.fire_all)
        else:
            self._in_loop(self._hints.fire, changed)

    def _in_loop(self, callback: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop ended without closing the store; no waiters
            pass

    # Reading.

    async def _read(
        self, ask: Callable[Concatenate[C, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if self._closed:
            raise StoreClosed
        if self._flush_held is not None:
            await self._flush_held()
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

    async def get_blob(self, sha256: str) -> bytes | None:
        return await self._read(self._reads.get_blob, sha256)

    async def cut_sessions(self) -> Sequence[CutSession]:
        return await self._read(self._reads.cut_sessions)

    async def entries(self, kind: str) -> Sequence[SharedEntry]:
        return await self._read(self._reads.entries, kind)

    async def audited_from(self) -> str | None:
        return await self._read(self._reads.audited_from)
