"""One connection to a worker: requests go out, and each has one outcome.

    ask(params)  ->  Returned, or `Refused`, `InvalidAnswer`, `WorkerLost`

Whatever happens to the connection, every request under way has its outcome at once. What comes
later over it, or under an id that is not in flight, is passed over.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from callgate.protocol.host_v1 import frames
from callgate.protocol.host_v1.excerpts import Passed
from callgate.protocol.host_v1.requests import Fault
from callgate.protocol.host_v1.runtime import Broken, Received, RuntimeWire
from callgate.protocol.host_v1.workers import OF_WORKER, Description, RunTool, ask
from callgate.redaction.frame_log import FrameLog
from callgate.sources.hosts.links import HostError, InvalidAnswer, Refused

_log = logging.getLogger("callgate.workers")

OnEvent = Callable[[frames.Event], None]
Outcome = asyncio.Future[frames.Returned]


class WorkerLost(HostError):
    """The connection ended before the worker answered."""


class WorkerIdentity(NamedTuple):
    """Who connects, as its token and its request say."""

    pool: str
    name: str
    process: str
    token: str
    """The name of its token."""

    @property
    def key(self) -> str:
        return f"{self.pool}/{self.name}"


class _Pending(NamedTuple):
    outcome: Outcome
    on_event: OnEvent | None
    is_call: bool


class WorkerLink:
    def __init__(
        self,
        identity: WorkerIdentity,
        send: Callable[[bytes], None],
        hang_up: Callable[[int, str], None],
    ) -> None:
        """`send` takes one frame; `hang_up` a WebSocket's close code and a reason."""
        self.identity = identity
        self.generation = 0
        self.description = Description(version="", platform="", workspaces=[])
        self.tools: frozenset[str] = frozenset()
        self.connected_at = time.time()
        self.heard_s: Callable[[], float] = lambda: 0.0
        """How long ago anything came over the connection."""
        self.is_lost = False
        self._send = send
        self._hang_up = hang_up
        self._wire = RuntimeWire(OF_WORKER)
        self._frames = FrameLog("callgate.workers")
        self._ids = itertools.count(1)
        self._pending: dict[str, _Pending] = {}

    @property
    def calls(self) -> int:
        """How many run there."""
        return sum(each.is_call for each in self._pending.values())

    @property
    def has_room(self) -> bool:
        return self.calls < max(1, self.description.slots)

    def ask(self, params: Any, on_event: OnEvent | None = None) -> tuple[str, Outcome]:
        """Send a request: its id, and its outcome. `Unsendable` where it does not fit a frame."""
        id = str(next(self._ids))
        outcome: Outcome = asyncio.get_running_loop().create_future()
        if self.is_lost:
            outcome.set_exception(WorkerLost("it is not connected"))
            return id, outcome
        data = self._wire.encode(ask(id, params))
        self._pending[id] = _Pending(outcome, on_event, isinstance(params, RunTool))
        self._frames.sent(data)
        self._send(data)
        return id, outcome

    async def value(self, params: Any, type: Any, limit_s: float) -> Any:
        """What a request gives, as a type. Raises `HostError` or `TimeoutError`."""
        id, outcome = self.ask(params)
        try:
            async with asyncio.timeout(limit_s):
                returned = await outcome
        finally:
            self.abandon(id)
        try:
            return msgspec.convert(returned.result.value, type)
        except msgspec.ValidationError as error:
            raise InvalidAnswer(f"its answer cannot be taken ({error})") from None

    def tell(self, params: Any) -> None:
        """Send a request whose outcome nobody needs."""
        _, outcome = self.ask(params)
        outcome.add_done_callback(lambda done: done.cancelled() or done.exception())

    def abandon(self, id: str) -> None:
        """Wait no longer for a request. Idempotent."""
        pending = self._pending.pop(id, None)
        if pending is not None:
            self._wire.abandon(id)
            pending.outcome.cancel()

    def receive(self, data: bytes) -> None:
        """Take one frame."""
        if self.is_lost:
            return
        self._frames.received(data + b"\n")
        for received in self._wire.receive(data + b"\n"):
            self._take(received)
        if self._wire.hopeless is not None:
            self.end(1008, "noise")

    def _take(self, received: Received) -> None:
        match received:
            case frames.Returned():
                self._settle(received.id, received)
            case frames.Failed():
                if received.id is not None:
                    self._settle(received.id, Refused(received.error))
            case frames.Emitted():
                pending = self._pending.get(received.id)
                if pending is not None and pending.on_event is not None:
                    pending.on_event(received.event)
            case Broken():
                self._settle(
                    received.id, InvalidAnswer(f"its answer cannot be taken ({received.why})")
                )
            case Passed() | Fault() | frames.Request():
                _log.debug("worker %s: a frame was passed over", self.identity.key)

    def _settle(self, id: str, outcome: frames.Returned | HostError) -> None:
        pending = self._pending.pop(id, None)
        if pending is None or pending.outcome.done():
            return
        if isinstance(outcome, HostError):
            pending.outcome.set_exception(outcome)
        else:
            pending.outcome.set_result(outcome)

    def end(self, code: int, reason: str) -> None:
        """Cut the connection, and say why. Idempotent."""
        self._hang_up(code, reason)
        self.lose()

    def lose(self) -> None:
        """The connection is gone: what is under way has that outcome. Idempotent."""
        self.is_lost = True
        pending, self._pending = self._pending, {}
        for each in pending.values():
            if not each.outcome.done():
                each.outcome.set_exception(WorkerLost("its connection was lost"))
                each.outcome.exception()  # nobody may wait for it by now
