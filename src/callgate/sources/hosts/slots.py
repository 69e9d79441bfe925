"""How many calls a host runs at once; the others wait in their order."""

from __future__ import annotations

import asyncio
from collections import deque


class Slots:
    """As `asyncio.Semaphore`, but without a coroutine where a slot is free."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: deque[asyncio.Future[None]] = deque()

    def acquire(self) -> asyncio.Future[None] | None:
        """Take a slot: None if it is taken now, else what to wait for with `until`."""
        if self._free:
            self._free -= 1
            return None
        ticket: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(ticket)
        return ticket

    async def until(self, ticket: asyncio.Future[None]) -> None:
        """Wait for a slot. A cancelled waiter holds none."""
        try:
            await ticket
        except BaseException:
            if ticket.done() and not ticket.cancelled():
                self.release()
            raise

    def release(self) -> None:
        """Pass the slot to the longest waiter."""
        while self._waiting:
            ticket = self._waiting.popleft()
            if not ticket.done():
                ticket.set_result(None)
                return
        self._free += 1
