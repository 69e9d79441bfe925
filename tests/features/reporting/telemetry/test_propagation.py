"""A trace goes through: taken from HTTP and MCP clients, given to hosts, MCP servers and commands."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

import callgate
from callgate import Gate, ToolContext, tool
from callgate.core.ids import span_id
from tests.kernel.cli.running import callgate as run
from tests.otlp_receiver import Collector, collecting

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PARENT = tuple(TRACE.split("-")[1:3])


@tool(side_effects="read")
async def look(context: ToolContext) -> str:
    """Say where it is in the trace."""
    return context.traceparent or "nowhere"


@pytest.fixture
def base() -> Iterator[Path]:
    base = Path(tempfile.mkdtemp(prefix="cg"))  # short enough for a socket
    (base / "ws").mkdir()
    (base / "h").mkdir(mode=0o700)
    yield base
    shutil.rmtree(base, ignore_errors=True)


@pytest.fixture
def collector(base: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        monkeypatch.setenv("CALLGATE_HOME", str(base / "h"))
        settings(base)
        yield found


def settings(base: Path, more: str = "") -> None:
    (base / "h" / "settings.toml").write_text(f"[telemetry]\nenabled = true\n{more}")


def call_span(collector: Collector) -> Any:
    (found,) = [each for each in collector.spans if each.name.startswith("execute_tool")]
    return found


async def test_from_an_http_client(base: Path, collector: Collector) -> None:
    async with callgate.serve([base / "ws"], home=base / "h", tools=[look], http="127.0.0.1:0") as instance:
        headers = {"authorization": f"Bearer {instance.token}", "traceparent": TRACE}
        async with httpx2.AsyncClient(base_url=instance.url or "", headers=headers) as client:
            result = (await client.post("/v1/calls", json={"tool": "look", "arguments": {}})).json()
    call = call_span(collector)
    assert (call.trace, call.parent) == PARENT
    assert result["value"].startswith(f"00-{PARENT[0]}-{span_id(result['call_id'], 'run')}")


async def test_from_a_command_line_through_an_instance(base: Path, collector: Collector) -> None:
    async with callgate.serve([base / "ws"], home=base / "h", tools=[look]):
        ran = await asyncio.to_thread(run, "call", "look", cwd=base / "ws", env={"TRACEPARENT": TRACE})
        bad = await asyncio.to_thread(run, "call", "look", cwd=base / "ws", env={"TRACEPARENT": "x" * 9000})
    assert (ran.code, bad.code) == (0, 0)
    parents = {(each.trace, each.parent) for each in collector.spans if each.name.startswith("execute_tool")}
    assert PARENT in parents
    assert len(parents) == 2
    assert ran.out.startswith(f"00-{PARENT[0]}-")


async def test_what_is_no_trace_is_passed_over(base: Path, collector: Collector) -> None:
    async with callgate.serve([base / "ws"], home=base / "h", tools=[look], http="127.0.0.1:0") as instance:
        headers = {"authorization": f"Bearer {instance.token}", "traceparent": "00-zz"}
        async with httpx2.AsyncClient(base_url=instance.url or "", headers=headers) as client:
            assert (await client.post("/v1/calls", json={"tool": "look", "arguments": {}})).json()["ok"]
    assert call_span(collector).parent == ""


async def test_from_an_mcp_client(base: Path, collector: Collector) -> None:
    (base / "ws" / "a.txt").write_text("hello\n")
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "callgate", "mcp", "serve"],
        cwd=base / "ws",
        env={
            "CALLGATE_HOME": str(base / "h"),
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_BSP_SCHEDULE_DELAY": "20",
            "HOME": str(base),
        },
    )
    async with Client(stdio_client(server)) as client:
        await client.call_tool("read_file", {"path": "a.txt"}, meta={"traceparent": TRACE})  # type: ignore[typeddict-unknown-key]
        collector.wait_for_spans(2)
    call = call_span(collector)
    assert (call.trace, call.parent) == PARENT


HOST = """
import json, sys
def answer(id, value):
    print(json.dumps({"v": 1, "id": id, "ok": True, "result": {"value": value, "state": {}}}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    method, params = request.get("method"), request.get("params", {})
    if method == "init":
        answer(request["id"], {})
    elif method == "get_tool_schemas":
        answer(request["id"], [{"name": "where", "description": "Where.", "input_schema": {"type": "object", "properties": {}}}])
    elif method == "execute_tool":
        answer(request["id"], params.get("traceparent", "nowhere"))
    else:
        print(json.dumps({"v": 1, "id": request["id"], "ok": False, "error": {"type": "Unsupported", "detail": "no"}}), flush=True)
"""


async def test_to_a_host(base: Path, collector: Collector) -> None:
    (base / "host.py").write_text(HOST)
    settings(base, f'[hosts.h]\ncommand = ["{sys.executable}", "{base / "host.py"}"]\neffect = "read"\n')
    async with Gate(base / "ws", [], sources="settings", mode="write") as gate:
        result = await gate.call("where")
        assert result.ok, result
    (ran,) = [each for each in collector.spans if each.name.startswith("run")]
    assert result.text == f"00-{ran.trace}-{ran.id}-01"


SERVER = """
import json, sys
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
server = MCPServer("where")
@server.tool()
def where(ctx: Context) -> str:
    "Where."
    return json.dumps(dict(ctx.request_context.meta or {}))
server.run()
"""


async def test_to_an_mcp_server(base: Path, collector: Collector) -> None:
    (base / "server.py").write_text(SERVER)
    settings(
        base,
        f'[mcp.s]\ncommand = "{sys.executable}"\nargs = ["{base / "server.py"}"]\neffect = "read"\n',
    )
    approved = await asyncio.to_thread(run, "mcp", "approve", "s", "--yes", cwd=base / "ws")
    assert approved.code == 0, approved
    async with Gate(base / "ws", [], sources="settings", mode="write") as gate:
        result = await gate.call("mcp.s/where")
        assert result.ok, (result, gate.news)
    (ran,) = [each for each in collector.spans if each.name.startswith("run")]
    assert json.loads(result.text)["traceparent"] == f"00-{ran.trace}-{ran.id}-01"
    assert [each for each in collector.spans if each.attributes.get("gen_ai.tool.type") == "extension"]
