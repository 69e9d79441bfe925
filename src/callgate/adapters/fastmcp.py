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
from callgate.core.errors import ToolErrorClass
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
        self._described: dict[str, tuple[str | None, Any]] = {}

    async def on_call_tool(
        self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]
    ) -> Any:
        try:
            return await self._call(context, call_next)
        except GateError as error:
            name = context.message.name
            is_outdated = error.error_class is ToolErrorClass.VALIDATION_ERROR
            if is_outdated and self._described.pop(name, None) != await self._describe(context):
                try:  # it is another schema by now; nothing has run
                    return await self._call(context, call_next)
                except GateError as again:
                    raise ToolError(str(again)) from None
            raise ToolError(str(error)) from None

    async def _call(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
        message = context.message

        async def run(judged: dict[str, Any]) -> Any:
            edited = message.model_copy(update={"arguments": judged})
            return await call_next(context.copy(message=edited))

        description, schema = self._described.get(message.name) or await self._describe(context)
        return await self.guard.call(
            message.name,
            message.arguments or {},
            run,
            description=description,
            schema=schema,
            read=_read,
        )

    async def _describe(self, context: MiddlewareContext[Any]) -> tuple[str | None, Any]:
        """What the server says of the tool; nothing of one that it does not have. Kept, because
        to find a tool takes FastMCP longer than a call of ours."""
        if context.fastmcp_context is None:
            return None, None
        name = context.message.name
        tool = await context.fastmcp_context.fastmcp.get_tool(name)
        if tool is None:
            return None, None
        self._described[name] = (tool.description, tool.parameters)
        return self._described[name]


def _read(result: Any) -> tuple[Any, bool]:
    texts = [each.text for each in result.content if hasattr(each, "text")]
    return "\n".join(texts), bool(result.is_error)
