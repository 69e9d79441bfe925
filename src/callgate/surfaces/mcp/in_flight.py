"""The requests of all clients that are under way, and the calls in them.

What happens in a call is found by its id: progress and log lines go to the client whose request
it belongs to, and so does a question about it, if the client can show it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import mcp_types as types
from mcp.shared.exceptions import MCPError

from callgate.core.calls import ToolCall
from callgate.core.errors import ToolError
from callgate.core.events import Event
from callgate.core.results import ToolResult
from callgate.dispatch.permission.confirmations import Answer, Confirmation
from callgate.runtime import Runtime
from callgate.surfaces.mcp import confirming, logs
from callgate.surfaces.mcp.client_sessions import ClientSession
from callgate.surfaces.mcp.notifications import Line
from callgate.surfaces.mcp.pending_requests import Asked, Context, Long, Parked, PendingRequest

_MOST = 256
"""Calls that have not ended."""

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
        """`own` sees work through to its end. `elicits` False: clients are asked nothing."""
        self._runtime = runtime
        self._start_task = start_task
        self._elicits = elicits
        self._pending_requests: dict[str, PendingRequest[Any]] = {}
        """By call."""
        self._parked = Parked()

    def of(self, call_id: str) -> PendingRequest[Any] | None:
        return self._pending_requests.get(call_id)

    def begin(self, ctx: Context, call: ToolCall) -> PendingRequest[ToolResult]:
        """Make a call on behalf of a request."""
        return PendingRequest(
            ctx,
            lambda pending: self.run(pending, call),
            lambda: self._start_task(self._cancel(call.id)),
        )

    async def run(self, pending: PendingRequest[Any], call: ToolCall) -> ToolResult:
        """Make a call as part of a request."""
        if len(self._pending_requests) >= _MOST:
            raise MCPError(types.INTERNAL_ERROR, "Too many calls are under way.")
        self._pending_requests[call.id] = pending
        try:
            return await self._runtime.call_promptly(call)
        finally:
            del self._pending_requests[call.id]

    async def _cancel(self, call_id: str) -> None:
        await self._runtime.cancel(call_id)

    async def attend(
        self,
        ctx: Context,
        client_session: ClientSession,
        params: types.InputResponseRequestParams,
        begin: Callable[[], PendingRequest[T]],
        patience_s: float | None = None,
    ) -> T | types.InputRequiredResult | Long:
        """Go on with what a request is about, or begin it, and stay with it."""
        state = params.request_state
        pending = begin() if state is None else self._parked.take(state, client_session.key, ctx)
        least = logs.wanted(ctx, client_session)
        result = await pending.attend(ctx, params.input_responses, least, patience_s)
        if not isinstance(result, Asked):
            return result
        state = self._parked.park(client_session.key, pending)
        return types.InputRequiredResult(input_requests=result.requests, request_state=state)

    async def confirm(self, question: Confirmation) -> Answer:
        """Ask the client of the call. Where it cannot be asked, somebody else will answer."""
        pending = self.of(question.call_id)
        if pending is not None and pending.shows_forms and self._elicits:
            requests = {question.id: confirming.form(question)}
            try:
                responses = await pending.ask(requests, holds=False)
                return confirming.read(responses[question.id])
            except (MCPError, ToolError, ValueError) as error:
                _log.warning("the client could not be asked: %s", error)
        never: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        return await never

    def note(self, event: Event) -> None:
        pending = self.of(str(event.payload.get("call_id")))
        if pending is not None:
            pending.notifications.note(event)

    def log(self, call_id: str, line: Line) -> None:
        pending = self.of(call_id)
        if pending is not None and logs.reaches(line.level, pending.least):
            pending.notifications.log(line)

    def close(self) -> None:
        self._parked.close()
