from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client, FastMCP

from callgate import Gate
from callgate.adapters.fastmcp import GateMiddleware
from tests.features.agents.frameworks.contract import *  # noqa: F403
from tests.features.agents.frameworks.contract import gate_for
from tests.features.agents.frameworks.world import EFFECTS, World

del test_the_gate_is_told_what_the_user_said  # noqa: F405, F821  # a server does not know it


class Harness:
    """A client of a server stands for the model: what a call gives it, a model would be told."""

    shows_errors = True

    async def run(
        self, gate: Gate | None, world: World, tool: str, arguments: dict[str, Any], *, stream: bool = False
    ) -> list[str]:
        server = FastMCP("mails")
        for each in (world.look, world.send_mail, world.fail, world.wait):
            server.tool(each)
        if gate is not None:
            server.add_middleware(GateMiddleware(gate, EFFECTS))
        async with Client(server) as client:
            result = await client.call_tool(tool, arguments, raise_on_error=False)
        return [block.text for block in result.content]


@pytest.fixture
def harness() -> Harness:
    return Harness()


async def test_structured_results_reach_the_client(home: Path, tmp_path: Path) -> None:
    server = FastMCP("sums")

    @server.tool
    def add(a: int, b: int) -> dict[str, int]:
        return {"sum": a + b}

    async with gate_for(tmp_path, home) as gate:
        server.add_middleware(GateMiddleware(gate, {"add": "none"}))
        async with Client(server) as client:
            result = await client.call_tool("add", {"a": 1, "b": 2})
    assert result.structured_content == {"sum": 3}


async def test_a_tool_that_the_server_does_not_have_is_its_own_error(home: Path, tmp_path: Path) -> None:
    server = FastMCP("none")
    async with gate_for(tmp_path, home) as gate:
        server.add_middleware(GateMiddleware(gate, {"gone": "none"}))
        async with Client(server) as client:
            result = await client.call_tool("gone", {}, raise_on_error=False)
    assert result.is_error


async def test_a_tool_that_gets_another_schema_is_judged_by_it(home: Path, tmp_path: Path) -> None:
    server = FastMCP("sums")

    def add(a: int) -> int:
        return a

    server.tool(add)
    async with gate_for(tmp_path, home) as gate:
        server.add_middleware(GateMiddleware(gate, {"add": "none"}))
        async with Client(server) as client:
            assert (await client.call_tool("add", {"a": 1})).data == 1
            server.local_provider.remove_tool("add")

            def add_two(b: int, c: int) -> int:
                return b + c

            server.tool(add_two, name="add")
            assert (await client.call_tool("add", {"b": 1, "c": 2})).data == 3
            result = await client.call_tool("add", {"a": 1}, raise_on_error=False)
            assert result.is_error
