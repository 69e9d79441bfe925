"""Events to many concurrent readers: emitting never blocks, never raises, and uses bounded memory.

    emit -> [reader's queue, bounded] -> async for
         -> [listener, called immediately]

A reader of one session costs nothing for events of other sessions. A reader with a long backlog
reads in fair turns. A reader that falls behind loses the newest events, not the oldest, and
receives their number at that position. If a listener raises, the error is logged and the others are
still called.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from functools import partial
from typing import TypeVar

import msgspec

from callgate.core.events import Event
from callgate.core.turns import Pace

QUEUE_BOUND = 10_000

_log = logging.getLogger("callgate.events")

Listener = Callable[[Event], None]
T = TypeVar("T")


class Gap(msgspec.Struct, frozen=True):
    """Marks the position of events that a slow reader lost."""

    missed: int


class Subscription:
    """One reader: iterate it with `async for`; leave its `with` to stop."""

    def __init__(
        self, bus: Bus, session_id: str | None, types: Collection[str] | None, bound: int
    ) -> None:
        self._bus = bus
        self.session_id = session_id
        self._types = frozenset(types) if types is not None else None
        self._room = bound
        """Remaining capacity of the queue."""
        self._queue: deque[Event | Gap] = deque()
        self._missed = 0
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    def offer(self, event: Event) -> None:
        if self._types is not None and event.type not in self._types:
            return
        if self._room <= 0:
            self._missed += 1
            return
        if self._missed:
            self._mark_gap()
        self._queue.append(event)
        self._room -= 1
        if self._waiter is not None:
            self._wake()

    def close(self) -> None:
        """Stop. Queued events can still be read, then the iteration ends."""
        self._closed = True
        self._bus.forget(self)
        self._wake()

    def _mark_gap(self) -> None:
        if self._missed:
            self._queue.append(Gap(self._missed))
            self._room -= 1
            self._missed = 0

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aiter__(self) -> AsyncIterator[Event | Gap]:
        pace = Pace()
        while True:
            if not self._queue:
                self._mark_gap()
            while self._queue:
                item = self._queue.popleft()
                self._room += 1
                yield item
                if self._queue and pace.turns.now() > pace.until:
                    await pace.pause()
            if self._closed and not self._missed:
                return
            if not self._missed:
                waiter = self._waiter = asyncio.get_running_loop().create_future()
                await waiter
                pace.begin()


class Bus:
    """The process's event stream. Emit from the event loop's thread only."""

    def __init__(self) -> None:
        self._readers: dict[str | None, tuple[weakref.ref[Subscription], ...]] = {}
        """By session; None for readers of all sessions. Weak references: an unused reader ends."""
        self._listeners: dict[str | None, tuple[Listener, ...]] = {}

    def emit(self, event: Event) -> None:
        for session_id in (None, event.session_id):
            if session_id in self._readers:
                for reference in self._readers[session_id]:
                    reader = reference()
                    if reader is not None:
                        reader.offer(event)
            if session_id in self._listeners:
                for listener in self._listeners[session_id]:
                    try:
                        listener(event)
                    except Exception:  # foreign code: its failure affects no other listener
                        _log.exception("an event listener failed on %s", event.type)

    def subscribe(
        self,
        *,
        session_id: str | None = None,
        types: Collection[str] | None = None,
        bound: int = QUEUE_BOUND,
    ) -> Subscription:
        """Return a reader of all events, or of one session, or of some types."""
        reader = Subscription(self, session_id, types, bound)
        drop = partial(_remove, self._readers, session_id)
        _add(self._readers, session_id, weakref.ref(reader, drop))
        return reader

    def listen(self, listener: Listener, session_id: str | None = None) -> Callable[[], None]:
        """Call a function at each event, of one session or all. Return the unsubscribe function."""
        _add(self._listeners, session_id, listener)
        return partial(_remove, self._listeners, session_id, listener)

    def forget(self, reader: Subscription) -> None:
        for reference in self._readers.get(reader.session_id, ()):
            if reference() is reader:
                _remove(self._readers, reader.session_id, reference)


def _add(entries: dict[str | None, tuple[T, ...]], session_id: str | None, entry: T) -> None:
    entries[session_id] = (*entries.get(session_id, ()), entry)


def _remove(entries: dict[str | None, tuple[T, ...]], session_id: str | None, entry: T) -> None:
    left = tuple(each for each in entries.get(session_id, ()) if each is not entry)
    if left:
        entries[session_id] = left
    else:
        entries.pop(session_id, None)
