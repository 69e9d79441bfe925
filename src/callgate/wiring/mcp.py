"""From settings to MCP servers: how each is reached, and what may be asked back.

Loaded only where the settings name MCP servers.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

import msgspec

from callgate.config.home import Home
from callgate.config.load import load_workspace_mcp
from callgate.config.mcp_tokens import TokenFile
from callgate.config.pins import PinFiles
from callgate.config.schema import Settings
from callgate.config.shared_pins import open_pins
from callgate.config.trust import is_trusted
from callgate.core.effects import SideEffects
from callgate.core.errors import ToolError
from callgate.core.mcp_servers import McpTable
from callgate.core.models import Model
from callgate.dispatch.commands.sandboxes import Sandbox, Surroundings
from callgate.runtime import Runtime
from callgate.sources.logs import LifeLog
from callgate.sources.mcp.addresses import Login
from callgate.sources.mcp.approval import ask_servers, update_server_packages
from callgate.sources.mcp.asks import Asks
from callgate.sources.mcp.provider import ACCEPT, Servers
from callgate.sources.mcp.questions import DispatchedAsks
from callgate.sources.mcp.server_settings import ServerBuilder, pin_name
from callgate.sources.mcp.server_tools import McpTools
from callgate.sources.packages.server_packages import Tell
from callgate.sources.pins import Pinned

Tables = dict[str, tuple[McpTable, str | None]]
"""By name, with the workspace that brought each; None: the user did."""


def tables(home: Home, settings: Settings, workspace: str) -> Tables:
    """The servers of the user and those that the workspace brings, if it is trusted. The user's
    own come first: nothing replaces them."""
    found: Tables = {name: (table, None) for name, table in settings.mcp.items()}
    if is_trusted(home, workspace):
        real = os.path.realpath(workspace)
        for name, table in load_workspace_mcp(real).items():
            found.setdefault(name, (table, real))
    return found


def make_servers(
    home: Home,
    settings: Settings,
    sandbox: Sandbox,
    workspace: str,
    asks: Asks | None = None,
    login: Login | None = None,
    tell: Tell | None = None,
) -> Servers:
    """`login` sends a person to a browser; without, nobody is there. `tell` hears of packages that
    are fetched."""
    build = make_builder(home, sandbox, login, tell)
    found = tables(home, settings, workspace)
    servers = [build.settings(name, table, owner) for name, (table, owner) in found.items()]
    return Servers(servers, pin_files(home), asks)


def make_tools(
    home: Home, settings: Settings, sandbox: Sandbox, workspace: str, runtime: Runtime
) -> McpTools:
    """The tools of the servers of the settings, as they are pinned."""
    servers = make_servers(home, settings, sandbox, workspace, make_asks(home, settings, runtime))
    return McpTools(servers, runtime.dispatcher.registry)


def make_wrapped(
    home: Home, name: str, table: McpTable, sandbox: Sandbox, asks: Asks, accept: str, tell: Tell
) -> Servers:
    """One server, which stands for itself: what it has beside tools is only read. `accept` is the
    command that approves what it says."""
    settings = make_builder(home, sandbox, None, tell).settings(name, table)
    beliefs = msgspec.structs.replace(settings.beliefs, beside=SideEffects.READ)
    wrapped = msgspec.structs.replace(settings, beliefs=beliefs, accept=accept)
    return Servers([wrapped], pin_files(home), asks)


def make_builder(
    home: Home, sandbox: Sandbox, login: Login | None = None, tell: Tell | None = None
) -> ServerBuilder:
    return ServerBuilder(home.path, sandbox, lambda pin: token_file(home, pin), login, tell)


def pin_files(home: Home) -> PinFiles:
    return open_pins(home, "mcp", ACCEPT)


def token_file(home: Home, pin: str) -> TokenFile:
    return TokenFile(os.path.join(home.path, "mcp", f"{pin}.tokens"), home.path)


def make_asks(home: Home, settings: Settings, runtime: Runtime) -> Asks:
    def open_model() -> Model:
        from callgate.wiring.agents import open_model  # lazy: only where a server asks for one  # noqa: PLC0415

        return open_model(home, settings, None)

    return DispatchedAsks(runtime.call, runtime.dispatcher.registry, open_model)


def update_packages(
    home: Home,
    settings: Settings,
    surroundings: Surroundings,
    workspace: str,
    name: str,
    tell: Tell,
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Fetch the newest packages of a server: the versions before, and now. Raises a `ToolError` or
    OSError. To be called where no event loop runs."""
    table, owner = tables(home, settings, workspace)[name]
    sandbox, pin = Sandbox(surroundings), pin_name(name, owner)
    packages = make_builder(home, sandbox, tell=tell).packages(pin, table)
    log = LifeLog(pin_files(home).log_path(pin))
    return update_server_packages(table, packages, sandbox, log, os.path.abspath(workspace))


def ask(
    home: Home,
    settings: Settings,
    surroundings: Surroundings,
    workspace: str,
    names: Collection[str],
    login: Login | None = None,
    tell: Tell | None = None,
) -> Mapping[str, Pinned | ToolError]:
    """Start these servers, side by side: what each says of itself, or why it says nothing. Pins
    nothing. To be called where no event loop runs."""
    sandbox = Sandbox(surroundings)
    servers = make_servers(home, settings, sandbox, workspace, login=login, tell=tell)
    return ask_servers(servers, sandbox, workspace, names)
