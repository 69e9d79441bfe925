"""Fair turns on the event loop: who has much to do does a slice of it, then others have theirs.

    light   handled within a slice: at once, in the turn in which it came
    heavy   one slice of one of them in a turn of the loop; and while somebody who is light is
            being served, the loop rests between two slices

So however many flood, whoever asks for little waits for about one slice.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
import weakref
from collections import deque
from collections.abc import Callable

SLICE_S = 0.00025
"""How long one slice may take."""
_REST_S = 0.001
_RECENT_S = 0.05
"""For how long somebody counts as being served after a request."""


class Turns:
    """Of one event loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self.now = now
        self._loop = loop
        self._waiting: deque[tuple[Callable[[], None], contextvars.Context]] = deque()
        self._light_at = float("-inf")

    def note_light(self) -> None:
        """Somebody asks for something, and does not flood."""
        self._light_at = self.now()

    def wait(self, work: Callable[[], None]) -> None:
        """Have a slice of heavy work done when it is its turn."""
        self._waiting.append((work, contextvars.copy_context()))
        if len(self._waiting) == 1:
            self._schedule()

    def _schedule(self) -> None:
        if self.now() - self._light_at < _RECENT_S:
            self._loop.call_later(_REST_S, self._run)
        else:
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        work, context = self._waiting[0]
        try:
            context.run(work)
        finally:
            self._waiting.popleft()
            if self._waiting:
                self._schedule()


_turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = weakref.WeakKeyDictionary()


def fair_turns() -> Turns:
    """Those of the running loop."""
    loop = asyncio.get_running_loop()
    found = _turns.get(loop)
    if found is None:
        found = _turns[loop] = Turns(loop)
    return found
