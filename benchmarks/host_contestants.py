"""Who runs a no-op in another process: a bare pipe, our hosts, and MCP servers.

Each is started by an async context manager, which gives a function that makes one call, for
the session with that number. Where something is not installed it is left out, and named.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from callgate.config.pins import PinFiles
from callgate.core.calls import ToolCall
from callgate.core.commands import Command, Launcher, OnOutput, Running
from callgate.core.effects import SideEffects
from callgate.core.sessions import Mode
from callgate.dispatch.commands.sandboxes import Enclosure
from callgate.gate import Gate
from callgate.sandbox.jails import Network
from callgate.sandbox.profiles import Profile
from callgate.sources.host_provider import Hosts, HostSpec
from callgate.sources.hosts import Host, HostSettings

Once = Callable[[int], Awaitable[Any]]
Contestant = Callable[[], contextlib.AbstractAsyncContextManager[Once]]

PIPE = "a line over asyncio's pipes"
SESSIONS = 16
CHECKOUT = Path(__file__).parents[1]
NODE_MODULES = CHECKOUT / ".build" / "bench-node"
SDK = "@modelcontextprotocol/sdk"

PYTHON_TOOLS = '''
from callgate import tool


@tool(side_effects="none")
def noop_sync() -> str:
    """Do nothing."""
    return "done"


@tool(side_effects="none")
async def noop_async() -> str:
    """Do nothing."""
    return "done"
'''
NODE_TOOL = """
export default {
  tools: [{ name: "noop_node", description: "Do nothing.",
            inputSchema: { type: "object", properties: {} }, run: () => "done" }],
};
"""
MCP_SERVERS = {
    "mcp": (
        "from mcp.server.mcpserver import MCPServer\n"
        "server = MCPServer('bench')\n@server.tool()\ndef noop() -> str:\n    '''Do nothing.'''\n"
        "    return 'done'\nserver.run()\n"
    ),
    "FastMCP": (
        "from fastmcp import FastMCP\n"
        "server = FastMCP('bench')\n@server.tool\ndef noop() -> str:\n    '''Do nothing.'''\n"
        "    return 'done'\nserver.run(show_banner=False)\n"
    ),
}
TYPESCRIPT_SERVER = """
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
const server = new McpServer({ name: "bench", version: "1.0.0" });
server.registerTool("noop", { description: "Do nothing." },
                    async () => ({ content: [{ type: "text", text: "done" }] }));
await server.connect(new StdioServerTransport());
"""
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


def install() -> None:
    """Put the TypeScript SDK where it is looked for. From the npm registry, without a lock."""
    NODE_MODULES.mkdir(parents=True, exist_ok=True)
    options = ["--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--silent"]
    command = ["npm", "install", "--prefix", str(NODE_MODULES), *options, SDK]
    subprocess.run(command, check=True, timeout=300)


def sdk_version() -> str | None:
    """Of the TypeScript SDK; None where it is not installed."""
    described = NODE_MODULES / "node_modules" / SDK / "package.json"
    return msgspec.json.decode(described.read_bytes())["version"] if described.exists() else None


class Ground:
    """Where all contestants are: a directory, and one runtime for our hosts."""

    def __init__(self, directory: Path, gate: Gate) -> None:
        self.directory, self.gate = directory, gate
        workspace = str(directory / "ws")
        self.sessions = [gate._wired.session(workspace, Mode.WRITE) for _ in range(SESSIONS)]
        (directory / "tools.py").write_text(PYTHON_TOOLS)
        (directory / "noop.mjs").write_text(NODE_TOOL)
        self.python = [sys.executable, "-m", "callgate.host", str(directory / "tools.py")]
        node_host = CHECKOUT / "packages" / "tool-host-node" / "host.mjs"
        self.node = ["node", str(node_host), str(directory / "noop.mjs")]
        self._count = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, directory: Path) -> AsyncIterator[Ground]:
        (directory / "ws").mkdir()
        async with Gate(directory / "ws", [], home=directory / "home") as gate:
            await gate._wired.sandbox.ready()
            gate._wired.sandbox.warm(os.environ)
            yield cls(directory, gate)

    def calls(self) -> dict[str, Contestant]:
        """For the costs of calls."""
        ours = {
            "callgate, Python host, sync tool": lambda: self.host(self.python, "noop_sync"),
            "callgate, Python host, async tool": lambda: self.host(self.python, "noop_async"),
        }
        if shutil.which("node"):
            ours["callgate, Node host"] = lambda: self.host(self.node, "noop_node")
        return {PIPE: pipe, **ours, **self._servers()}

    def starts(self) -> dict[str, Contestant]:
        """For starts and for memory: each is ready when its tools are known."""
        ours = {
            "callgate, Python host, cold": lambda: self.bare_host(self.python, cold=True),
            "callgate, Python host, from the zygote": lambda: self.bare_host(self.python),
        }
        if shutil.which("node"):
            ours["callgate, Node host"] = lambda: self.bare_host(self.node)
        return {PIPE: pipe, **ours, **self._servers()}

    def _servers(self) -> dict[str, Contestant]:
        found: dict[str, Contestant] = {}
        if find_spec("mcp") is None:
            return found
        for kind, source in MCP_SERVERS.items():
            if find_spec(kind.lower()):
                server = self.directory / f"{kind}_server.py"
                server.write_text(source)
                command = [sys.executable, str(server)]
                found[f"mcp client, {kind} server"] = partial(mcp_client, command)
        if sdk_version() is not None:
            script = NODE_MODULES / "server.mjs"  # from where it finds the SDK
            script.write_text(TYPESCRIPT_SERVER)
            found["mcp client, TypeScript server"] = lambda: mcp_client(["node", str(script)])
        return found

    def _settings(self, command: list[str]) -> HostSettings:
        self._count += 1
        return HostSettings(
            name=f"host{self._count}",
            command=tuple(command),
            cwd=str(self.directory / "ws"),
            env=dict(os.environ),
            max_in_flight=64,
        )

    def launcher(self) -> Launcher:
        around = Enclosure(Profile.WORKSPACE, Network.NONE)
        return self.gate._wired.sandbox.launcher(around, self.sessions[0])

    @contextlib.asynccontextmanager
    async def host(self, command: list[str], tool: str) -> AsyncIterator[Once]:
        """Calls go through the whole dispatcher, and the host is in the sandbox."""
        settings, runtime = self._settings(command), self.gate.runtime
        spec = HostSpec(settings=settings, effect=SideEffects.NONE, launcher=self.launcher)
        hosts = Hosts([spec], PinFiles(str(self.directory / "home")))
        hosts.pin_first(settings.name, await hosts.ask(settings.name))
        factories = [
            each for each in hosts.factories(settings.name) if each().definition.name == tool
        ]
        runtime.tools.register(factories[0])

        async def once(number: int) -> None:
            session = self.sessions[number % SESSIONS]
            result = await runtime.calls.run(ToolCall(tool=tool, arguments={}, session=session))
            assert result.ok, result.error

        yield once
        await hosts.close()

    @contextlib.asynccontextmanager
    async def bare_host(self, command: list[str], *, cold: bool = False) -> AsyncIterator[Once]:
        launcher = Cold(self.launcher()) if cold else self.launcher()
        host = Host(self._settings(command), lambda: launcher)
        await host.link()
        yield nothing
        await host.close()


class Cold:
    """A launcher that takes nothing from a zygote."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    async def start(self, command: Command, on_output: OnOutput) -> Running:
        return await self._launcher.start(msgspec.structs.replace(command, warm=None), on_output)


async def nothing(number: int) -> None:
    """Asked for by nobody."""


@contextlib.asynccontextmanager
async def pipe() -> AsyncIterator[Once]:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ECHO, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdin is not None and child.stdout is not None
    writer, reader = child.stdin, child.stdout

    async def once(number: int) -> None:
        writer.write(LINE)
        assert await reader.readline() == LINE

    await once(0)
    yield once
    writer.close()
    await child.wait()


@contextlib.asynccontextmanager
async def mcp_client(command: list[str]) -> AsyncIterator[Once]:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    parameters = StdioServerParameters(command=command[0], args=command[1:])
    async with stdio_client(parameters) as streams, ClientSession(*streams) as session:
        await session.initialize()
        await session.list_tools()

        async def once(number: int) -> None:
            await session.call_tool("noop", {})

        yield once
