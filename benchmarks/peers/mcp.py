"""The MCP SDK: `call_tool` on the server object, without a client or a wire."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import Any

try:
    from mcp.server.mcpserver import MCPServer
except ImportError:  # SDK 1.x called it so
    from mcp.server.fastmcp import FastMCP as MCPServer

from benchmarks.cases import Case, Prepared


async def setup(case: Case, stack: AsyncExitStack) -> Prepared:
    server = MCPServer("benchmark", log_level="WARNING")
    server.add_tool(case.function)
    call = partial(server.call_tool, case.function.__name__, case.arguments)
    return Prepared(call=call, value=_value)


def _value(result: Any) -> Any:
    structured = result[1] if isinstance(result, tuple) else result.structured_content
    return structured["result"]
