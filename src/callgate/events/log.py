"""What happens in the sessions of this process, on its way to the store.

    append -> [what waits, per session] --a few ms--> one commit, nobody waits for it
    commit -> [the same, in its place]  ---at once--> a commit of its own, waited for

A session is made in the store, and owned by this process, with the first thing that is
written about it. What cannot be written now because the disk is full or read-only is logged, up
to a bound, and tried again; what is waited for fails with the reason instead.
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
from callgate.core.task_sets import start_task

DELAY_S = 0.04
"""How long an event may wait for company: others must see it within a tenth of a second."""
_MANY = 2_000
RETRY_S = 2.0
CHECKPOINT_S = 1.0
"""How often the journal is told how far the store has followed it."""
KEPT_OUTPUT = 4_000
"""Of a session's events, the newest among which output deltas keep their text."""
_STEP = 1_000
BOUND = 10_000
"""Events of one session that wait for a disk in trouble; further ones are lost, and counted."""

_log = logging.getLogger("callgate.store")
_NOT_OURS = (SessionNotFound, StaleOwner, SessionLocked)

T = TypeVar("T")


class Journal(Protocol):
    """Where calls are written before they get here; `audit.log` implements it."""

    @property
    def place(self) -> tuple[int, int]: ...
    def stored(self, place: tuple[int, int]) -> None:
        """Everything before a place is in the store too."""
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
        """Whether it is in the store, as far as we know."""
        self.items: list[Event | _Waited] = []
        self.again = 0
        """How many of these, at the front, were tried before."""
        self.has_output = fence is not None
        """Whether there may be output to drop: what others wrote is not known."""
        self.dropped = 0
        """The number of the event up to which output was dropped."""
        self.failing = False
        """Whether the last attempt to write failed."""
        self.missed = 0
        self.leaving = False
        """Whether it is being given up: nothing of ours may follow that."""
        self.lost: StoreError | None = None
        """Why nothing more can be written about it."""


class SessionLog:
    """One per runtime. Belongs to the event loop in which it is first used."""

    def __init__(
        self, open_store: Callable[[], Awaitable[Store]], journal: Journal | None = None
    ) -> None:
        self._open_store = open_store
        self._store: Store | None = None
        self.lease: Lease | None = None
        """Of the store, once it is open; None where no session of a living process is lost."""
        self._failure: StoreError | None = None
        """Why there is no store and will be none."""
        self._opening: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sessions: dict[str, _LoggedSession] = {}
        self._dirty: dict[str, _LoggedSession] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._in_flight: set[asyncio.Future[Any]] = set()
        self._journal = journal
        self._checkpoint: asyncio.TimerHandle | None = None
        self.on_checkpoint: Callable[[], None] | None = None
        """Called once a second while something is written."""
        self._has_gap = False
        """Whether something was dropped: only the journal may have it, for whoever comes next."""
        self._waiting = 0
        """Events that wait, of all sessions."""
        self._later: list[Op[Any]] = []
        self._later_timer: asyncio.TimerHandle | None = None

    def append(self, session: Session, event: Event) -> None:
        """Write an event down soon. Never waits and never raises."""
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
            self._schedule(DELAY_S)
        elif self._waiting >= _MANY and self._store is not None and not logged.failing:
            self._write_all()  # the loop is busy: its timers may be late

    def commit(
        self, session: Session, op: SessionOp[T], *, insist: bool = False, soon: bool = False
    ) -> asyncio.Future[T]:
        """Write something down, after everything before it. Done when it is on the disk.

        `insist`: where that fails for now, whoever waits is told, and it is tried again. `soon`:
        nobody waits, so it may wait for company, as events do.
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
            if self._timer is not None:
                self._timer.cancel()
            self._schedule(0.0)
        elif self._timer is None:
            self._schedule(DELAY_S)
        return future

    def commit_later(self, op: Op[Any], within_s: float) -> None:
        """Commit something of no session, with others of its kind; nobody waits, and it may be
        lost with the process. While the disk is in trouble it waits for what goes before it."""
        self._later.append(op)
        if self._later_timer is None:
            loop = asyncio.get_running_loop()
            self._later_timer = loop.call_later(within_s, self._write_later)

    async def store(self) -> Store:
        """The store, to read from. Raises the `StoreError` for which there is none."""
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
        """From now on this process writes about a session that it acquired."""
        self._sessions[session.id] = _LoggedSession(session, fence)

    async def release(self, session_id: str) -> None:
        """Stop writing about a session; another process may have it."""
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
        """Name this process in the store, if others may have taken over its sessions meanwhile."""
        if self._store is None or self.lease is None or self.lease.is_valid:
            return None
        return self._store.owner

    @property
    def is_dead(self) -> bool:
        """Whether other processes took this one for dead: nothing more can be written."""
        return self._store is not None and self._store.is_dead

    @property
    def is_settled(self) -> bool:
        """Whether everything that was said is in the store."""
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
        """Wait until what was said so far is on the disk, or could not be written."""
        if self._dirty:
            await self._open()
        self._write_all()
        self._write_later()
        if self._in_flight:
            await asyncio.wait(set(self._in_flight))

    async def close(self) -> None:
        """Write what waits, give the sessions back, and leave."""
        if self._dirty:
            await self._open()
        if self._store is not None:
            for logged in [*self._sessions.values()]:
                if logged.session.parent is None:  # a worker's turn ends with its process
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

    def _schedule(self, delay_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._flush)

    def _flush(self) -> None:
        self._timer = None
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
        """Tell how far the store has followed, once it has what was said up to now."""
        self._checkpoint = None
        if self.on_checkpoint is not None:
            self.on_checkpoint()
        place = journal.place
        if self._dirty:
            self._write_all()
        followed = asyncio.gather(*self._in_flight, return_exceptions=True)

        def tell(followed: asyncio.Future[list[Any]]) -> None:
            failed = any(isinstance(each, BaseException) for each in followed.result())
            if not failed and not self._is_troubled:
                journal.stored(place)

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
        elif events:  # it is the op that was wrong, not what was said before it
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
        """Keep of it what can be kept: the events one by one, if there are several things."""
        if making:
            logged.stored = False
        if waited is not None and waited.insist:
            self._has_gap = True
        _tell(waited, error)
        if waited is not None or len(events) > 1:
            for event in events:
                self._write(logged, [event], None)
        elif events:
            _log.error("an event of type %s cannot be kept: %s", events[0].type, error)
            logged.missed += 1
            self._has_gap = True

    def _drop_output(self, logged: _LoggedSession, last: int) -> None:
        """What a tool printed long ago is in its result; the log holds the newest of it."""
        upto = last - KEPT_OUTPUT
        if upto >= logged.dropped + _STEP:
            drop = DropOutput(session=logged.session.id, after=logged.dropped, upto=upto)
            logged.dropped = upto
            self.commit(logged.session, drop)

    def _keep(self, logged: _LoggedSession, events: list[Event], waited: _Waited | None) -> None:
        """Try again later: in front of what came since."""
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
    """Whoever waited may be gone: an error that nobody takes is no defect."""
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
