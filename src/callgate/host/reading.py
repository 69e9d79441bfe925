"""Who reads the pipe: the thread that the next request is most likely for.

    main       after a sync request, while it has nothing else to do
    loop       after an async request
    stand-in   when the other two are busy with what they were given

So a call of the same kind as the last one is read, run and answered by one thread. At most one
reads at any time. Nobody does while the one whose turn it is runs a function: most have ended
in a moment, and the stand-in looks after what lies unread for longer than that.
"""

from __future__ import annotations

import asyncio
import select
import threading
from collections.abc import Callable
from enum import Enum
from queue import SimpleQueue
from typing import Any

from callgate.host.pipes import Incoming, Pipe
from callgate.host.tasks import Tasks
from callgate.protocol.host_v1.frames import Request

LOOK_S = 0.01
"""A request, an answer or a cancel waits at most twice as long for somebody to read it."""
_QUIET = 50
"""Looks without anything to read, after which the stand-in rests until there is."""

Take = Callable[[Incoming], Request[Any] | bool]
"""Gives back what main is to run; of anything else, whether the loop got it."""


class Turn(Enum):
    MAIN = "main"
    LOOP = "loop"
    STAND_IN = "stand-in"
    NOBODY = "nobody"


class Reading:
    def __init__(
        self, pipe: Pipe, tasks: Tasks[Any], take: Take, ended: Callable[[], None]
    ) -> None:
        """`ended` is called by the stand-in, once there is nothing more to read."""
        self._pipe, self._tasks, self._take, self._ended = pipe, tasks, take, ended
        self._lock = threading.Lock()
        """Of the next two."""
        self._turn = Turn.MAIN
        self._inside = False
        """Whether the one whose turn it is reads at this moment: nobody can relieve it."""
        self._count = 0
        """How often somebody has read."""
        self._wanted = threading.Event()
        self._requests: SimpleQueue[Request[Any] | None] = SimpleQueue()
        self._unread, self._heard = select.poll(), select.poll()
        """The stand-in's and the loop's."""

    def begin(self) -> None:
        self._unread.register(self._pipe.requests, select.POLLIN)
        self._heard.register(self._pipe.requests, select.POLLIN)
        self._pipe.on_ask = self._wanted.set
        threading.Thread(target=self._stand_in, daemon=True).start()

    def next(self) -> Request[Any] | None:
        """What main is to run next; None when the runtime has gone."""
        while self._requests.empty() and self._read(Turn.MAIN):
            pass
        return self._requests.get()

    def finish(self) -> None:
        """Let main end once it has run what it runs."""
        self._requests.put(None)

    # Whoever reads.

    def _read(self, mine: Turn) -> bool:
        """Read once, if it is our turn. False if it is not, or not any more."""
        with self._lock:
            if self._turn is not mine:
                return False
            self._inside = True
        after, runs = mine, list[Request[Any]]()
        if mine is not Turn.LOOP or self._heard.poll(0):  # others may have been faster
            after, runs = self._take_all(self._pipe.receive(), mine)
            self._count += 1
        with self._lock:
            self._turn, self._inside = after, False
        for run in runs:
            self._requests.put(run)
        if after is Turn.LOOP and mine is not Turn.LOOP:
            self._tasks.soon(self._listen)
        elif after is Turn.NOBODY:
            self._wanted.set()
        return after is mine

    def _take_all(
        self, received: list[Incoming] | None, mine: Turn
    ) -> tuple[Turn, list[Request[Any]]]:
        """Whose turn it is then, and what main is to run."""
        if received is None:
            return Turn.NOBODY, []
        after, runs = mine, []
        for each in received:
            taken = self._take(each)
            if isinstance(taken, Request):
                runs.append(taken)
            elif taken:
                after = Turn.LOOP
        return Turn.MAIN if runs else after, runs

    # The loop.

    def _listen(self) -> None:
        asyncio.get_running_loop().add_reader(self._pipe.requests, self._hear)

    def _hear(self) -> None:
        if not self._read(Turn.LOOP):
            asyncio.get_running_loop().remove_reader(self._pipe.requests)

    # The stand-in.

    def _stand_in(self) -> None:
        while self._turn is not Turn.NOBODY:
            self._unread.poll()
            self._look_after()
        self._ended()

    def _look_after(self) -> None:
        """Read what nobody else does, until it has been quiet for a while."""
        quiet, seen, lay = 0, self._count, False
        while quiet < _QUIET and self._turn is not Turn.NOBODY:
            requested = self._wanted.wait(LOOK_S)
            if requested:
                self._wanted.clear()
            unread = seen == self._count and bool(self._unread.poll(0))
            if (requested or (unread and lay)) and self._relieve():
                while self._read(Turn.STAND_IN):
                    pass
            quiet, lay = quiet + 1 if seen == self._count else 0, unread
            seen = self._count

    def _relieve(self) -> bool:
        with self._lock:
            if not self._inside and self._turn in (Turn.MAIN, Turn.LOOP):
                self._turn = Turn.STAND_IN
            return self._turn is Turn.STAND_IN
