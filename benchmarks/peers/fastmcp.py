"""FastMCP: its client, connected to a server in the same process."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

from fastmcp import Client, FastMCP

from benchmarks.cases import Case, Prepared


async def setup(case: Case, stack: AsyncExitStack) -> Prepared:
    server = FastMCP("benchmark")
    server.tool(case.function)
    client = await stack.enter_async_context(Client(server))
    call = partial(client.call_tool, case.function.__name__, case.arguments)
    return Prepared(call=call, value=lambda result: result.data)
