"""Events to many readers at once: emitting never waits, never raises, never grows.

    emit -> [reader's queue, bounded] -> async for
         -> [listener, called at once]

A reader that falls behind loses the newest events, not the oldest, and is told how many in
the place where they are missing. A listener that raises is logged and harms nobody else.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection

import msgspec

from callgate.core.events import Event

QUEUE_BOUND = 10_000

_log = logging.getLogger("callgate.events")

Listener = Callable[[Event], None]


class Gap(msgspec.Struct, frozen=True):
    """Stands where a reader was too slow."""

    missed: int


class Subscription:
    """One reader: iterate it with `async for`; leave its `with` to stop."""

    def __init__(
        self, bus: Bus, session_id: str | None, types: Collection[str] | None, bound: int
    ) -> None:
        self._bus = bus
        self._session_id = session_id
        self._types = frozenset(types) if types is not None else None
        self._bound = bound
        self._queue: deque[Event | Gap] = deque()
        self._missed = 0
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    def offer(self, event: Event) -> None:
        if self._session_id is not None and event.session_id != self._session_id:
            return
        if self._types is not None and event.type not in self._types:
            return
        if len(self._queue) >= self._bound:
            self._missed += 1
            return
        if self._missed:
            self._mark_gap()
        self._queue.append(event)
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
            self._missed = 0

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aiter__(self) -> AsyncIterator[Event | Gap]:
        while True:
            if not self._queue:
                self._mark_gap()
            while self._queue:
                yield self._queue.popleft()
            if self._closed and not self._missed:
                return
            if not self._missed:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter


class Bus:
    """The process's event stream. Emit from the event loop's thread only."""

    def __init__(self) -> None:
        self._readers: tuple[weakref.ref[Subscription], ...] = ()
        """Weak: a reader that nobody holds any more stops by itself."""
        self._listeners: tuple[Listener, ...] = ()

    def emit(self, event: Event) -> None:
        for reference in self._readers:
            reader = reference()
            if reader is not None:
                reader.offer(event)
        for listener in self._listeners:
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
        self._readers += (weakref.ref(reader, self._drop),)
        return reader

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call a function at each event; returns the function that ends it."""
        self._listeners += (listener,)

        def stop() -> None:
            self._listeners = tuple(other for other in self._listeners if other is not listener)

        return stop

    def forget(self, reader: Subscription) -> None:
        self._readers = tuple(other for other in self._readers if other() is not reader)

    def _drop(self, reference: weakref.ref[Subscription]) -> None:
        self._readers = tuple(other for other in self._readers if other is not reference)
