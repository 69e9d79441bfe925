"""Session log: events of this process on their way to the store.

    append -> [pending, per session] --a few ms---> one commit that no caller waits for
    append of an event that the journal has: up to 1 s later, or as soon as a reader reads
    commit -> [the same, in order]  ---immediate--> a separate commit that its caller waits for

The first write about a session creates it in the store, owned by this process. If the disk is full
or read-only, events are buffered up to a limit and retried; a commit with a waiting caller fails
with the reason instead.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar, final

from msgspec.structs import replace

from callgate.core.events import EVENTS_LOST, OUTPUT_DELTA, SESSION_CREATED, Event
from callgate.core.ids import ulid
from callgate.core.ops import (
    Acquire,
    Append,
    DropOutput,
    NewSession,
    Op,
    Release,
    SessionOp,
)
from callgate.core.sessions import Session
from callgate.core.stores import (
    Lease,
    SessionLocked,
    SessionNotFound,
    StaleOwner,
    Store,
    StoreClosed,
    StoreError,
    StoreUnwritable,
    is_lost,
)
from callgate.core.tasks import start_task

DELAY_S = 0.04
"""How long an event may wait for others in a batch: readers must see it within 0.1 s."""
HOLD_S = 1.0
"""How long an event may wait that the journal has too, while there are no readers."""
_MANY = 2_000
RETRY_S = 2.0
CHECKPOINT_S = 1.0
"""Interval at which the journal learns how far the store has followed it."""
KEPT_OUTPUT = 4_000
"""Number of newest events of a session in which output deltas retain their text."""
_STEP = 1_000
BOUND = 10_000
"""Maximum pending events of a session during disk failures; more are lost, and counted."""

_log = logging.getLogger("callgate.store")
_NOT_OURS = (SessionNotFound, StaleOwner, SessionLocked)

T = TypeVar("T")


class Journal(Protocol):
    """The audit log as the first store of calls; `audit.log` implements it."""

    @property
    def position(self) -> tuple[int, int]: ...
    def stored(self, position: tuple[int, int]) -> None:
        """Note that the store has everything before a position."""
        ...


@final
class _Waited(NamedTuple):
    op: SessionOp[Any]
    future: asyncio.Future[Any]
    insist: bool


class _LoggedSession:
    """A session that this process writes about."""

    __slots__ = (
        "again",
        "dropped",
        "failing",
        "fence",
        "has_output",
        "items",
        "leaving",
        "lost",
        "missed",
        "session",
        "stored",
    )

    def __init__(self, session: Session, fence: int | None) -> None:
        self.session = session
        self.fence = fence
        self.stored = fence is not None
        """Whether the store has it, as far as known."""
        self.items: list[Event | _Waited] = []
        self.again = 0
        """Number of items at the front that were tried before."""
        self.has_output = fence is not None
        """Whether there may be output to drop: events of other processes are unknown."""
        self.dropped = 0
        """The number of the event up to which output was dropped."""
        self.failing = False
        """Whether the last attempt to write failed."""
        self.missed = 0
        self.leaving = False
        """Whether the session is being released: no more writes may follow."""
        self.lost: StoreError | None = None
        """Why the session can no longer be written."""


class SessionLog:
    """One per runtime. Belongs to the event loop in which it is first used."""

    def __init__(
        self, open_store: Callable[[], Awaitable[Store]], journal: Journal | None = None
    ) -> None:
        self._open_store = open_store
        self._store: Store | None = None
        self.lease: Lease | None = None
        """Lease of the store, once it is open; None if sessions of a living process are never lost.
        """
        self._failure: StoreError | None = None
        """Why the store can never be opened."""
        self._opening: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sessions: dict[str, _LoggedSession] = {}
        self._dirty: dict[str, _LoggedSession] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_holding = False
        """Whether the timer waits for as long as there are no readers."""
        self._in_flight: set[asyncio.Future[Any]] = set()
        self._journal = journal
        self._checkpoint: asyncio.TimerHandle | None = None
        self.on_checkpoint: Callable[[], None] | None = None
        """Called once a second while writes happen."""
        self._has_gap = False
        """Whether events were dropped: then only the journal may have them, for recovery."""
        self._waiting = 0
        """Number of pending events of all sessions."""
        self._later: list[Op[Any]] = []
        self._later_timer: asyncio.TimerHandle | None = None

    def append(self, session: Session, event: Event, *, is_in_journal: bool = False) -> None:
        """Record an event soon. Never waits and never raises.

        An event that is in the journal, or will be before the event loop continues, may wait longer
        while there are no readers.
        """
        session_id = session.id
        if session_id in self._sessions:
            logged = self._sessions[session_id]
        else:
            logged = self._begin(session)
        if logged.failing and len(logged.items) >= BOUND:
            logged.missed += 1
            self._has_gap = True
            return
        logged.items.append(event)
        self._waiting += 1
        self._dirty[session_id] = logged
        if self._timer is None:
            self._schedule_events(logged, is_in_journal)
        elif self._is_holding and not is_in_journal:
            self.hasten()
        elif self._waiting >= _MANY and self._store is not None and not logged.failing:
            self._write_all()  # the loop is busy: its timers may be late

    def commit(
        self, session: Session, op: SessionOp[T], *, insist: bool = False, soon: bool = False
    ) -> asyncio.Future[T]:
        """Commit an operation after all earlier ones. The future completes when it is on the disk.

        `insist`: on a temporary failure, the caller gets the error, and the commit is retried.
        `soon`: no caller waits, so the commit may be batched, as events are.
        """
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise RuntimeError("this runtime belongs to another event loop")
        self._loop = loop
        future: asyncio.Future[T] = loop.create_future()
        future.add_done_callback(_seen)
        logged = self._sessions.get(session.id) or self._begin(session)
        logged.items.append(_Waited(op, future, insist))
        self._dirty[session.id] = logged
        if not soon:
            self._schedule(0.0)
        elif self._timer is None or self._is_holding:
            self._schedule(DELAY_S)
        return future

    def hasten(self) -> None:
        """Let held events wait no longer than others, because a call takes longer than a moment."""
        if self._is_holding:
            self._schedule(DELAY_S)

    def commit_later(self, op: Op[Any], within_s: float) -> None:
        """Commit an operation without a session, batched; it may be lost with the process. If the
        disk fails, it waits for the operations before it."""
        self._later.append(op)
        if self._later_timer is None:
            loop = asyncio.get_running_loop()
            self._later_timer = loop.call_later(within_s, self._write_later)

    async def store(self) -> Store:
        """Return the store, for reading. Raises the `StoreError` if there is none."""
        if self._store is None and self._failure is None:
            await asyncio.shield(self._open())
        if self._failure is not None:
            raise self._failure
        assert self._store is not None
        return self._store

    def holds(self, session_id: str) -> bool:
        """Whether this process writes about a session."""
        return session_id in self._sessions

    def has_lost(self, session_id: str) -> bool:
        """Whether another process has taken over a session that this one writes about."""
        logged = self._sessions.get(session_id)
        return logged is not None and isinstance(logged.lost, StaleOwner)

    def adopt(self, session: Session, fence: int) -> None:
        """Start writing about a session that this process has acquired."""
        self._sessions[session.id] = _LoggedSession(session, fence)

    async def release(self, session_id: str) -> None:
        """Stop writing about a session, so that another process can take it."""
        logged = self._sessions.get(session_id)
        if logged is None:
            return
        try:
            store = await self.store()
            await self._release(logged, store.owner)
        except StoreError as error:
            _log.warning("session %s was not released: %s", session_id, error)
        self._sessions.pop(session_id, None)

    @property
    def doubtful_owner(self) -> str | None:
        """Name this process in the store, if others may have taken over its sessions in the
        meantime."""
        if self._store is None or self.lease is None or self.lease.is_valid:
            return None
        return self._store.owner

    @property
    def is_dead(self) -> bool:
        """Whether other processes consider this one dead: nothing more can be written."""
        return self._store is not None and self._store.is_dead

    @property
    def is_settled(self) -> bool:
        """Whether the store has all events."""
        return not (self._dirty or self._in_flight or self._is_troubled)

    @property
    def _is_troubled(self) -> bool:
        if self._failure is not None and not isinstance(self._failure, StoreClosed):
            return True
        return self._has_gap or any(each.failing for each in self._sessions.values())

    def _release(self, logged: _LoggedSession, owner: str) -> asyncio.Future[bool]:
        logged.leaving = True
        return self.commit(logged.session, Release(session=logged.session.id, owner=owner))

    async def flush(self) -> None:
        """Wait until all pending events are durable, or have failed."""
        if self._dirty:
            await self._open()
        self._stop_timer()
        self._write_all()
        self._write_later()
        if self._in_flight:
            await asyncio.wait(set(self._in_flight))

    async def close(self) -> None:
        """Write pending events, release the sessions, and close."""
        if self._dirty:
            await self._open()
        if self._store is not None:
            for logged in [*self._sessions.values()]:
                if logged.session.parent is None:  # a sub-agent's turn ends with its process
                    self._release(logged, self._store.owner)
        await self.flush()
        for timer in (self._timer, self._checkpoint, self._later_timer):
            if timer is not None:
                timer.cancel()
        if self._store is not None:
            await self._store.close()
        self._failure = self._failure or StoreClosed()

    # On the way to the disk.

    def _begin(self, session: Session) -> _LoggedSession:
        logged = self._sessions[session.id] = _LoggedSession(session, None)
        return logged

    def _schedule_events(self, logged: _LoggedSession, is_in_journal: bool) -> None:
        may_hold = is_in_journal and logged.stored and self._journal is not None
        if may_hold and self._store is not None and self._store.may_hold(self._flush_held):
            self._schedule(HOLD_S)
            self._is_holding = True
        else:
            self._schedule(DELAY_S)

    async def _flush_held(self) -> None:
        """Write the held events, for a reader."""
        if self._is_holding:
            self._stop_timer()
            self._write_all()
            if self._in_flight:
                await asyncio.wait(set(self._in_flight))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._is_holding = None, False

    def _schedule(self, delay_s: float) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._flush)

    def _flush(self) -> None:
        self._timer, self._is_holding = None, False
        if self._store is None and self._failure is None:
            self._open().add_done_callback(lambda _: self._write_all())
        else:
            self._write_all()

    def _open(self) -> asyncio.Task[None]:
        if self._opening is None:
            self._opening = start_task(self._opened())
        return self._opening

    async def _opened(self) -> None:
        try:
            self._store = await self._open_store()
            self.lease = self._store.lease
        except StoreError as error:
            _log.error("nothing is kept: %s", error)
            self._failure = error

    def _write_all(self) -> None:
        dirty, self._dirty, self._waiting = self._dirty, {}, 0
        for logged in dirty.values():
            items, logged.items, logged.again = logged.items, [], 0
            events: list[Event] = []
            for item in items:
                if type(item) is _Waited:
                    self._write(logged, events, item)
                    events = []
                else:
                    events.append(item)
            if events:
                self._write(logged, events, None)
        if dirty and self._journal is not None and self._checkpoint is None:
            loop = asyncio.get_running_loop()
            self._checkpoint = loop.call_later(CHECKPOINT_S, self._tell_journal, self._journal)

    def _write_later(self) -> None:
        if self._later_timer is not None:
            self._later_timer.cancel()
            self._later_timer = None
        later, self._later = self._later, []
        if self._store is None or self._failure is not None or not later:
            return
        if any(each.failing for each in self._sessions.values()):
            self._keep_later(later)
            return
        written = self._store.commit(*later)
        self._in_flight.add(written)
        written.add_done_callback(partial(self._written_later, later))

    def _written_later(
        self, later: list[Op[Any]], written: asyncio.Future[tuple[Any, ...]]
    ) -> None:
        self._in_flight.discard(written)
        if isinstance(written.exception(), StoreUnwritable):
            self._keep_later(later)

    def _keep_later(self, later: list[Op[Any]]) -> None:
        self._later = [*later, *self._later][-BOUND:]
        if self._later_timer is None:
            loop = asyncio.get_running_loop()
            self._later_timer = loop.call_later(RETRY_S, self._write_later)

    def _tell_journal(self, journal: Journal) -> None:
        """Report how far the store has followed, once it has the present events."""
        self._checkpoint = None
        if self.on_checkpoint is not None:
            self.on_checkpoint()
        position = journal.position
        if self._is_holding:
            self._stop_timer()
        if self._dirty:
            self._write_all()
        followed = asyncio.gather(*self._in_flight, return_exceptions=True)

        def tell(followed: asyncio.Future[list[Any]]) -> None:
            failed = any(isinstance(each, BaseException) for each in followed.result())
            if not failed and not self._is_troubled:
                journal.stored(position)

        followed.add_done_callback(tell)

    def _write(self, logged: _LoggedSession, events: list[Event], waited: _Waited | None) -> None:
        failure = self._failure or logged.lost
        if failure is not None:
            self._has_gap |= is_lost(failure)
            _tell(waited, failure)
            return
        assert self._store is not None
        making = not logged.stored
        ops: list[Op[Any]] = []
        if making:
            ops = _creation(logged.session, self._store.owner)
        logged.stored = True
        if logged.missed:
            events.append(_gap(logged))
        if events:
            ops.append(Append(session=logged.session.id, fence=logged.fence, events=tuple(events)))
        if waited is not None:
            ops.append(replace(waited.op, fence=logged.fence))
        try:
            written = self._store.commit(*ops)
        except Exception as error:  # what cannot be written at all: no data, or a closed store
            self._unwritable(logged, making, events, waited, error)
            return
        self._in_flight.add(written)
        written.add_done_callback(partial(self._written, logged, making, events, waited))

    def _written(
        self,
        logged: _LoggedSession,
        making: bool,
        events: list[Event],
        waited: _Waited | None,
        written: asyncio.Future[tuple[Any, ...]],
    ) -> None:
        self._in_flight.discard(written)
        error = written.exception()
        if error is None:
            results = written.result()
            logged.failing = False
            if making:
                logged.fence = results[1]
            if waited is not None and not waited.future.done():
                waited.future.set_result(results[-1])
            if not logged.has_output:
                logged.has_output = any(each.type == OUTPUT_DELTA for each in events)
            if events and logged.has_output and not logged.leaving:
                self._drop_output(logged, results[-1 if waited is None else -2][-1])
            return
        if not isinstance(error, StoreError):
            self._unwritable(logged, making, events, waited, error)
            return
        if making:
            logged.stored = False
        if isinstance(error, StoreUnwritable) and not is_lost(error):
            self._keep(logged, events, waited)
        elif isinstance(error, SessionNotFound) and logged.fence is None:
            logged.stored = False  # what should have made it could not be written
            self._keep(logged, events, waited)
        elif isinstance(error, _NOT_OURS) or is_lost(error):
            _log.error("nothing more is written about session %s: %s", logged.session.id, error)
            logged.lost = error
            self._has_gap |= is_lost(error)
        elif events:  # the op failed, not the events before it
            self._write(logged, events, None)
        _tell(waited, error)

    def _unwritable(
        self,
        logged: _LoggedSession,
        making: bool,
        events: list[Event],
        waited: _Waited | None,
        error: BaseException,
    ) -> None:
        """Save as much as possible: retry the events one by one."""
        if making:
            logged.stored = False
        if waited is not None and waited.insist:
            self._has_gap = True
        _tell(waited, error)
        if waited is not None or len(events) > 1:
            for event in events:
                self._write(logged, [event], None)
        elif events:
            _log.error("an event of type %s cannot be stored: %s", events[0].type, error)
            logged.missed += 1
            self._has_gap = True

    def _drop_output(self, logged: _LoggedSession, last: int) -> None:
        """Drop old output deltas: the result has their text, and the log retains the newest."""
        upto = last - KEPT_OUTPUT
        if upto >= logged.dropped + _STEP:
            drop = DropOutput(session=logged.session.id, after=logged.dropped, upto=upto)
            logged.dropped = upto
            self.commit(logged.session, drop)

    def _keep(self, logged: _LoggedSession, events: list[Event], waited: _Waited | None) -> None:
        """Retry later, before newer items."""
        logged.failing = True
        again: list[Event | _Waited] = [*events]
        if waited is not None and waited.insist:
            again.append(waited)
        logged.items[logged.again : logged.again] = again  # behind what failed before it
        logged.again += len(again)
        if again:
            self._dirty[logged.session.id] = logged
            if self._timer is None:
                self._schedule(RETRY_S)


def _seen(future: asyncio.Future[Any]) -> None:
    """Retrieve the error of a future whose caller is gone, so that asyncio does not log it."""
    if not future.cancelled():
        future.exception()


def _tell(waited: _Waited | None, error: BaseException) -> None:
    if waited is not None and not waited.future.done():
        waited.future.set_exception(error)


def _gap(logged: _LoggedSession) -> Event:
    missed, logged.missed = logged.missed, 0
    return _system_event(logged.session, EVENTS_LOST, {"missed": missed})


def _system_event(session: Session, type: str, payload: dict[str, Any]) -> Event:
    return Event(
        id=ulid(),
        timestamp=time.time(),
        session_id=session.id,
        type=type,
        actor="system",
        payload=payload,
    )


def _creation(session: Session, owner: str) -> list[Op[Any]]:
    now = time.time()
    payload: dict[str, Any] = {"workspace": session.workspace, "mode": session.mode}
    if session.client is not None and session.client.label is not None:
        payload["client"] = session.client.label
    return [
        NewSession(
            session=session.id,
            workspace=session.workspace,
            mode=session.mode,
            title=session.title,
            parent=session.parent,
            extra_roots=session.extra_roots,
            tags=session.tags,
            at=now,
        ),
        Acquire(session=session.id, owner=owner, at=now),
        Append(session=session.id, events=(_system_event(session, SESSION_CREATED, payload),)),
    ]
