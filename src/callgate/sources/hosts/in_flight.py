"""Requests to the other end of a connection that speaks host_v1: each has one outcome.

Whether that end is a host on pipes or a remote worker: what comes under an id that is not in flight
is passed over, and who waits no longer is told nothing.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from callgate.protocol.host_v1 import frames
from callgate.protocol.host_v1.runtime import Broken, Received, RuntimeWire

OnEvent = Callable[[frames.Event], asyncio.Future[None] | None]
"""Takes an event. Where it returns a future, its reader has fallen behind until that is done."""
OnAsk = Callable[[frames.OfRuntime], Awaitable[Any]]
Outcome = asyncio.Future[frames.Returned]


class HostError(Exception):
    """Why a request has no value."""


class Refused(HostError):
    """The other end answered that it failed."""

    def __init__(self, failure: frames.Failure) -> None:
        super().__init__(f"{failure.type}: {failure.detail}")
        self.failure = failure


class InvalidAnswer(HostError):
    """The other end answered in a way that no answer may have."""


class Pending(NamedTuple):
    outcome: Outcome
    on_event: OnEvent | None
    on_ask: OnAsk | None
    is_call: bool


class PendingRequests:
    """The requests of one connection that are under way, by id."""

    def __init__(self, wire: RuntimeWire) -> None:
        self._wire = wire
        self._ids = itertools.count(1)
        self._pending: dict[str, Pending] = {}
        self.drain: asyncio.Future[None] | None = None
        """The last future that an `on_event` returned."""

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def calls(self) -> int:
        return sum(each.is_call for each in self._pending.values())

    def next_id(self) -> str:
        return str(next(self._ids))

    def add(
        self,
        id: str,
        on_event: OnEvent | None = None,
        on_ask: OnAsk | None = None,
        *,
        is_call: bool = False,
    ) -> Outcome:
        outcome = new_outcome()
        self._pending[id] = Pending(outcome, on_event, on_ask, is_call)
        return outcome

    def find(self, id: str) -> Pending | None:
        return self._pending.get(id)

    def await_again(self, id: str) -> Outcome | None:
        """Another outcome for a request whose first was cancelled; None if it is over."""
        pending = self._pending.get(id)
        if pending is None:
            return None
        outcome = new_outcome()
        self._pending[id] = pending._replace(outcome=outcome)
        return outcome

    def abandon(self, id: str) -> None:
        """Wait no longer for a request. Idempotent."""
        pending = self._pending.pop(id, None)
        if pending is not None:
            self._wire.abandon(id)
            pending.outcome.cancel()

    def take(self, received: Received) -> bool:
        """Take what is about a request; False for anything else."""
        match received:
            case frames.Returned():
                self._settle(received.id, received)
            case frames.Failed():
                if received.id is not None:
                    self._settle(received.id, Refused(received.error))
            case frames.Emitted():
                pending = self._pending.get(received.id)
                if pending is not None and pending.on_event is not None:
                    self.drain = pending.on_event(received.event) or self.drain
            case Broken():
                problem = f"its answer cannot be taken ({received.why})"
                self._settle(received.id, InvalidAnswer(problem))
            case _:
                return False
        return True

    def _settle(self, id: str, outcome: frames.Returned | HostError) -> None:
        pending = self._pending.pop(id, None)
        if pending is None or pending.outcome.done():
            return
        if isinstance(outcome, HostError):
            pending.outcome.set_exception(outcome)
        else:
            pending.outcome.set_result(outcome)

    def fail_all(self, error: HostError) -> list[Outcome]:
        """The connection is gone: all that is under way has this outcome. Those that got it."""
        pending, self._pending = self._pending, {}
        open = [each.outcome for each in pending.values() if not each.outcome.done()]
        for each in open:
            each.set_exception(error)
        return open


def new_outcome() -> Outcome:
    return asyncio.get_running_loop().create_future()
