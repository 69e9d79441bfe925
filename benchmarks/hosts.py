"""What a call of a tool in another process costs, beside a bare pipe and MCP servers.

    python benchmarks/hosts.py [--rounds N] [--calls N] [--quick] [--json]

One no-op after another, wall time of each in microseconds. Every contestant has its process
started before; in every round each does a batch, in turn, and ratios are taken within a round.
`pipe` writes a line to a child that writes it back, with asyncio's own pipes. The hosts go
through the whole dispatcher: arguments checked, policy asked, events, an audit record. The MCP
clients call the tool and nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from benchmarks import report
from callgate.config.pins import PinFiles
from callgate.core.calls import ToolCall
from callgate.core.effects import SideEffects
from callgate.dispatch.sandboxes import Enclosure
from callgate.gate import Gate
from callgate.sandbox.jails import Network
from callgate.sandbox.profiles import Profile
from callgate.sources.hosts.hosts import HostSettings
from callgate.sources.hosts.source import Hosts, HostSpec

Once = Callable[[], Awaitable[Any]]

PYTHON_TOOL = '''
from callgate import tool


@tool(side_effects="none")
async def noop() -> str:
    """Do nothing."""
    return "done"
'''
NODE_TOOL = """
export default {
  tools: [{ name: "noop_node", description: "Do nothing.",
            inputSchema: { type: "object", properties: {} }, run: () => "done" }],
};
"""
MCP_SERVER = {
    "mcp": (
        "from mcp.server.mcpserver import MCPServer\n"
        "server = MCPServer('bench')\n@server.tool()\ndef noop() -> str:\n    '''Do nothing.'''\n"
        "    return 'done'\nserver.run()\n"
    ),
    "fastmcp": (
        "from fastmcp import FastMCP\n"
        "server = FastMCP('bench')\n@server.tool\ndef noop() -> str:\n    '''Do nothing.'''\n"
        "    return 'done'\nserver.run(show_banner=False)\n"
    ),
}
ECHO = """
import sys
for line in sys.stdin.buffer:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()
"""
LINE = (
    b'{"v":1,"id":"1","method":"execute_tool",'
    b'"params":{"tool_name":"noop","arguments":{},"state":{}}}\n'
)


@contextlib.asynccontextmanager
async def pipe() -> AsyncIterator[Once]:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ECHO, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdin is not None and child.stdout is not None
    writer, reader = child.stdin, child.stdout

    async def once() -> None:
        writer.write(LINE)
        assert await reader.readline() == LINE

    yield once
    writer.close()
    await child.wait()


@contextlib.asynccontextmanager
async def host(directory: Path, name: str, command: list[str], tool: str) -> AsyncIterator[Once]:
    workspace = directory / f"ws-{name}"
    workspace.mkdir(exist_ok=True)
    async with Gate(workspace, [], home=directory / f"home-{name}") as gate:
        sandbox = gate._wired.sandbox
        await sandbox.ready()
        spec = HostSpec(
            settings=HostSettings(
                name=name, command=tuple(command), cwd=str(workspace), env=dict(os.environ)
            ),
            effect=SideEffects.NONE,
            launcher=lambda: sandbox.launcher(
                Enclosure(Profile.WORKSPACE, Network.NONE), gate.session
            ),
        )
        hosts = Hosts([spec], PinFiles(str(directory / f"home-{name}")))
        await hosts.learn(name)
        for factory in hosts.factories(name):
            gate.runtime.register(factory)

        async def once() -> None:
            result = await gate.runtime.call(
                ToolCall(tool=tool, arguments={}, session=gate.session)
            )
            assert result.ok, result.error

        yield once
        await hosts.close()


@contextlib.asynccontextmanager
async def mcp_client(directory: Path, kind: str) -> AsyncIterator[Once]:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    server = directory / f"{kind}_server.py"
    server.write_text(MCP_SERVER[kind])
    parameters = StdioServerParameters(command=sys.executable, args=[str(server)])
    async with stdio_client(parameters) as streams, ClientSession(*streams) as session:
        await session.initialize()

        async def once() -> None:
            await session.call_tool("noop", {})

        yield once


async def batch(once: Once, calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        await once()
    return (time.perf_counter() - began) / calls * 1e6


async def measure(directory: Path, rounds: int, calls: int) -> dict[str, Any]:
    plugin = directory / "noop.py"
    plugin.write_text(PYTHON_TOOL)
    (directory / "noop.mjs").write_text(NODE_TOOL)
    node_host = Path(__file__).parents[1] / "packages" / "tool-host-node" / "host.mjs"
    python = [sys.executable, "-m", "callgate.host", str(plugin)]
    contestants: dict[str, Any] = {"pipe": pipe()}
    if find_spec("callgate.host"):
        contestants["callgate, Python host"] = host(directory, "python", python, "noop")
    if shutil.which("node") and node_host.exists():
        command = ["node", str(node_host), str(directory / "noop.mjs")]
        contestants["callgate, Node host"] = host(directory, "node", command, "noop_node")
    if find_spec("mcp"):
        contestants["mcp client, mcp server"] = mcp_client(directory, "mcp")
    if find_spec("fastmcp"):
        contestants["mcp client, FastMCP server"] = mcp_client(directory, "fastmcp")
    found: dict[str, list[float]] = {name: [] for name in contestants}
    starts: dict[str, float] = {}
    async with contextlib.AsyncExitStack() as stack:
        running: dict[str, Once] = {}
        for name, contestant in contestants.items():
            began = time.perf_counter()
            running[name] = await stack.enter_async_context(contestant)
            await running[name]()
            starts[name] = (time.perf_counter() - began) * 1e3
        for once in running.values():
            await batch(once, max(calls // 10, 2))
        for _ in range(rounds):
            for name, once in running.items():
                found[name].append(await batch(once, calls))
    return {
        name: {
            "us": round(median(times), 1),
            "to_pipe": round(median(a / b for a, b in zip(times, found["pipe"], strict=True)), 2),
            "first_call_ms": round(starts[name], 1),
        }
        for name, times in found.items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=300, help="in a batch")
    parser.add_argument("--quick", action="store_true", help="a look at whether it works")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    rounds, calls = (2, 10) if options.quick else (options.rounds, options.calls)
    with tempfile.TemporaryDirectory(prefix="cg", dir="/var/tmp") as directory:
        found = asyncio.run(measure(Path(directory), rounds, calls))
    if not options.json:
        head = [
            "one call of a tool in another process", "µs", "to the pipe",
            "start to first call, ms",
        ]  # fmt: skip
        rows = [
            [name, f"{each['us']:,}", f"{each['to_pipe']}", f"{each['first_call_ms']:,}"]
            for name, each in found.items()
        ]
        print(report.table(head, rows), end="\n\n")
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
