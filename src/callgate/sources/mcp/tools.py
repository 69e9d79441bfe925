"""The tools of an MCP server, as the dispatcher sees them.

What a server says of its tools was pinned when a person approved it: a tool whose description is
another by now is refused until somebody has looked at it (`callgate mcp approve`).
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from callgate.core.errors import (
    ToolError,
    ToolExecutionError,
    ToolPermissionDenied,
    ToolProtocolError,
)
from callgate.core.json_schema.schemas import ForeignSchema, first_line
from callgate.core.tools import ToolContext, ToolDefinition, ToolFactory, ToolOutput
from callgate.sources.logs import PROBLEM
from callgate.sources.mcp.servers import Server

LONGEST_ERROR = 2_000


class ResultSchema:
    """What the results of a tool are like, as its server says. Compiled with the first of them,
    and once for all calls."""

    def __init__(self, schema: dict[str, Any] | None) -> None:
        self._schema = schema
        self._validator: ForeignSchema | None = None

    def problem(self, output: ToolOutput) -> str | None:
        """What is wrong with a result; None if nothing is. An error may be as it likes."""
        if self._schema is None or not output.success:
            return None
        if output.value is msgspec.UNSET:
            return "it has an output schema, and gave no structured content"
        try:
            self._validator = self._validator or ForeignSchema(self._schema)
            fits = self._validator.is_valid(output.value)
        except ValueError as error:
            return f"its structured content cannot be checked: {first_line(error)}"
        return None if fits else "its structured content does not fit its output schema"


class McpTool:
    """One call of a server's tool."""

    stoppable = False
    """A server is told of a cancellation; whether it heeds it, nobody learns."""

    def __init__(
        self,
        server: Server,
        name: str,
        definition: ToolDefinition,
        pin: str,
        results: ResultSchema,
    ) -> None:
        self._server = server
        self._name = name
        """By which its server knows it."""
        self._definition = definition
        self._pin = pin
        self._results = results

    @property
    def definition(self) -> ToolDefinition:
        return self._definition

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        connection = await self._server.connection(self._server.location(context))
        if connection.prints.get(self._name) != self._pin:
            raise self._changed()
        try:
            with connection.watched(self._definition, context):
                result = await connection.call(self._name, input, context)
        except (ToolError, asyncio.CancelledError):
            raise
        except Exception as error:  # of the SDK, which speaks with a stranger
            if await connection.is_lost(error):
                raise self._server.died(connection) from None
            raise to_error(self._server, error) from None
        from callgate.sources.mcp.outputs import to_output  # lazy: with the SDK, which is heavy  # noqa: PLC0415

        output = to_output(result)
        problem = self._results.problem(output)
        if problem is not None:
            raise to_error(self._server, ValueError(problem))
        return output

    async def cancel(self) -> bool:
        return False  # the task in which it waits is cancelled, and that tells the server

    def _changed(self) -> ToolPermissionDenied:
        server = self._server
        problem = f"tool {self._name} is described differently than it was approved"
        server.log.note(PROBLEM + problem)
        approve = server.settings.accept or f"callgate mcp approve {server.settings.name}"
        since = f"it was approved: look at it, and accept it, with {approve}"
        if server.settings.of_session:
            since = "this session was opened: it is not used before that is done anew"
        return ToolPermissionDenied(
            f"Tool {self._definition.name!r} is described differently than when {since}.",
            reason="definition_changed",
        )


def tool_factory(server: Server, tool: str, definition: ToolDefinition, pin: str) -> ToolFactory:
    """`tool` is its name as the server knows it."""
    results = ResultSchema(definition.output_schema)
    return lambda: McpTool(server, tool, definition, pin, results)


def to_error(server: Server, error: Exception) -> ToolError:
    """What is told of a failure: a server's own words, cut; of the SDK's only what kind it is."""
    name = server.settings.name
    code = getattr(error, "code", None)
    if isinstance(code, int):
        text = server.settings.covered(str(error))[:LONGEST_ERROR] or "it did not say why"
        return ToolExecutionError(text, reason="mcp_error", details={"server": name, "code": code})
    server.log.note(f"{PROBLEM}its answer cannot be taken: {str(error)[:300]}")
    return ToolProtocolError(
        f"MCP server {name!r}: its answer cannot be taken ({type(error).__name__}).",
        reason="mcp_answer",
    )
