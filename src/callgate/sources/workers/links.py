"""One connection to a worker: requests go out, and each has one outcome.

    ask(params)  ->  Returned, or `Refused`, `InvalidAnswer`, `WorkerLost`

Whatever happens to the connection, every request under way has its outcome at once. What comes
later over it, or under an id that is not in flight, is passed over.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from callgate.protocol.host_v1.runtime import RuntimeWire
from callgate.protocol.host_v1.workers import OF_WORKER, Description, RunTool, ask
from callgate.redaction.frame_log import FrameLog
from callgate.sources.hosts.in_flight import (
    HostError,
    InvalidAnswer,
    OnEvent,
    Outcome,
    PendingRequests,
    new_outcome,
)

_log = logging.getLogger("callgate.workers")


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
        self._requests = PendingRequests(self._wire)

    @property
    def calls(self) -> int:
        """How many run there."""
        return self._requests.calls

    @property
    def has_room(self) -> bool:
        return self.calls < max(1, self.description.slots)

    def ask(self, params: Any, on_event: OnEvent | None = None) -> tuple[str, Outcome]:
        """Send a request: its id, and its outcome. `Unsendable` where it does not fit a frame."""
        id = self._requests.next_id()
        if self.is_lost:
            outcome = new_outcome()
            outcome.set_exception(WorkerLost("it is not connected"))
            return id, outcome
        data = self._wire.encode(ask(id, params))
        outcome = self._requests.add(id, on_event, is_call=isinstance(params, RunTool))
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
        self._requests.abandon(id)

    def receive(self, data: bytes) -> None:
        """Take one frame."""
        if self.is_lost:
            return
        self._frames.received(data + b"\n")
        for received in self._wire.receive(data + b"\n"):
            if not self._requests.take(received):
                _log.debug("worker %s: a frame was passed over", self.identity.key)
        if self._wire.hopeless is not None:
            self.end(1008, "noise")

    def end(self, code: int, reason: str) -> None:
        """Cut the connection, and say why. Idempotent."""
        self._hang_up(code, reason)
        self.lose()

    def lose(self) -> None:
        """The connection is gone: what is under way has that outcome. Idempotent."""
        self.is_lost = True
        for each in self._requests.fail_all(WorkerLost("its connection was lost")):
            each.exception()  # nobody may wait for it by now
