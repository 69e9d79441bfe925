"""One long-running request of a client: its task, and the notifications while it runs."""

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
from mcp_types import LoggingLevel
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from callgate.core.errors import ToolExecutionError
from callgate.core.events import OUTPUT_DELTA, PROGRESS, Event
from callgate.core.schemas import ForeignSchema
from callgate.core.tasks import dropped_events, start_task

MOST = 1_000
_LONGEST = 16 * 1024
"""Maximum length of the output in one step, in characters."""
_NUDGE = 0.001
_COMPLETE = 100.0


class RequestStep(NamedTuple):
    progress: float
    total: float | None
    message: str | None


class Line(NamedTuple):
    level: LoggingLevel
    logger: str | None
    text: str


class Meter:
    """Strictly increasing progress values, as MCP requires.

    Fractions become percentages. Messages without a fraction count as steps.
    """

    def __init__(self) -> None:
        self._last: float | None = None
        self._in_percent = False

    def next(self, fraction: float | None) -> tuple[float, float | None]:
        if fraction is not None:
            self._in_percent = True
        last = self._last
        nudge = _NUDGE if self._in_percent else 1.0
        least = (0.0 if fraction is not None else nudge) if last is None else last + nudge
        value = least if fraction is None else max(fraction * _COMPLETE, least)
        self._last = value
        return value, _COMPLETE if self._in_percent and value <= _COMPLETE else None


class _Output:
    """Consecutive pieces of output that were not sent yet."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._room = _LONGEST

    def add(self, text: str) -> None:
        if self._room > 0:
            self._pieces.append(text[: self._room])
        self._room -= len(text)

    @property
    def text(self) -> str:
        dropped = f"\n[... {-self._room} characters were dropped]\n" if self._room < 0 else ""
        return "".join(self._pieces) + dropped


class Notifications:
    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._meter = Meter()
        self._waiting: deque[Event | Line | _Output] = deque()
        self._dropped = 0
        """Number of notifications dropped since the last `take`."""

    def note(self, event: Event) -> None:
        if event.type == OUTPUT_DELTA:
            last = self._waiting[-1] if self._waiting else None
            if not isinstance(last, _Output):
                last = _Output()
                if not self._add(last):
                    return
            last.add(str(event.payload.get("text", "")))
        elif event.type == PROGRESS:
            self._add(event)

    def log(self, line: Line) -> None:
        self._add(line)

    def _add(self, notification: Event | Line | _Output) -> bool:
        """Add a notification. Return False if the queue is full."""
        if len(self._waiting) >= MOST:
            self._dropped += 1
            return False
        self._waiting.append(notification)
        self._wake()
        return True

    def take(self) -> deque[RequestStep | Line]:
        taken: deque[RequestStep | Line] = deque()
        while self._waiting:
            each = self._waiting.popleft()
            if isinstance(each, Line):
                taken.append(each)
            elif isinstance(each, _Output):
                taken.append(RequestStep(*self._meter.next(None), each.text))
            else:
                raw, fraction = each.payload.get("message"), each.payload.get("fraction")
                message = None if raw is None else str(raw)
                taken.append(RequestStep(*self._meter.next(fraction), message))
        if self._dropped:
            taken.append(RequestStep(*self._meter.next(None), dropped_events(self._dropped)))
            self._dropped = 0
        return taken


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
"""`reason` of a call's error if the client lacks a required capability."""
_MOST_PARKED = 256
_MOST_HOLDING = 3
"""Maximum number of a client's running tools that wait for it. It may never answer, and each such
tool occupies a slot."""


class Ask:
    """Requests to the client, by name."""

    def __init__(self, requests: Mapping[str, types.InputRequest], holds: bool) -> None:
        self.holds = holds
        self.requests = dict(requests)
        """The unanswered requests."""
        self.answers: dict[str, types.InputResponse] = {}
        loop = asyncio.get_running_loop()
        self.done: asyncio.Future[Mapping[str, types.InputResponse]] = loop.create_future()

    def answer(self, name: str, response: object) -> bool:
        """Record an answer. Return False if it does not match an open request."""
        request = self.requests.get(name)
        if request is None or self.done.done() or not _fits(request, response):
            return False
        del self.requests[name]
        self.answers[name] = response  # type: ignore[assignment]
        if not self.requests:
            self.done.set_result(self.answers)
        return True

    def fail(self, error: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(error)


class InputNeeded(NamedTuple):
    """The work waits for the client's answers to these requests."""

    requests: dict[str, types.InputRequest]


class Long(NamedTuple):
    """The work takes longer than the client waits."""

    pending: PendingRequest[Any]


class PendingRequest(Generic[T]):
    def __init__(
        self,
        ctx: Context,
        work: Callable[[PendingRequest[T]], Coroutine[Any, Any, T]],
        stop: Callable[[], object] | None = None,
    ) -> None:
        """`stop` ends the work; without it, the task is cancelled."""
        self.capabilities = ctx.session.client_capabilities
        self.asked_by = identity(ctx)
        self.least: types.LoggingLevel | None = None
        """Minimum level of log messages for the client; None: no messages."""
        self.notifications = Notifications(self._wake)
        self._stop = stop
        self._changed = asyncio.Event()
        self._asks: list[Ask] = []
        self.task: asyncio.Task[T] = start_task(work(self))
        self.task.add_done_callback(lambda _: self._wake())

    def can(self, kind: type) -> bool:
        """Return whether the client supports this kind of request."""
        capabilities = self.capabilities
        return capabilities is not None and getattr(capabilities, CAPABILITIES[kind]) is not None

    @property
    def shows_forms(self) -> bool:
        elicitation = None if self.capabilities is None else self.capabilities.elicitation
        return elicitation is not None and (elicitation.form is not None or elicitation.url is None)

    async def ask(
        self, requests: Mapping[str, types.InputRequest], *, holds: bool = True
    ) -> Mapping[str, types.InputResponse]:
        """Send requests to the client, in the form of its protocol version, and wait for answers.

        `holds`: a running tool waits and occupies a slot of its session. Raises `ToolError` if the
        client lacks the capability, and `MCPError` if it answers with an error.
        """
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
    ) -> T | InputNeeded | Long:
        """Wait until the work ends, needs answers of the client, or `patience_s` have passed.

        Notifications are sent to the client at the same time; `least` is the minimum log level.
        Cancelling this call stops the work.
        """
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
                done = self.task.done()  # checked before `take`, so no notification is lost
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
                    return InputNeeded(requests)
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
        """Remove the answers to open requests from `given`, and record them."""
        for ask in self._asks:
            for name in list(ask.requests):
                if name in given:
                    ask.answer(name, given.pop(name))

    def open_requests(self) -> dict[str, types.InputRequest]:
        """Return the requests that wait for an answer."""
        return {
            name: request
            for ask in self._asks
            if not ask.done.done()
            for name, request in ask.requests.items()
        }

    @property
    def holds(self) -> bool:
        """Whether a running tool waits for the client's answer."""
        return any(ask.holds for ask in self._asks)

    def end(self) -> None:
        """Stop the work."""
        if self.task.done():
            return
        if self._stop is None:
            self.task.cancel()
        else:
            self._stop()

    def _wake(self) -> None:
        self._changed.set()


class Teller:
    """Sends the notifications of one request to its client."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS

    async def tell(self, notifications: deque[RequestStep | Line]) -> None:
        for each in notifications:
            if isinstance(each, RequestStep):  # the SDK sends it only if progress was requested
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
    """Send requests to a client of a legacy protocol version."""

    async def one(name: str, request: types.InputRequest) -> None:
        response = await ctx.session.send_request(
            request,
            RESULTS[type(request)],
            metadata=ServerMessageMetadata(related_request_id=ctx.request_id),
        )
        if not ask.answer(name, response):
            problem = "The client's answer does not match the request."
            raise ToolExecutionError(problem, reason="client_answer")

    async def all_of_them() -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for name, request in list(ask.requests.items()):
                    tasks.create_task(one(name, request))
        except* Exception as group:  # an error of the client or the connection
            ask.fail(group.exceptions[0])

    return start_task(all_of_them())


def _lacks(capability: str) -> ToolExecutionError:
    return ToolExecutionError(
        f"The client does not support {capability}.",
        reason=LACKS,
        details={"requiredCapabilities": {capability: {}}},
    )


def identity(ctx: Context) -> tuple[str, object]:
    """Return the parts that a resumed request must repeat: method and parameters."""
    params = {key: value for key, value in (ctx.params or {}).items() if key not in _APART}
    return ctx.method, params


_APART = frozenset({"_meta", "inputResponses", "requestState"})


class Parked:
    """Requests that wait for another request of their client."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[str, PendingRequest[Any]]] = {}
        """Unguessable request state -> client key and pending request."""

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
        """Return the pending request that a request resumes. Raises `MCPError`."""
        owner, pending = self._waiting.get(state, ("", None))
        if pending is None or owner != client_key or pending.asked_by != identity(ctx):
            raise MCPError(types.INVALID_PARAMS, "requestState does not belong to this request")
        del self._waiting[state]
        return pending

    def _give_up(self, state: str) -> None:
        self._waiting.pop(state)[1].end()

    def close(self) -> None:
        for _, pending in self._waiting.values():
            pending.end()
        self._waiting.clear()


def _fits(request: types.InputRequest, response: object) -> bool:
    """Return whether a response answers the request."""
    match request:
        case types.ElicitRequest():
            return isinstance(response, types.ElicitResult) and _fills_in(request.params, response)
        case types.CreateMessageRequest():
            return isinstance(
                response, types.CreateMessageResult | types.CreateMessageResultWithTools
            )
        case types.ListRootsRequest():
            return isinstance(response, types.ListRootsResult)


def _fills_in(form: Any, result: types.ElicitResult) -> bool:
    if result.action != "accept" or not isinstance(form, types.ElicitRequestFormParams):
        return True
    try:  # the schema may be from a third-party tool
        schema = ForeignSchema(form.requested_schema, plain=True)
    except ValueError:
        return False
    return bool(schema.is_valid(result.content or {}))
