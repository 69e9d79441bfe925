"""Backpressure of one reader on the producers of its input, bounded in time.

    reads --pause--> behind --resume--> reads
                       |
                       +-- after `patience_s`: producers continue, whether or not there is room
                           for their output, until the next `resume`

A producer that can wait does so while `wait` returns a future: the output of a command stays in
its pipe, the coroutine of a tool is not resumed. Each producer has its own future, so cancelling
one of them does not affect another.
"""

from __future__ import annotations

import asyncio

PATIENCE_S = 10.0
"""How long producers wait for a reader that does not read."""


def dropped_events(count: int) -> str:
    """Return the mark for events of a call that were not delivered."""
    events = "1 event" if count == 1 else f"{count} events"
    return f"{events} of this call were dropped: not read in time, or too large to send."


class Backpressure:
    def __init__(self, patience_s: float | None = None) -> None:
        self.patience_s = PATIENCE_S if patience_s is None else patience_s
        self._waiters: set[asyncio.Future[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        """Runs while producers wait."""
        self._has_given_up = False

    @property
    def is_on(self) -> bool:
        """Whether producers wait. Safe to read in any thread."""
        return self._timer is not None

    def pause(self) -> None:
        """The reader has fallen behind. Idempotent."""
        if self._timer is None and not self._has_given_up:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self.patience_s, self._give_up)

    def resume(self) -> None:
        """The reader has caught up, or has left. Idempotent."""
        self._has_given_up = False
        self._release()

    def wait(self) -> asyncio.Future[None] | None:
        """Return a future that is done once the producer may continue; None: it may now."""
        if self._timer is None:
            return None
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        waiter.add_done_callback(self._waiters.discard)
        return waiter

    def _give_up(self) -> None:
        self._has_given_up = True
        self._release()

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for waiter in list(self._waiters):
            if not waiter.done():
                waiter.set_result(None)
