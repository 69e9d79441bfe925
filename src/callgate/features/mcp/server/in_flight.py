"""Requests in flight from all clients: their calls, tool logs and confirmation forms."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar, get_args

import mcp_types as types
from mcp.server.context import CallNext, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types import LOG_LEVEL_META_KEY, LoggingLevel
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from callgate.core.calls import ToolCall, ToolResult
from callgate.core.errors import ToolError
from callgate.core.events import Event
from callgate.core.tasks import TaskSet
from callgate.core.texts import visible_lines
from callgate.dispatch.permission.confirmations import (
    Answer,
    Confirmation,
    Scope,
    preview_heading,
    requester_text,
)
from callgate.features.mcp.server.client_sessions import ClientSession
from callgate.features.mcp.server.pending_requests import (
    Context,
    InputNeeded,
    Line,
    Long,
    Parked,
    PendingRequest,
)
from callgate.policy.rules import Outcome
from callgate.runtime import Runtime
from callgate.socket.queries import whole_arguments

_LONGEST_TEXT = 4_000
"""Maximum length of a text in a form, in characters."""
_CHOICES: Mapping[str, Answer] = {
    "Allow once": Answer(decision=Outcome.ALLOW, by="mcp"),
    "Allow this tool for the rest of the session": Answer(
        decision=Outcome.ALLOW, scope=Scope.SESSION, by="mcp"
    ),
    "Deny": Answer(decision=Outcome.DENY, by="mcp"),
}


def form(question: Confirmation) -> types.ElicitRequest:
    decision = {"type": "string", "title": "Decision", "enum": list(_CHOICES)}
    return types.ElicitRequest(
        params=types.ElicitRequestFormParams(
            message=_message(question),
            requested_schema={
                "type": "object",
                "properties": {"decision": decision},
                "required": ["decision"],
            },
        )
    )


def read(response: object) -> Answer:
    if (
        isinstance(response, types.ElicitResult)
        and response.action == "accept"
        and response.content
    ):
        word = response.content.get("decision")
        if isinstance(word, str) and word in _CHOICES:
            return _CHOICES[word]
    return Answer(decision=Outcome.DENY, by="mcp", reason="The question was dismissed.")


def _message(question: Confirmation) -> str:
    effect = f"{question.side_effects}{', destructive' if question.destructive else ''}"
    paragraphs = [
        f"May {question.tool} run ({effect})?",
        _shown(question.why),
        f"In: {_shown(question.workspace)}",
        f"Asked by: {_shown(requester_text(question))}",
        f"Arguments:\n{whole_arguments(question) or 'none'}",
    ]
    if question.sandbox is not None:
        paragraphs.append(f"Runs in: {_shown(question.sandbox)}")
    if question.preview:
        paragraphs.append(f"Preview, {preview_heading(question)}:\n{_shown(question.preview)}")
    return "\n\n".join(paragraphs)


def _shown(text: str) -> str:
    shown = visible_lines(text)
    return (
        shown
        if len(shown) <= _LONGEST_TEXT
        else f"{shown[:_LONGEST_TEXT]}\n[{len(shown):,} characters]"
    )


LEVELS: tuple[LoggingLevel, ...] = get_args(LoggingLevel)
"""Log levels, the least important one first."""
_LONGEST_LOG_LINE = 8_000
_TOOLS = "callgate.tool"

Hear = Callable[[str, Line], None]
"""Receives the id of a call and a log line of its tool."""


def wanted(ctx: Context, client_session: ClientSession) -> LoggingLevel | None:
    """Return the minimum level of log messages for a request; None: no messages."""
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return client_session.level
    level = (ctx.meta or {}).get(LOG_LEVEL_META_KEY)
    return level if level in LEVELS else None


def reaches(level: LoggingLevel, least: LoggingLevel | None) -> bool:
    return least is not None and LEVELS.index(level) >= LEVELS.index(least)


class ToolLog(logging.Filter):
    """Forwards the log records of tools while it is attached.

    It lowers the logger's level, and hides the additional records from all other handlers.
    """

    def __init__(self, hear: Hear) -> None:
        super().__init__()
        self._hear = hear
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._logger = logging.getLogger(_TOOLS)
        self._before = self._logger.level, self._logger.getEffectiveLevel()

    def attach(self) -> None:
        self._logger.addFilter(self)
        self._logger.setLevel(logging.DEBUG)

    def detach(self) -> None:
        self._logger.removeFilter(self)
        self._logger.setLevel(self._before[0])

    def filter(self, record: logging.LogRecord) -> bool:
        call = getattr(record, "tool_use_id", None)
        if isinstance(call, str):
            line = Line(_level(record.levelno), record.name, _text(record))
            if threading.get_ident() == self._thread:
                self._hear(call, line)
            else:
                self._loop.call_soon_threadsafe(self._hear, call, line)
        return record.levelno >= self._before[1]


def _text(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()[:_LONGEST_LOG_LINE]
    except Exception:  # the tool's format string does not match its arguments
        return str(record.msg)[:_LONGEST_LOG_LINE]


def _level(number: int) -> LoggingLevel:
    if number >= logging.CRITICAL:
        return "critical"
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warning"
    return "info" if number >= logging.INFO else "debug"


_MOST = 256
"""Maximum number of calls in flight."""

_log = logging.getLogger("callgate.mcp")
T = TypeVar("T")


class InFlightCalls:
    def __init__(
        self,
        runtime: Runtime,
        start_task: Callable[[Coroutine[Any, Any, None]], object],
        *,
        elicits: bool,
    ) -> None:
        """`start_task` runs a coroutine to its end. `elicits`: clients receive questions."""
        self._runtime = runtime
        self._start_task = start_task
        self._elicits = elicits
        self._pending_requests: dict[str, PendingRequest[Any]] = {}
        """Pending requests by call id."""
        self._parked = Parked()

    def of(self, call_id: str) -> PendingRequest[Any] | None:
        return self._pending_requests.get(call_id)

    def begin(self, ctx: Context, call: ToolCall) -> PendingRequest[ToolResult]:
        """Start the call of a request."""
        return PendingRequest(
            ctx,
            lambda pending: self.run(pending, call),
            lambda: self._start_task(self._cancel(call.id)),
        )

    async def run(self, pending: PendingRequest[Any], call: ToolCall) -> ToolResult:
        """Run a call as part of a request."""
        if len(self._pending_requests) >= _MOST:
            raise MCPError(types.INTERNAL_ERROR, "Too many calls are running. Retry later.")
        self._pending_requests[call.id] = pending
        try:
            return await self._runtime.calls.run_promptly(call)
        finally:
            del self._pending_requests[call.id]

    async def _cancel(self, call_id: str) -> None:
        await self._runtime.calls.cancel(call_id)

    async def attend(
        self,
        ctx: Context,
        client_session: ClientSession,
        params: types.InputResponseRequestParams,
        begin: Callable[[], PendingRequest[T]],
        patience_s: float | None = None,
    ) -> T | types.InputRequiredResult | Long:
        """Begin the work of a request, or resume it, and wait for its result."""
        state = params.request_state
        pending = begin() if state is None else self._parked.take(state, client_session.key, ctx)
        least = wanted(ctx, client_session)
        result = await pending.attend(ctx, params.input_responses, least, patience_s)
        if not isinstance(result, InputNeeded):
            return result
        state = self._parked.park(client_session.key, pending)
        return types.InputRequiredResult(input_requests=result.requests, request_state=state)

    async def confirm(self, question: Confirmation) -> Answer:
        """Ask the client of the call. Otherwise wait until another approver answers."""
        pending = self.of(question.call_id)
        if pending is not None and pending.shows_forms and self._elicits:
            requests = {question.id: form(question)}
            try:
                responses = await pending.ask(requests, holds=False)
                return read(responses[question.id])
            except (MCPError, ToolError, ValueError) as error:
                _log.warning("the question could not be sent to the client: %s", error)
        never: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        return await never

    def note(self, event: Event) -> None:
        pending = self.of(str(event.payload.get("call_id")))
        if pending is not None:
            pending.notifications.note(event)

    def log(self, call_id: str, line: Line) -> None:
        pending = self.of(call_id)
        if pending is not None and reaches(line.level, pending.least):
            pending.notifications.log(line)

    def close(self) -> None:
        self._parked.close()


_IMMEDIATE = frozenset({"initialize", "ping", "server/discover", "logging/setLevel"})


class Readiness:
    """Middleware of the SDK's server: requests wait until the server is ready."""

    def __init__(self) -> None:
        self.is_used = False
        """Whether a client has sent anything."""
        self._settled = asyncio.Event()
        self._problem: str | None = None
        self._waiting: list[ServerRequestContext[Any, Any]] = []
        self._steps = 0
        self._telling = TaskSet()

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> Any:
        self.is_used = True
        if ctx.request_id is not None and ctx.method not in _IMMEDIATE:
            if not self._settled.is_set():
                self._waiting.append(ctx)
                try:
                    await self._settled.wait()
                finally:
                    self._waiting.remove(ctx)
            if self._problem is not None:
                raise MCPError(types.INTERNAL_ERROR, self._problem)
        return await call_next(ctx)

    def tell(self, text: str) -> None:
        """Report progress to the waiting requests that asked for it."""
        self._steps += 1
        for ctx in self._waiting:
            self._telling.start(ctx.session.report_progress(self._steps, None, text))

    def done(self) -> None:
        self._settled.set()

    def fail(self, problem: str) -> None:
        self._problem = problem
        self._settled.set()
