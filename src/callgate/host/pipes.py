"""The pipe to the runtime, for all threads: requests in; answers, events and questions out.

Messages with one id are sent in order, and nothing follows an answer. A writing thread
waits until the runtime has read the data, so that a flood of events does not fill the memory.
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
from callgate.protocol.host_v1.frames import Passed
from callgate.protocol.host_v1.lines import Fault
from callgate.protocol.host_v1.runtime import HostWire
from callgate.protocol.host_v1.values import to_error

_BLOCK = 64 * 1024
_MOST_ASKS = 64
"""Maximum concurrent questions; the runtime would refuse more."""

Incoming = frames.Request[Any] | Fault | Passed


class Call:
    """One `execute_tool`. After its end its id may be reused, so late events are dropped."""

    __slots__ = ("id", "over")

    def __init__(self, id: str) -> None:
        self.id, self.over = id, False


class Pipe:
    def __init__(self, requests: int, answers: int) -> None:
        self.requests, self._out = requests, answers
        self.on_ask: Callable[[], None] = lambda: None
        """Called when a thread waits for an answer, which must be read."""
        self._wire = HostWire()
        self._state = threading.Lock()
        """Held only briefly; `_writing` is held while the runtime reads."""
        self._writing = threading.Lock()
        self._unwritten: deque[bytes] = deque()
        self._asking = threading.Semaphore(_MOST_ASKS)
        self._ids = itertools.count(1)
        self._waiting: dict[str, Future[frames.Answer]] | None = {}
        """Questions to the runtime; None after the runtime has gone."""

    def receive(self) -> list[Incoming] | None:
        """Return the next requests of the runtime; None after it has gone. Not thread-safe."""
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
        """Send an event of a running call; return False if it has ended. Raises `Unsendable`."""
        with self._state:
            if call.over:
                return False
            self._unwritten.append(self._wire.encode(frames.Emitted(id=call.id, event=event)))
        self._write()
        return True

    @property
    def offered(self) -> list[str]:
        """The methods that the runtime offers to hosts."""
        with self._state:
            return [each for each in frames.OF_RUNTIME if each in self._wire.offered]

    def agreed_on(self, method: str) -> bool:
        with self._state:
            return method in self._wire.agreed

    def ask(self, call: Call, params: frames.OfRuntime) -> Any:
        """Send a question, and wait for the answer. Raises the `ToolError` in the answer."""
        with self._asking:
            return self._ask(call, params)

    def _ask(self, call: Call, params: frames.OfRuntime) -> Any:
        method = frames.METHODS[type(params)]
        answer: Future[frames.Answer] = Future()
        with self._state:
            if self._waiting is None or call.over:
                raise ToolShuttingDown("The call has ended.")
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
                except OSError:  # the runtime has gone, and the requests end soon
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
