"""FastMCP: a server middleware that calls its tools through a gate.

    server.add_middleware(GateMiddleware(gate, effects={...}))

Add it last: the last middleware is the innermost, and the gate checks the arguments that it
receives. A refusal is a `ToolError`, which a client sees as a result with `isError`. A server does
not know the user's words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fastmcp.exceptions import ToolError
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext

from callgate.adapters.guard import Effects, GateError, Guard
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
        """Same parameters as `Guard`."""
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
                try:  # the schema has changed; nothing has run
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
        """Return description and schema of a tool, or None for both if it does not exist.

        They are cached: FastMCP takes longer to find a tool than callgate takes for a call.
        """
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
