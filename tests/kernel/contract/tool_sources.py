"""Every kind of tool source, made from what a user would have: settings, files, programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from callgate import tool
from callgate.config.home import Home
from callgate.dispatch.tools.sources import FixedTools, ToolSource
from callgate.features.mcp.client.servers import ServerLocation
from callgate.features.mcp.wiring import add_servers, make_servers
from callgate.instance.wiring.components import enabled_packs
from callgate.instance.wiring.hosts import make_hosts
from callgate.instance.wiring.runtime import BUILT_IN, Wired
from callgate.sources.host_provider import HostedTools
from callgate.sources.lifecycle import Health
from tests.features.mcp.client.labs import stdio
from tests.kernel.sources.hosts.test_hosts import PLAIN
from tests.kernel.sources.sample_packs import WEATHER, install

NODE_HOST = Path(__file__).parents[3] / "packages/tool-host-node/host.mjs"
NODE_TOOLS = """
const inputSchema = { type: "object", properties: { text: { type: "string" } } };
export default ["echo", "other"].map((name) => ({ name, description: name, inputSchema, run: ({ text }) => text }));
"""


class Made(NamedTuple):
    source: ToolSource
    wired: Wired
    tool: str
    """One of its tools."""
    arguments: Mapping[str, Any]
    is_idle: Callable[[], bool] = lambda: True
    """Whether nothing runs for it."""
    leaves_out: bool = False
    """Of tools that clash it leaves out those alone; otherwise all, or none."""
    empty: Callable[[], None] | None = None
    """Have it offer nothing any more."""


def wired_in(base: Path, settings: str = "") -> Wired:
    (base / "home").mkdir(mode=0o700)
    (base / "ws").mkdir()
    (base / "home" / "settings.toml").write_text(f'sandbox = "off"\n{settings}')
    return Wired(Home(str(base / "home")), audit=False)


@tool(side_effects="none")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(side_effects="none")
async def double(a: int) -> int:
    """Double a number."""
    return 2 * a


async def functions(base: Path, site: Path) -> Made:
    return Made(FixedTools([add, double]), wired_in(base), "add", {"a": 1, "b": 2})


async def built_in(base: Path, site: Path) -> Made:
    return Made(FixedTools(BUILT_IN), wired_in(base), "list_dir", {})


async def host(base: Path, site: Path, *command: str) -> Made:
    wired = wired_in(base, f'[hosts.one]\ncommand = {json.dumps(command)}\neffect = "none"\n')
    hosts = make_hosts(wired.home, wired.settings, wired.sandbox, str(base / "ws"))
    hosts.pin_first("one", await hosts.ask("one"))
    await hosts.close()
    hosts = make_hosts(wired.home, wired.settings, wired.sandbox, str(base / "ws"))
    source = HostedTools(hosts, wired.registry)
    return Made(
        source,
        wired,
        "echo",
        {"text": "hello"},
        is_idle=lambda: hosts.hosts["one"].health is Health.RESTING,
        leaves_out=True,
        empty=lambda: source.offer("one", []),
    )


async def python_host(base: Path, site: Path) -> Made:
    return await host(base, site, sys.executable, "-I", PLAIN)


async def node_host(base: Path, site: Path) -> Made:
    (base / "tools.mjs").write_text(NODE_TOOLS)
    return await host(base, site, "node", str(NODE_HOST), str(base / "tools.mjs"))


async def mcp_server(base: Path, site: Path) -> Made:
    wired = wired_in(base, f'[mcp.odd]\n{stdio()}effect = "none"\n')
    workspace = str(base / "ws")
    servers = make_servers(wired.home, wired.settings, wired.sandbox, workspace)
    servers.pin("odd", await servers.ask("odd", ServerLocation(workspace)))
    await servers.close()
    source = add_servers(wired, workspace)
    return Made(
        source,
        wired,
        "mcp__odd__echo",
        {"text": "hello"},
        is_idle=lambda: source.servers.hosts["odd"].health is Health.RESTING,
        leaves_out=True,
        empty=lambda: source.offer("odd", []),
    )


async def pack(base: Path, site: Path) -> Made:
    name = f"contract_{abs(hash(str(base)))}"
    install(site, modules={name: WEATHER}, tools={name: f"{name}:pack"})
    wired = wired_in(base, f"[packs]\nenable = [{json.dumps(name)}]\n")
    source = enabled_packs(lambda: wired.packs)
    return Made(source, wired, "forecast", {"city": "Rome"}, is_idle=lambda: name not in sys.modules)


KINDS: Mapping[str, Any] = {
    "functions": functions,
    "built-in tools": built_in,
    "a host in Python": python_host,
    "a host in Node": node_host,
    "an MCP server": mcp_server,
    "an installed package": pack,
}
CHANGING = ("a host in Python", "a host in Node", "an MCP server")
"""Those whose tools may change while they are used."""
