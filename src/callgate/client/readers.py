"""Events of a connection for those who read them, each at its own pace and within bounds."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection

from callgate.client.errors import InstanceGone
from callgate.core.events import Event
from callgate.events.bus import QUEUE_BOUND, Gap


class Events:
    """One reader: iterate it with `async for`; leave its `with` to stop.

    The newest events are lost to a reader that falls behind; a `Gap` stands in their place.
    The iteration ends with the connection, and raises if that was lost.
    """

    def __init__(
        self, types: Collection[str] | None, forget: Callable[[Events], None], bound: int
    ) -> None:
        self._types = None if types is None else frozenset(types)
        self._forget = forget
        self._bound = bound
        self._queue: deque[Event | Gap] = deque()
        self._missed = 0
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self._error: InstanceGone | None = None

    def offer(self, event: Event) -> None:
        if self._types is not None and event.type not in self._types:
            return
        if len(self._queue) >= self._bound:
            self._missed += 1
            return
        self._mark_gap()
        self._queue.append(event)
        self._wake()

    def miss(self, count: int) -> None:
        """Some did not even arrive here."""
        self._missed += count
        self._wake()

    def end(self, error: InstanceGone | None) -> None:
        """No more will come: what is here can still be read."""
        self._ended, self._error = True, self._error or error
        self._wake()

    def close(self) -> None:
        self._forget(self)
        self.end(None)

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> Event | Gap:
        got = await self.read()
        if got is None:
            raise StopAsyncIteration
        return got

    async def read(self) -> Event | Gap | None:
        """The next one; None where there will be none."""
        while True:
            if not self._queue:
                self._mark_gap()
            if self._queue:
                return self._queue.popleft()
            if self._error is not None:
                raise self._error
            if self._ended:
                return None
            if self._waiter is None or self._waiter.done():
                self._waiter = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._waiter)

    def _mark_gap(self) -> None:
        if self._missed:
            self._queue.append(Gap(self._missed))
            self._missed = 0

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Readers:
    """All readers of one connection."""

    def __init__(self) -> None:
        self._readers: list[Events] = []

    def add(self, types: Collection[str] | None, bound: int = QUEUE_BOUND) -> Events:
        reader = Events(types, self._remove, bound)
        self._readers.append(reader)
        return reader

    def offer(self, event: Event) -> None:
        for reader in self._readers:
            reader.offer(event)

    def miss(self, count: int) -> None:
        for reader in self._readers:
            reader.miss(count)

    def end(self, error: Callable[[], InstanceGone] | None) -> None:
        for reader in self._readers:
            reader.end(None if error is None else error())
        self._readers = []

    def _remove(self, reader: Events) -> None:
        if reader in self._readers:
            self._readers.remove(reader)
