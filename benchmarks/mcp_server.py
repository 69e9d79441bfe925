"""What MCP costs: our server beside others, and the gate in front of another server.

    python benchmarks/mcp_server.py [--calls N] [--rounds N] [--json]

Every server is a process on pipes and has one tool that gives its argument back. One raw client
writes a line and waits for the answer, so that the figures are the servers' own. Rounds of all
contestants take turns; what is shown is the median of their medians. FastMCP is measured where it
is installed.

    serve   tools/call, one after the other, and from the start to the first answer
    wrap    the same call at the SDK's server, bare and behind `callgate mcp wrap`, FastMCP's proxy
            and mcp-gateway (`sh scripts/get_proxies.sh`). Only callgate's has a policy, an audit
            log and a sandbox.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

SDK_SERVER = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("benchmark", log_level="ERROR")
@server.tool()
async def echo(text: str) -> str:
    return text
server.run("stdio")
"""
FASTMCP_SERVER = """
from fastmcp import FastMCP
server = FastMCP("benchmark")
@server.tool
async def echo(text: str) -> str:
    return text
server.run("stdio", show_banner=False)
"""
FASTMCP_PROXY = """
import sys
from fastmcp.client.transports import StdioTransport
from fastmcp.server import create_proxy
proxy = create_proxy(StdioTransport(sys.argv[1], sys.argv[2:]))
proxy.run("stdio", show_banner=False)
"""
OUR_TOOL = """
from callgate import tool
@tool(side_effects="none", requires_workspace=False)
async def echo(text: str) -> str:
    '''Give it back.'''
    return text
"""
CALLGATE = str(Path(sys.executable).with_name("callgate"))
MCP_GATEWAY = Path(__file__).parents[1] / ".build" / "proxies" / "bin" / "mcp-gateway"
_HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "benchmark", "version": "1"},
}


class Server:
    """A process that speaks MCP on its pipes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self.pid = process.pid
        self._in, self._out = process.stdin, process.stdout
        self._id = 0
        self._tool = "echo"

    async def ask(self, method: str, params: Any) -> Any:
        self._id += 1
        said = {"jsonrpc": "2.0", "id": self._id, "method": method, "params": params}
        self._in.write(json.dumps(said).encode() + b"\n")
        while True:
            answer = json.loads(await self._out.readline())
            if answer.get("id") == self._id:
                return answer["result"]

    async def greet(self) -> None:
        await self.ask("initialize", _HELLO)
        said = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        self._in.write(json.dumps(said).encode() + b"\n")

    async def find_tool(self) -> None:
        """A proxy may prefix the names of tools."""
        tools = (await self.ask("tools/list", {}))["tools"]
        [self._tool] = [each["name"] for each in tools if each["name"].endswith("echo")]

    async def echo(self) -> None:
        result = await self.ask("tools/call", {"name": self._tool, "arguments": {"text": "hello"}})
        assert result["content"][0]["text"] == "hello", result


@asynccontextmanager
async def started(command: Sequence[str], home: str) -> AsyncIterator[Server]:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "CALLGATE_HOME": home},
        cwd=home,
    )
    try:
        yield Server(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), 20)
        except TimeoutError:
            process.kill()
            await process.wait()


def contestants(home: Path) -> dict[str, list[str]]:
    beside = home.with_name("servers")  # the home is hidden from whatever runs in the sandbox
    for each in (home, beside, home.with_name("workspace")):
        each.mkdir(mode=0o700)
    (home / "echo.py").write_text(OUR_TOOL)
    (home / "settings.toml").write_text('[tools]\nload = ["echo.py"]\n')
    for name, text in (("sdk", SDK_SERVER), ("fast", FASTMCP_SERVER), ("proxy", FASTMCP_PROXY)):
        (beside / f"{name}_server.py").write_text(text)
    place = ["--workspace", str(home.with_name("workspace")), "--mode", "write"]
    sdk = [sys.executable, str(beside / "sdk_server.py")]
    wrap = [CALLGATE, "mcp", "wrap", *place, "--effect", "none", "--profile", "open", "--", *sdk]
    found = {"callgate mcp serve": [CALLGATE, "mcp", "serve", *place], "mcp (the SDK)": sdk}
    if _installed("fastmcp"):
        found["fastmcp"] = [sys.executable, str(beside / "fast_server.py")]
    found["callgate mcp wrap"] = wrap
    if _installed("fastmcp"):
        found["FastMCP's proxy"] = [sys.executable, str(beside / "proxy_server.py"), *sdk]
    if MCP_GATEWAY.exists():
        servers = {"sdk": {"command": sdk[0], "args": sdk[1:]}}
        (beside / "mcp.json").write_text(
            json.dumps({"mcpServers": {"mcp-gateway": {"command": "none", "servers": servers}}})
        )
        found["mcp-gateway"] = [str(MCP_GATEWAY), "--mcp-json-path", str(beside / "mcp.json")]
    return found


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


async def measure(calls: int, rounds: int) -> dict[str, dict[str, float]]:
    times: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory, "home")
        commands = contestants(home)
        for _ in range(rounds):
            async with AsyncExitStack() as stack:
                servers = {}
                for name, command in commands.items():
                    begun = time.perf_counter()
                    server = await stack.enter_async_context(started(command, str(home)))
                    await server.greet()
                    took = times.setdefault(name, {"start_ms": [], "call_us": [], "cpu_us": []})
                    took["start_ms"].append((time.perf_counter() - begun) * 1e3)
                    await server.find_tool()
                    servers[name] = server
                for name, server in servers.items():
                    before = _cpu_s(server.pid)
                    times[name]["call_us"].append(await _calls(server, calls))
                    times[name]["cpu_us"].append((_cpu_s(server.pid) - before) / calls * 1e6)
    return {
        name: {what: median(each) for what, each in took.items()} for name, took in times.items()
    }


def _cpu_s(pid: int) -> float:
    """The CPU time of a process and of those that it started, as far as the system tells."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        threads = Path(f"/proc/{pid}/task").iterdir()
        below = [each for thread in threads for each in (thread / "children").read_text().split()]
    except OSError:
        return 0.0
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(_cpu_s(int(each)) for each in below)


async def _calls(server: Server, count: int) -> float:
    took = []
    for _ in range(count):
        begun = time.perf_counter()
        await server.echo()
        took.append((time.perf_counter() - begun) * 1e6)
    return median(took)


def main() -> None:
    parser = argparse.ArgumentParser(description="MCP beside others.")
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    found = asyncio.run(measure(chosen.calls, chosen.rounds))
    if chosen.json:
        print(json.dumps(found))
        return
    print(f"mcp {_installed('mcp')}, fastmcp {_installed('fastmcp') or 'is not installed'}")
    print(f"{'':22}{'a call':>12}{'its CPU':>12}{'start':>12}")
    for name, took in found.items():
        times = f"{took['call_us']:>9.0f} µs{took['cpu_us']:>9.0f} µs{took['start_ms']:>9.0f} ms"
        print(f"{name:22}{times}")
    bare = found["mcp (the SDK)"]["call_us"]
    for name in ("callgate mcp wrap", "FastMCP's proxy", "mcp-gateway"):
        if name in found:
            added = found[name]["call_us"] - bare
            print(f"{name} adds {added:.0f} µs to each call of the SDK's server")


if __name__ == "__main__":
    main()
