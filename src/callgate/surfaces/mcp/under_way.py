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
from callgate.dispatch.confirmations import Answer, Confirmation
from callgate.runtime import Runtime
from callgate.surfaces.mcp import confirming, logs
from callgate.surfaces.mcp.exchanges import Asked, Context, Exchange, Long, Parked
from callgate.surfaces.mcp.news import Line
from callgate.surfaces.mcp.visits import Visit

_MOST = 256
"""Calls that have not ended."""

_log = logging.getLogger("callgate.mcp")
T = TypeVar("T")


class UnderWay:
    def __init__(
        self,
        runtime: Runtime,
        own: Callable[[Coroutine[Any, Any, None]], object],
        *,
        elicits: bool,
    ) -> None:
        """`own` sees work through to its end. `elicits` False: clients are asked nothing."""
        self._runtime = runtime
        self._own = own
        self._elicits = elicits
        self._exchanges: dict[str, Exchange[Any]] = {}
        """By call."""
        self._parked = Parked()

    def of(self, call_id: str) -> Exchange[Any] | None:
        return self._exchanges.get(call_id)

    def begin(self, ctx: Context, call: ToolCall) -> Exchange[ToolResult]:
        """Make a call on behalf of a request."""
        return Exchange(
            ctx,
            lambda exchange: self.run(exchange, call),
            lambda: self._own(self._cancel(call.id)),
        )

    async def run(self, exchange: Exchange[Any], call: ToolCall) -> ToolResult:
        """Make a call as part of a request."""
        if len(self._exchanges) >= _MOST:
            raise MCPError(types.INTERNAL_ERROR, "Too many calls are under way.")
        self._exchanges[call.id] = exchange
        try:
            return await self._runtime.call(call)
        finally:
            del self._exchanges[call.id]

    async def _cancel(self, call_id: str) -> None:
        await self._runtime.cancel(call_id)

    async def attend(
        self,
        ctx: Context,
        visit: Visit,
        params: types.InputResponseRequestParams,
        begin: Callable[[], Exchange[T]],
        patience_s: float | None = None,
    ) -> T | types.InputRequiredResult | Long:
        """Go on with what a request is about, or begin it, and stay with it."""
        state = params.request_state
        exchange = begin() if state is None else self._parked.take(state, visit.key, ctx)
        least = logs.wanted(ctx, visit)
        said = await exchange.attend(ctx, params.input_responses, least, patience_s)
        if not isinstance(said, Asked):
            return said
        state = self._parked.park(visit.key, exchange)
        return types.InputRequiredResult(input_requests=said.requests, request_state=state)

    async def confirm(self, question: Confirmation) -> Answer:
        """Ask the client of the call. Where it cannot be asked, somebody else will answer."""
        exchange = self.of(question.call_id)
        if exchange is not None and exchange.shows_forms and self._elicits:
            asked = {question.id: confirming.form(question)}
            try:
                said = await exchange.ask(asked, holds=False)
                return confirming.read(said[question.id])
            except (MCPError, ToolError, ValueError) as error:
                _log.warning("the client could not be asked: %s", error)
        never: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        return await never

    def note(self, event: Event) -> None:
        exchange = self.of(str(event.payload.get("call_id")))
        if exchange is not None:
            exchange.news.note(event)

    def log(self, call_id: str, line: Line) -> None:
        exchange = self.of(call_id)
        if exchange is not None and logs.reaches(line.level, exchange.least):
            exchange.news.log(line)

    def close(self) -> None:
        self._parked.close()
