"""Fair scheduling on the event loop: heavy work is done in slices, and others run in between.

    light   handled within a slice: immediately, in the iteration in which it arrived
    heavy   one slice of one work item per iteration of the loop; while light requests are being
            served, the loop pauses between two slices

So a light request waits for about one slice, no matter how many clients flood the loop.

    Turns.wait(work)   for callbacks            Pace      for tasks that process a queue
    PieceSize          bytes that fit a slice   Pieces    processes such pieces in turns
"""

from __future__ import annotations

import asyncio
import contextvars
import time
import weakref
from collections import deque
from collections.abc import Callable

SLICE_S = 0.00025
"""Maximum duration of a slice."""
_PAUSE_S = 0.002
_RECENT_S = 0.05
"""After a light request, heavy work pauses between slices for this long."""


class Turns:
    """The queue of heavy work of one event loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, now: Callable[[], float] = time.perf_counter
    ) -> None:
        self.now = now
        self._loop = loop
        self._waiting: deque[tuple[Callable[[], None], contextvars.Context]] = deque()
        self._light_at = float("-inf")

    def note_light(self) -> None:
        """Note a light request."""
        self._light_at = self.now()

    def wait(self, work: Callable[[], None]) -> None:
        """Queue a slice of heavy work."""
        self._waiting.append((work, contextvars.copy_context()))
        if len(self._waiting) == 1:
            self._schedule()

    async def pause(self) -> None:
        """Let other work run, then continue."""
        turn: asyncio.Future[None] = self._loop.create_future()
        self.wait(lambda: None if turn.done() else turn.set_result(None))
        await turn

    def _schedule(self) -> None:
        if self.now() - self._light_at < _RECENT_S:
            self._loop.call_later(_PAUSE_S, self._run)
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
    """Return the turns of the running loop."""
    loop = asyncio.get_running_loop()
    found = _turns.get(loop)
    if found is None:
        found = _turns[loop] = Turns(loop)
    return found


class Pace:
    """Slices for a task that processes a queue without waiting in between."""

    def __init__(self, turns: Turns | None = None) -> None:
        self.turns = turns or fair_turns()
        self.begin()

    def begin(self) -> None:
        """Start a new slice, because the queue was empty."""
        self.until = self.turns.now() + SLICE_S
        """End of the slice."""

    async def step(self) -> None:
        """Between two items: continue, or wait for the next slice."""
        if self.turns.now() > self.until:
            await self.pause()

    async def pause(self) -> None:
        """Wait for the next slice."""
        await self.turns.pause()
        self.begin()


class PieceSize:
    """Number of bytes that fit a slice, learned from measurements."""

    LEAST = 256
    MOST = 65_536

    def __init__(self) -> None:
        self.size = self.MOST // 16

    def learn(self, count: int, took: float) -> bool:
        """Adjust the size, and return whether the bytes took long."""
        if took > SLICE_S:
            self.size = max(int(count * SLICE_S / took), self.LEAST)
        elif took < SLICE_S / 2:
            self.size = min(self.size * 2, self.MOST)
        return took > SLICE_S / 2


class Pieces:
    """Bytes of one peer, passed on in order: immediately within a slice, the remainder in turns.

    The feeder stops reading while `waits` is true; `on_done` reports that it may continue.
    """

    def __init__(self, take: Callable[[bytes], None], on_done: Callable[[], None]) -> None:
        self._take = take
        self._on_done = on_done
        self._turns = fair_turns()
        self._piece = PieceSize()
        self._unprocessed = memoryview(b"")
        self._floods = False

    @property
    def waits(self) -> bool:
        return len(self._unprocessed) > 0

    def feed(self, data: bytes) -> None:
        was_waiting = self.waits
        self._unprocessed = memoryview(bytes(self._unprocessed) + data if was_waiting else data)
        if not was_waiting:
            self._hand_on()

    def drop(self) -> None:
        """Discard the remaining bytes."""
        self._unprocessed = memoryview(b"")

    def _in_turn(self) -> None:
        if self._unprocessed:
            self._hand_on()
            if not self._unprocessed:
                self._on_done()

    def _hand_on(self) -> None:
        until = self._turns.now() + SLICE_S
        while self._unprocessed:
            piece = bytes(self._unprocessed[: self._piece.size])
            self._unprocessed = self._unprocessed[len(piece) :]
            began = self._turns.now()
            self._take(piece)
            now = self._turns.now()
            self._piece.learn(len(piece), now - began)
            if self._unprocessed and now + SLICE_S / 2 > until:
                self._floods = True
                self._turns.wait(self._in_turn)
                return
        if not self._floods:
            self._turns.note_light()
        self._floods = False
