"""What an MCP server costs behind the gate: each call, and being there without being called.

    python benchmarks/mcp_client.py [--calls N] [--rounds N] [--json]

    call    the same tool of the same server on pipes: by the SDK's client alone, and by
            `Calls.run` with schema, policy, events and audit on, as a session calls it
    idle    `callgate call read_file` and `callgate tools` with no MCP servers and with 50 that are
            configured and approved, with one tool each: nothing is started, the SDK is not
            imported, and a call of another tool does not look at them at all

Rounds of all contestants take turns, in processes of their own kind; medians of medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from callgate.config.home import Home
from callgate.config.load import load_user
from callgate.core.calls import CallerKind, ToolCall
from callgate.features.mcp.client.servers import ServerLocation
from callgate.features.mcp.wiring import make_servers
from callgate.instance.wiring.builder import register_known
from callgate.instance.wiring.runtime import Wired
from callgate.sources.pins import Pinned

SERVER = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("benchmark", log_level="ERROR")
@server.tool()
async def echo(text: str) -> str:
    return text
server.run("stdio")
"""
IDLE = 50
CALLGATE = str(Path(sys.executable).with_name("callgate"))
_TOOL = {"name": "echo", "description": "Gives it back.", "inputSchema": {"type": "object"}}


async def calls(count: int, rounds: int) -> dict[str, float]:
    """Microseconds a call."""
    with tempfile.TemporaryDirectory(prefix="callgate-benchmark-") as directory:
        home, workspace = Path(directory, "home"), Path(directory, "workspace")
        home.mkdir(mode=0o700)
        workspace.mkdir()
        script = Path(directory, "server.py")
        script.write_text(SERVER)
        (home / "settings.toml").write_text(
            f'[mcp.b]\ncommand = "{sys.executable}"\nargs = ["{script}"]\neffect = "none"\n'
            'profile = "open"\n'
        )
        wired = await _wired(Home(str(home)), str(workspace))
        session = wired.session(str(workspace))
        bare = StdioServerParameters(command=sys.executable, args=[str(script)])
        try:
            async with Client(stdio_client(bare), cache=None) as client:

                async def alone() -> None:
                    found = await client.call_tool("echo", {"text": "hello"})
                    assert not found.is_error

                async def gated() -> None:
                    given = {"text": "hello"}
                    call = ToolCall(
                        tool="mcp.b/echo", arguments=given, session=session, caller=CallerKind.CLI
                    )
                    assert (await wired.runtime.calls.run(call)).text == "hello"

                ways = {"the SDK's client alone": alone, "behind the gate": gated}
                took: dict[str, list[float]] = {name: [] for name in ways}
                for way in ways.values():
                    await _timed(way, 20)
                for _ in range(rounds):
                    for name, way in ways.items():
                        took[name].append(await _timed(way, count))
        finally:
            await wired.close()
    return {name: median(each) for name, each in took.items()}


async def _wired(home: Home, workspace: str) -> Wired:
    """A runtime with the server, approved."""
    wired = Wired(home)
    servers = make_servers(home, load_user(home)[0], wired.sandbox, workspace)
    servers.pin("b", await servers.ask("b", ServerLocation(workspace)))
    await servers.close()
    register_known(wired, workspace)
    return wired


async def _timed(way: Callable[[], Awaitable[None]], count: int) -> float:
    took = []
    for _ in range(count):
        begun = time.perf_counter()
        await way()
        took.append((time.perf_counter() - begun) * 1e6)
    return median(took)


class Cost(NamedTuple):
    """Of a whole command, in milliseconds."""

    wall_ms: float
    cpu_ms: float


def idle(rounds: int) -> dict[str, dict[int, Cost]]:
    """What each command costs, by how many servers there are."""
    commands = {
        "callgate call read_file": ["call", "read_file", "path=a.txt"],
        "callgate tools": ["tools"],
    }
    with tempfile.TemporaryDirectory(prefix="callgate-benchmark-") as directory:
        Path(directory, "a.txt").write_text("hello")
        homes = {count: _configured(Path(directory, str(count)), count) for count in (0, IDLE)}
        took: dict[tuple[str, int], list[Cost]] = {}
        for round_ in range(rounds + 1):
            for name, words in commands.items():
                for count, environment in homes.items():
                    cost = _timed_command(words, directory, environment)
                    if round_:  # the first made the home and wrote the bytecode
                        took.setdefault((name, count), []).append(cost)
        shown = {
            name: _run(words, directory, {**homes[IDLE], "PYTHONPROFILEIMPORTTIME": "1"})
            for name, words in commands.items()
        }
    assert shown["callgate tools"].stdout.count("mcp__") == IDLE
    for name, said in shown.items():
        imported = {line.rpartition("|")[2].strip() for line in said.stderr.splitlines()}
        assert not imported & {"mcp", "mcp_types", "anyio", "pydantic", "httpx2"}, (name, imported)
    assert "callgate.features.mcp.wiring" not in shown["callgate call read_file"].stderr
    return {name: {count: _median(took[name, count]) for count in homes} for name in commands}


def _median(costs: list[Cost]) -> Cost:
    return Cost(*(median(each) for each in zip(*costs, strict=True)))


def _timed_command(words: list[str], directory: str, environment: dict[str, str]) -> Cost:
    cpu, begun = _children_s(), time.perf_counter()
    _run(words, directory, environment)
    return Cost((time.perf_counter() - begun) * 1e3, (_children_s() - cpu) * 1e3)


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _configured(home: Path, count: int) -> dict[str, str]:
    """The environment of a home with so many servers, each approved."""
    home.mkdir(mode=0o700)
    told = [f'[mcp.s{number}]\ncommand = "/no/such/server"\n' for number in range(count)]
    (home / "settings.toml").write_text("".join(told))
    made = Home(str(home))
    wired = Wired(made)
    servers = make_servers(made, load_user(made)[0], wired.sandbox, str(home))
    for name in servers.hosts:
        servers.pin(name, Pinned(command=servers.command(name), schemas=[_TOOL]))
    return {**os.environ, "CALLGATE_HOME": str(home)}


def _run(
    words: list[str], directory: str, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [CALLGATE, *words],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="MCP servers behind the gate.")
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    called = asyncio.run(calls(chosen.calls, chosen.rounds))
    resting = idle(chosen.rounds)
    if chosen.json:
        told = {
            name: {count: cost._asdict() for count, cost in by.items()}
            for name, by in resting.items()
        }
        print(json.dumps({"call_us": called, "idle": told}))
        return
    for name, took in called.items():
        print(f"{name:28}{took:>8.0f} µs a call")
    alone, gated = called.values()
    print(f"the gate adds {gated - alone:.0f} µs, {gated / alone:.2f} times the bare call")
    for name, by in resting.items():
        for count, cost in by.items():
            print(f"{name:28}{count:>3} servers{cost.wall_ms:>8.0f} ms{cost.cpu_ms:>8.0f} ms CPU")
        more = by[IDLE].cpu_ms - by[0].cpu_ms
        print(f"{'':28}{more:+.1f} ms of CPU for {IDLE} of them (goal: nothing)")


if __name__ == "__main__":
    main()
