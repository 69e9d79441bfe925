"""One request of a client that takes its time: its work, and what the client hears meanwhile.

    begun ---> attended: progress and log lines, then the answer
                  |
                  |-- the work asks the client something
                  |      2025-11-25: a request to the client, the work goes on with its answer
                  |      2026-07-28: `input_required`; parked until the client comes back
                  '-- the client cancels or goes away: the work is stopped

The work does not know which generation the client speaks: it calls `ask`. What is parked waits
under a name that cannot be guessed, for the same request of the same client, once.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from callgate.core.errors import ToolExecutionError
from callgate.core.task_sets import start_task
from callgate.surfaces.mcp.answers import fits
from callgate.surfaces.mcp.notifications import Line, Notifications, Step

Context = ServerRequestContext[Any, Any]
T = TypeVar("T")

RESULTS: Mapping[type, type[types.ElicitResult | types.CreateMessageResult | types.ListRootsResult]]
RESULTS = {
    types.ElicitRequest: types.ElicitResult,
    types.CreateMessageRequest: types.CreateMessageResult,
    types.ListRootsRequest: types.ListRootsResult,
}
CAPABILITIES: Mapping[type, str] = {
    types.ElicitRequest: "elicitation",
    types.CreateMessageRequest: "sampling",
    types.ListRootsRequest: "roots",
}
LACKS = "client_capability"
"""Why a call failed that needs something of a client which it does not have."""
_MOST_PARKED = 256
_MOST_HOLDING = 3
"""Running tools of one client that wait for it: it may never come back, and others need slots."""


class Ask:
    """What the work wants to know of the client, by names of its own."""

    def __init__(self, requests: Mapping[str, types.InputRequest], holds: bool) -> None:
        self.holds = holds
        self.requests = dict(requests)
        """Those that are not answered."""
        self.answers: dict[str, types.InputResponse] = {}
        loop = asyncio.get_running_loop()
        self.done: asyncio.Future[Mapping[str, types.InputResponse]] = loop.create_future()

    def answer(self, name: str, response: object) -> bool:
        """Take an answer, if it is one to what was asked."""
        request = self.requests.get(name)
        if request is None or self.done.done() or not fits(request, response):
            return False
        del self.requests[name]
        self.answers[name] = response  # type: ignore[assignment]
        if not self.requests:
            self.done.set_result(self.answers)
        return True

    def fail(self, error: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class Asked(NamedTuple):
    """The client has to come back with answers to these."""

    requests: dict[str, types.InputRequest]


class Long(NamedTuple):
    """It takes longer than the client has to wait."""

    pending: PendingRequest[Any]


class PendingRequest(Generic[T]):
    def __init__(
        self,
        ctx: Context,
        work: Callable[[PendingRequest[T]], Coroutine[Any, Any, T]],
        stop: Callable[[], object] | None = None,
    ) -> None:
        """`stop` has the work ended; without it, its task is cancelled."""
        self.capabilities = ctx.session.client_capabilities
        self.asked_by = identity(ctx)
        self.least: types.LoggingLevel | None = None
        """From which level on the client hears of log lines."""
        self.notifications = Notifications(self._wake)
        self._stop = stop
        self._changed = asyncio.Event()
        self._asks: list[Ask] = []
        self.task: asyncio.Task[T] = start_task(work(self))
        self.task.add_done_callback(lambda _: self._wake())

    def can(self, kind: type) -> bool:
        """Whether the client can be asked such a thing."""
        capabilities = self.capabilities
        return capabilities is not None and getattr(capabilities, CAPABILITIES[kind]) is not None

    @property
    def shows_forms(self) -> bool:
        elicitation = None if self.capabilities is None else self.capabilities.elicitation
        return elicitation is not None and (elicitation.form is not None or elicitation.url is None)

    async def ask(
        self, requests: Mapping[str, types.InputRequest], *, holds: bool = True
    ) -> Mapping[str, types.InputResponse]:
        """Ask the client, whatever generation it speaks. `holds`: a running tool waits for it,
        which takes a slot of its session. Raises a `ToolError` where the client cannot be asked,
        and `MCPError` where it answers with an error."""
        for each in requests.values():
            if not self.can(type(each)):
                raise _lacks(CAPABILITIES[type(each)])
        ask = Ask(requests, holds)
        self._asks.append(ask)
        self._wake()
        try:
            return await ask.done
        finally:
            self._asks.remove(ask)
            ask.done.cancel()
            self._wake()

    async def attend(
        self,
        ctx: Context,
        responses: Mapping[str, object] | None = None,
        least: types.LoggingLevel | None = None,
        patience_s: float | None = None,
    ) -> T | Asked | Long:
        """Stay until the work has ended, or until the client has to come back with answers. If
        the client goes, the work is stopped. `least` is the level of log lines it wants; nobody
        waits for longer than `patience_s`."""
        given = dict(responses or {})
        self.least = least
        teller = Teller(ctx)
        sending: dict[Ask, asyncio.Task[None]] = {}
        loop = asyncio.get_running_loop()
        ends_at = None if patience_s is None else loop.time() + patience_s
        timer = None if ends_at is None else loop.call_at(ends_at, self._wake)
        try:
            while True:
                self._changed.clear()
                done = self.task.done()  # before what it said last is taken
                await teller.tell(self.notifications.take())
                if done:
                    return self.task.result()
                if teller.modern:
                    self.answer(given)
                else:
                    for ask in self._asks:
                        if not ask.done.done() and ask not in sending:
                            sending[ask] = _send(ctx, ask)
                for ask in [each for each in sending if each.done.done()]:
                    sending.pop(ask).cancel()  # answered, here or elsewhere
                if ends_at is not None and loop.time() >= ends_at:
                    return Long(self)
                if teller.modern and (requests := self.open_requests()):
                    return Asked(requests)
                await self._changed.wait()
        except asyncio.CancelledError:
            self.end()
            raise
        finally:
            if timer is not None:
                timer.cancel()
            for task in sending.values():
                task.cancel()

    def answer(self, given: dict[str, object]) -> None:
        """Take the answers that are ones to what is asked; the others stay where they are."""
        for ask in self._asks:
            for name in list(ask.requests):
                if name in given:
                    ask.answer(name, given.pop(name))

    def open_requests(self) -> dict[str, types.InputRequest]:
        """What the client is to answer."""
        return {
            name: request
            for ask in self._asks
            if not ask.done.done()
            for name, request in ask.requests.items()
        }

    @property
    def holds(self) -> bool:
        """Whether a running tool waits for the client."""
        return any(ask.holds for ask in self._asks)

    def end(self) -> None:
        """Stop the work; nobody waits for it any more."""
        if self.task.done():
            return
        if self._stop is None:
            self.task.cancel()
        else:
            self._stop()

    def _wake(self) -> None:
        self._changed.set()


class Teller:
    """Says to the client of one request what happens in it."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS

    async def tell(self, notifications: deque[Step | Line]) -> None:
        for each in notifications:
            if isinstance(each, Step):  # nothing is said where it was not asked for
                await self._ctx.session.report_progress(each.progress, each.total, each.message)
            else:
                await self._ctx.session.send_notification(
                    types.LoggingMessageNotification(
                        params=types.LoggingMessageNotificationParams(
                            level=each.level, data=each.text, logger=each.logger
                        )
                    ),
                    related_request_id=self._ctx.request_id,
                )


def _send(ctx: Context, ask: Ask) -> asyncio.Task[None]:
    """Put an ask to a client of the first generation, as requests of ours."""

    async def one(name: str, request: types.InputRequest) -> None:
        response = await ctx.session.send_request(
            request,
            RESULTS[type(request)],
            metadata=ServerMessageMetadata(related_request_id=ctx.request_id),
        )
        if not ask.answer(name, response):
            problem = "The client's answer does not fit what was asked."
            raise ToolExecutionError(problem, reason="client_answer")

    async def all_of_them() -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for name, request in list(ask.requests.items()):
                    tasks.create_task(one(name, request))
        except* Exception as group:  # the client's error, or one of the connection
            ask.fail(group.exceptions[0])

    return start_task(all_of_them())


def _lacks(capability: str) -> ToolExecutionError:
    return ToolExecutionError(
        f"The client does not support {capability}.",
        reason=LACKS,
        details={"requiredCapabilities": {capability: {}}},
    )


def identity(ctx: Context) -> tuple[str, object]:
    """What a request has to have in common with the one that it goes on with."""
    params = {key: value for key, value in (ctx.params or {}).items() if key not in _APART}
    return ctx.method, params


_APART = frozenset({"_meta", "inputResponses", "requestState"})


class Parked:
    """Requests that wait for their client to come back."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[str, PendingRequest[Any]]] = {}
        """By a name that cannot be guessed: the client, and its request."""

    def park(self, client_key: str, pending: PendingRequest[Any]) -> str:
        while len(self._waiting) >= _MOST_PARKED:
            self._give_up(next(iter(self._waiting)))
        if pending.holds:
            holding = [
                state
                for state, (owner, each) in self._waiting.items()
                if owner == client_key and each.holds
            ]
            for state in holding[: max(0, len(holding) - _MOST_HOLDING + 1)]:
                self._give_up(state)
        state = secrets.token_urlsafe(32)
        self._waiting[state] = client_key, pending
        return state

    def take(self, state: str, client_key: str, ctx: Context) -> PendingRequest[Any]:
        """The pending request that a request goes on with. Raises `MCPError`."""
        owner, pending = self._waiting.get(state, ("", None))
        if pending is None or owner != client_key or pending.asked_by != identity(ctx):
            raise MCPError(types.INVALID_PARAMS, "requestState is not one of this request's")
        del self._waiting[state]
        return pending

    def _give_up(self, state: str) -> None:
        self._waiting.pop(state)[1].end()

    def close(self) -> None:
        for _, pending in self._waiting.values():
            pending.end()
        self._waiting.clear()
