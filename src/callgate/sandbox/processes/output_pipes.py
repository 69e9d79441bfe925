"""What a command writes, read in fair turns: a flood of it holds up nobody else.

As much is read at once as its reader can take within a slice. What is not read stays in the
pipe, and who writes into it waits.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial

from callgate.core.commands import OnOutput, Stream
from callgate.core.turns import PieceSize, Turns, fair_turns

_MOST_LEFT = 16
"""Pieces that are taken from one pipe when it is cut: the most that a pipe holds."""


class OutputPipes:
    def __init__(
        self,
        pipes: Mapping[int, Stream],
        on_output: OnOutput,
        on_end: Callable[[], None],
        turns: Turns | None = None,
    ) -> None:
        """The descriptors are its own from now on. `on_end`: all of them have ended."""
        self._pipes = dict(pipes)
        self._on_output = on_output
        self._on_end = on_end
        self._turns = turns or fair_turns()
        self._loop = asyncio.get_running_loop()
        self._piece = PieceSize()
        self._drain: asyncio.Future[None] | None = None
        """Nothing is read before it is done: the reader of the output has fallen behind."""
        self._left: deque[tuple[Stream, bytes]] = deque()
        """What was in the pipes when they were cut."""
        for pipe in self._pipes:
            self._loop.add_reader(pipe, self._read, pipe)

    def __len__(self) -> int:
        """How much there is to read from or to hand on."""
        return len(self._pipes) + len(self._left)

    def close(self) -> None:
        """Drop what was not read."""
        for pipe in list(self._pipes):
            self._close(pipe)
        self._left.clear()

    def cut(self) -> None:
        """Take what is in the pipes by now and no more; `on_end` follows, once it is handed on."""
        for pipe, stream in list(self._pipes.items()):
            for _ in range(_MOST_LEFT):
                try:
                    data = os.read(pipe, PieceSize.MOST)
                except BlockingIOError:
                    break
                if not data:
                    break
                self._left.append((stream, data))
            self._close(pipe)
        self._turns.wait(self._hand_on_rest)

    def _hand_on_rest(self) -> None:
        if self._left:
            stream, data = self._left.popleft()
            size = self._piece.size
            if len(data) > size:
                self._left.appendleft((stream, data[size:]))
            self._hand_on(stream, data[:size])
        if self._left:
            self._turns.wait(self._hand_on_rest)
        else:
            self._on_end()

    def _read(self, pipe: int) -> None:
        """Read once; where that took long, the next time is a slice among those of others."""
        if self._read_once(pipe):
            self._loop.remove_reader(pipe)
            self._turns.wait(partial(self._read_slice, pipe))

    def _read_slice(self, pipe: int) -> None:
        if pipe not in self._pipes or self._drain is not None:  # closed, or held up meanwhile
            return
        if self._read_once(pipe):
            self._turns.wait(partial(self._read_slice, pipe))
        elif pipe in self._pipes and self._drain is None:
            self._loop.add_reader(pipe, self._read, pipe)

    def _read_once(self, pipe: int) -> bool:
        """Whether it was much of what may be done at once, and there may be more."""
        try:
            data = os.read(pipe, self._piece.size)
        except BlockingIOError:
            return False
        if data:
            return self._hand_on(self._pipes[pipe], data) and pipe in self._pipes
        self._close(pipe)
        if not self._pipes:
            self._on_end()
        return False

    def _hand_on(self, stream: Stream, data: bytes) -> bool:
        """Whether it took long. As much is read the next time as fits a slice."""
        began = self._turns.now()
        drain = self._on_output(stream, data)
        if drain is not None and not drain.done():
            self._pause(drain)
        return self._piece.learn(len(data), self._turns.now() - began)

    def _pause(self, drain: asyncio.Future[None]) -> None:
        self._drain = drain
        for pipe in self._pipes:
            self._loop.remove_reader(pipe)
        drain.add_done_callback(self._resume)

    def _resume(self, drain: asyncio.Future[None]) -> None:
        if drain is self._drain:
            self._drain = None
            for pipe in self._pipes:
                self._loop.add_reader(pipe, self._read, pipe)

    def _close(self, pipe: int) -> None:
        self._loop.remove_reader(pipe)
        os.close(pipe)
        del self._pipes[pipe]
