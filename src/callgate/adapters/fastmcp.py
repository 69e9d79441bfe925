"""FastMCP: a middleware of a server that calls its tools through a gate.

    server.add_middleware(GateMiddleware(gate, effects={...}))

Add it last: the middleware added last is the innermost, and what it gets is what is judged. A
refusal is a `ToolError`, which a client sees as a result with `isError`. A server does not know
what the user said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fastmcp.exceptions import ToolError
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext

from callgate.adapters.effects import Effects
from callgate.adapters.guard import GateError, Guard
from callgate.gate import Gate


class GateMiddleware(Middleware):
    """Every tool of a server behind a gate."""

    def __init__(
        self,
        gate: Gate,
        effects: Effects | None = None,
        *,
        paths: Mapping[str, Iterable[str]] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """As `Guard`."""
        self.guard = Guard(gate, effects, paths=paths, timeout_s=timeout_s)

    async def on_call_tool(
        self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]
    ) -> Any:
        message = context.message

        async def run(judged: dict[str, Any]) -> Any:
            edited = message.model_copy(update={"arguments": judged})
            return await call_next(context.copy(message=edited))

        description, schema = await _described(context)
        try:
            return await self.guard.call(
                message.name,
                message.arguments or {},
                run,
                description=description,
                schema=schema,
                is_failure=_is_failure,
            )
        except GateError as error:
            raise ToolError(str(error)) from None


async def _described(context: MiddlewareContext[Any]) -> tuple[str | None, Any]:
    """What the server says of the tool; nothing of one that it does not have."""
    if context.fastmcp_context is None:
        return None, None
    tool = await context.fastmcp_context.fastmcp.get_tool(context.message.name)
    return (None, None) if tool is None else (tool.description, tool.parameters)


def _is_failure(result: Any) -> bool:
    return bool(getattr(result, "is_error", False))
