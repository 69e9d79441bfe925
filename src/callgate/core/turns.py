"""Fair turns on the event loop: who has much to do does a slice of it, then others have theirs.

    light   handled within a slice: at once, in the turn in which it came
    heavy   one slice of one of them in a turn of the loop; and while somebody who is light is
            being served, the loop rests between two slices

So however many flood, whoever asks for little waits for about one slice.

    Turns.wait(work)   for callbacks         Pace      for tasks that have a queue before them
    PieceSize          for bytes: as many as fit a slice      Pieces   feeds such pieces in turns
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
_REST_S = 0.002
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

    async def pause(self) -> None:
        """Let the others have their turn; heavy work goes on after it."""
        turn: asyncio.Future[None] = self._loop.create_future()
        self.wait(lambda: None if turn.done() else turn.set_result(None))
        await turn

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


class Pace:
    """Of a task that takes one thing after another from a queue, and does not wait in between."""

    def __init__(self, turns: Turns | None = None) -> None:
        self.turns = turns or fair_turns()
        self.begin()

    def begin(self) -> None:
        """What follows is light again: there was nothing left to take."""
        self.until = self.turns.now() + SLICE_S
        """When the slice is over."""

    async def step(self) -> None:
        """Between two things that are there: go on, or wait for the next slice."""
        if self.turns.now() > self.until:
            await self.pause()

    async def pause(self) -> None:
        """Wait for the next slice."""
        await self.turns.pause()
        self.begin()


class PieceSize:
    """How many bytes fit a slice, learnt from those before."""

    LEAST = 256
    MOST = 65_536

    def __init__(self) -> None:
        self.size = self.MOST // 16

    def learn(self, count: int, took: float) -> bool:
        """Whether that many bytes took long."""
        if took > SLICE_S:
            self.size = max(int(count * SLICE_S / took), self.LEAST)
        elif took < SLICE_S / 2:
            self.size = min(self.size * 2, self.MOST)
        return took > SLICE_S / 2


class Pieces:
    """Bytes of one peer, handed on in their order: at once as far as a slice goes, the rest in
    turns. Who feeds reads no more while `waits`; `on_done` says when it may again."""

    def __init__(self, take: Callable[[bytes], None], on_done: Callable[[], None]) -> None:
        self._take = take
        self._on_done = on_done
        self._turns = fair_turns()
        self._piece = PieceSize()
        self._rest = memoryview(b"")
        self._floods = False

    @property
    def waits(self) -> bool:
        return len(self._rest) > 0

    def feed(self, data: bytes) -> None:
        was_waiting = self.waits
        self._rest = memoryview(bytes(self._rest) + data if was_waiting else data)
        if not was_waiting:
            self._hand_on()

    def drop(self) -> None:
        """Nobody wants the rest."""
        self._rest = memoryview(b"")

    def _in_turn(self) -> None:
        if self._rest:
            self._hand_on()
            if not self._rest:
                self._on_done()

    def _hand_on(self) -> None:
        until = self._turns.now() + SLICE_S
        while self._rest:
            piece = bytes(self._rest[: self._piece.size])
            self._rest = self._rest[len(piece) :]
            began = self._turns.now()
            self._take(piece)
            now = self._turns.now()
            self._piece.learn(len(piece), now - began)
            if self._rest and now + SLICE_S / 2 > until:
                self._floods = True
                self._turns.wait(self._in_turn)
                return
        if not self._floods:
            self._turns.note_light()
        self._floods = False
