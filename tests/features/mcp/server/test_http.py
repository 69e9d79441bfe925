"""MCP on an instance's port: behind the same wall, one session for each client."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import pytest
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from callgate import ToolContext, tool
from callgate.features.mcp.server.local import Replays
from tests.features.mcp.server.talks import GENERATIONS, answers, texts
from tests.features.web.instances import DONE, TOOLS, Instance, serving

each_generation = pytest.mark.parametrize("generation", GENERATIONS)
LIMIT_S = 60.0
ACCEPT = {"accept": "application/json, text/event-stream"}
HELLO: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"},
    },
}


@pytest.fixture
async def instance(home: Path, tmp_path: Path) -> AsyncIterator[Instance]:
    async with serving(home, tmp_path / "ws") as made:
        yield made


@asynccontextmanager
async def coming(instance: Instance, generation: str, query: str = "", **more: Any) -> AsyncIterator[Client]:
    headers = {"authorization": f"Bearer {instance.token}"}
    async with asyncio.timeout(LIMIT_S), httpx2.AsyncClient(headers=headers) as http:
        url = f"http://127.0.0.1:{instance.port}/mcp{query}"
        transport = streamable_http_client(url, http_client=http)
        async with Client(transport, mode=generation, cache=None, **more) as client:
            yield client


@each_generation
async def test_a_client_with_the_token_lists_and_calls(instance: Instance, generation: str) -> None:
    async with coming(instance, generation) as client:
        names = [each.name for each in (await client.list_tools()).tools]
        result = await client.call_tool("show", {"what": "it"})
    assert "show" in names
    assert texts(result) == ["it"]


@pytest.mark.spec("T26", "T27")
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": ""}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"host": "evil.example"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({}, 200),
    ],
)
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_the_wall_stands_before_mcp_as_well(
    instance: Instance, headers: dict[str, str], status: int, method: str
) -> None:
    if status == 200 and method != "POST":
        return
    client = instance.client()
    said = {**ACCEPT, **headers}
    if said.get("authorization") == "":
        client, said = instance.client(None), ACCEPT
    answer = await client.http.request(method, "/mcp", json=HELLO, headers=said)
    assert answer.status_code == status


@each_generation
async def test_a_question_is_asked_in_the_client(instance: Instance, generation: str) -> None:
    async with coming(instance, generation, elicitation_callback=answers("Allow once")) as client:
        await client.call_tool("put", {"what": "it"})
    assert DONE == ["it"]


async def test_an_answer_for_one_clients_session_is_none_for_anothers(instance: Instance) -> None:
    whole = answers("Allow this tool for the rest of the session")
    asked: list[str] = []
    async with (
        coming(instance, "legacy", elicitation_callback=whole) as first,
        coming(instance, "legacy", elicitation_callback=answers("Deny", asked)) as second,
    ):
        await first.call_tool("put", {"what": "one"})
        refused = await second.call_tool("put", {"what": "two"})
    assert (DONE, refused.is_error, len(asked)) == (["one"], True, 1)


async def test_a_narrower_mode_can_be_asked_for_and_a_wider_one_is_not_given(
    instance: Instance,
) -> None:
    async with coming(instance, "legacy", "?mode=none") as client:
        assert (await client.list_tools()).tools == []
    asked: list[str] = []
    async with coming(instance, "legacy", "?mode=write", elicitation_callback=answers("Deny", asked)) as client:
        await client.call_tool("put", {"what": "it"})
    assert (DONE, len(asked)) == ([], 1)


@each_generation
@pytest.mark.parametrize("query", ["?workspace=/etc", "?mode=all"])
async def test_a_place_that_is_not_served_is_refused(instance: Instance, generation: str, query: str) -> None:
    async with coming(instance, generation, query) as client:
        with pytest.raises(MCPError) as refused:
            await client.list_tools()
    assert refused.value.code == types.INVALID_REQUEST


async def test_a_client_that_ends_its_session_stops_its_calls(home: Path, tmp_path: Path) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    @tool(side_effects="none")
    async def stay(context: ToolContext) -> str:
        """Stay until it is stopped."""
        started.set()
        try:
            await context.cancel_event.wait()
        finally:
            stopped.set()
        return "stopped"

    async with serving(home, tmp_path / "ws", tools=[*TOOLS, stay]) as instance:
        http = instance.client().http
        hello = await http.post("/mcp", json=HELLO, headers=ACCEPT)
        headers = {**ACCEPT, "mcp-session-id": hello.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}
        call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "stay"}}
        calling = asyncio.create_task(http.post("/mcp", json=call, headers=headers))
        async with asyncio.timeout(LIMIT_S):
            await started.wait()
            await http.delete("/mcp", headers=headers)
            await stopped.wait()
            again = await http.post("/mcp", json=call, headers=headers)
        calling.cancel()
        await asyncio.gather(calling, return_exceptions=True)
    assert again.status_code == 404


async def test_an_instance_with_a_client_at_work_still_stops(home: Path, tmp_path: Path) -> None:
    async with serving(home, tmp_path / "ws") as instance:
        async with coming(instance, "legacy") as client:
            calling = asyncio.create_task(client.call_tool("wait", {}))
            while not instance.runtime.calls.in_flight():
                await asyncio.sleep(0)
            async with asyncio.timeout(LIMIT_S):
                await instance.close()
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)


async def test_what_was_said_is_replayed_on_its_own_stream_only_and_bounded() -> None:
    kept, sent = Replays(), []
    message = types.JSONRPCNotification(jsonrpc="2.0", method="x")

    async def send(event: Any) -> None:
        sent.append(event.event_id)

    first = await kept.store_event("a", None)
    await kept.store_event("b", message)
    second = await kept.store_event("a", message)
    assert await kept.replay_events_after(first, send) == "a"
    assert sent == [second]
    for _ in range(400):
        await kept.store_event("b", message)
    assert await kept.replay_events_after(first, send) is None
    assert await kept.replay_events_after("no number", send) is None


def test_the_sdk_is_loaded_by_nothing_but_mcp_itself() -> None:
    names = (
        "callgate",
        "callgate.instance.wiring.runtime",
        "callgate.cli.dispatch",
        "callgate.features.mcp.commands.serve",
        "callgate.features.mcp.commands.serve",
        "callgate.cli.commands.serve",
        "callgate.features.web.application",
    )
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "print([each for each in sys.modules if each.split('.')[0] in ('mcp', 'mcp_types')])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
