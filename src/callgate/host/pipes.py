"""The pipe to the runtime, from any thread: requests in; answers, events and asks out.

What is written under one id keeps its order, and nothing follows an answer. Whoever writes
waits until the runtime has taken it, so that a flood of events never piles up in here.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from callgate.core.errors import ToolPermissionDenied, ToolShuttingDown
from callgate.protocol.host_v1 import frames
from callgate.protocol.host_v1.excerpts import Passed
from callgate.protocol.host_v1.failures import to_error
from callgate.protocol.host_v1.host import HostWire
from callgate.protocol.host_v1.requests import Fault

_BLOCK = 64 * 1024
_MOST_ASKS = 64
"""More at once would be refused."""

Incoming = frames.Request[Any] | Fault | Passed


class Call:
    """One `execute_tool`. Its id may be used again once it is over; what is late is not said."""

    __slots__ = ("id", "over")

    def __init__(self, id: str) -> None:
        self.id, self.over = id, False


class Pipe:
    def __init__(self, requests: int, answers: int) -> None:
        self.requests, self._out = requests, answers
        self.on_ask: Callable[[], None] = lambda: None
        """Called when somebody waits for an answer: it has to be read."""
        self._wire = HostWire()
        self._state = threading.Lock()
        """Held for what takes no time; the next is held while the runtime is waited for."""
        self._writing = threading.Lock()
        self._unwritten: deque[bytes] = deque()
        self._asking = threading.Semaphore(_MOST_ASKS)
        self._ids = itertools.count(1)
        self._waiting: dict[str, Future[frames.Answer]] | None = {}
        """What was asked of the runtime; None once nobody answers any more."""

    def receive(self) -> list[Incoming] | None:
        """What the runtime asks next; None when it has gone. For one thread at a time."""
        try:
            data = os.read(self.requests, _BLOCK)
        except OSError:
            data = b""
        if not data:
            self._hang_up()
            return None
        with self._state:
            received = self._wire.receive(data)
        requests: list[Incoming] = []
        for each in received:
            if isinstance(each, frames.Returned | frames.Failed):
                self._settle(each)
            else:
                requests.append(each)
        return requests

    def send(self, frame: frames.Answer | Fault, ending: Call | None = None) -> None:
        with self._state:
            if ending is not None:
                ending.over = True
            self._unwritten.append(self._wire.encode(frame))
        self._write()

    def emit(self, call: Call, event: frames.Event) -> bool:
        """Say something while a call is under way; False if it is over. Raises `Unsendable`."""
        with self._state:
            if call.over:
                return False
            self._unwritten.append(self._wire.encode(frames.Emitted(id=call.id, event=event)))
        self._write()
        return True

    @property
    def offered(self) -> list[str]:
        """What the runtime answers, of what a host may ask."""
        with self._state:
            return [each for each in frames.OF_RUNTIME if each in self._wire.offered]

    def agreed_on(self, method: str) -> bool:
        with self._state:
            return method in self._wire.agreed

    def ask(self, call: Call, params: frames.OfRuntime) -> Any:
        """Wait for the runtime's answer. Raises the `ToolError` that it answered with."""
        with self._asking:
            return self._ask(call, params)

    def _ask(self, call: Call, params: frames.OfRuntime) -> Any:
        method = frames.METHODS[type(params)]
        answer: Future[frames.Answer] = Future()
        with self._state:
            if self._waiting is None or call.over:
                raise ToolShuttingDown("The call is over.")
            if method not in self._wire.agreed:
                raise ToolPermissionDenied(
                    f"The runtime does not offer {method} to this host.", reason="not_offered"
                )
            id = f"h{next(self._ids)}"
            self._unwritten.append(self._wire.encode(frames.ask(id, params)))
            self._waiting[id] = answer
        self._write()
        self.on_ask()
        result = answer.result()
        if isinstance(result, frames.Failed):
            raise to_error(result.error, trusted=True)
        return result.result.value

    def _write(self) -> None:
        with self._writing:
            while self._unwritten:
                unwritten = memoryview(self._unwritten.popleft())
                try:
                    while unwritten:
                        unwritten = unwritten[os.write(self._out, unwritten) :]
                except OSError:  # nobody reads: the end of requests is near
                    self._unwritten.clear()

    def _settle(self, answer: frames.Answer) -> None:
        with self._state:
            waiting = self._waiting.pop(str(answer.id), None) if self._waiting else None
        if waiting is not None:
            waiting.set_result(answer)

    def _hang_up(self) -> None:
        with self._state:
            waiting, self._waiting = self._waiting or {}, None
        for each in waiting.values():
            each.set_exception(ToolShuttingDown())
