"""`callgate mcp wrap` with a server that is fetched first: the client is answered meanwhile."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
import pytest
from mcp import StdioServerParameters
from mcp.client.client import Client
from mcp.shared.exceptions import MCPError

from tests.features.mcp.packages.registries import Registry
from tests.features.mcp.packages.worlds import World, program_path
from tests.kernel.cli.running import CALLGATE
from tests.needs import needs

LIMIT_S = 120.0


@asynccontextmanager
async def wrapped(world: World, package: str) -> AsyncIterator[Client]:
    server = StdioServerParameters(
        command=CALLGATE,
        args=["mcp", "wrap", "--effect", "read", "--", "npx", "-y", package],
        env={"HOME": str(world.home), "CALLGATE_HOME": str(world.callgate_home), "PATH": program_path()},
        cwd=str(world.workspace),
    )
    async with asyncio.timeout(LIMIT_S), Client(server, mode="legacy", cache=None) as client:
        yield client


@needs("npm", "node")
async def test_a_client_is_greeted_while_packages_are_fetched_and_tools_follow(
    world: World, registry: Registry
) -> None:
    registry.held = threading.Event()
    heard: list[str | None] = []
    fetching = asyncio.Event()

    async def progress(value: float, total: float | None, message: str | None) -> None:
        heard.append(message)
        fetching.set()

    async with wrapped(world, "greedy-server") as client:  # which has been greeted by now
        assert registry.held.is_set() is False
        request = client.session.send_request(
            types.ListToolsRequest(), types.ListToolsResult, progress_callback=progress
        )
        listing = asyncio.ensure_future(request)
        await fetching.wait()
        assert not listing.done()
        registry.held.set()
        tools = (await listing).tools
        result: Any = await client.call_tool("try_all", {})
    assert [each.name for each in tools] == ["try_all"]
    assert "write cache" in result.content[0].text
    assert any("on the disk" in str(each) for each in heard)


@needs("npm", "node")
async def test_a_client_learns_why_packages_cannot_be_fetched(world: World, registry: Registry) -> None:
    async with wrapped(world, "no-such-server") as client:
        with pytest.raises(MCPError) as error:
            await client.list_tools()
    assert "404 Not Found" in str(error.value)
    assert not os.path.exists(world.callgate_home / "mcp/no-such-server.json")
