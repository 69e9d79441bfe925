"""Events to many readers at once: emitting never waits, never raises, never grows.

    emit -> [reader's queue, bounded] -> async for
         -> [listener, called at once]

Whoever wants one session is not even looked at for the events of others. A reader with many events
before it reads them in fair turns. One that falls behind loses the newest events, not the oldest,
and is told how many in the place where they are missing. A listener that raises is logged and harms
nobody else.
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
    """Stands where a reader was too slow."""

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
        """How much more the queue takes."""
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
        """Stop: what is queued can still be read, then the iteration ends."""
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
        """By session; None: of all. Weak: a reader that nobody holds any more stops by itself."""
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
                    except Exception:  # foreign code: its failure is its own
                        _log.exception("an event listener failed on %s", event.type)

    def subscribe(
        self,
        *,
        session_id: str | None = None,
        types: Collection[str] | None = None,
        bound: int = QUEUE_BOUND,
    ) -> Subscription:
        """A reader of everything, or of one session, or of some types."""
        reader = Subscription(self, session_id, types, bound)
        drop = partial(_remove, self._readers, session_id)
        _add(self._readers, session_id, weakref.ref(reader, drop))
        return reader

    def listen(self, listener: Listener, session_id: str | None = None) -> Callable[[], None]:
        """Call a function at each event, or at those of one session; returns the function that
        ends it."""
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
