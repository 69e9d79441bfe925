"""Which tools a runtime has: the sources of the settings, in their order.

built-in, agents' own, packages that we ship, `custom`   `Wired.register_built_in`
`[tools] load`                                           `register_own`
hosts, MCP servers, packages that a user enabled         `_add_configured`
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from callgate.config.home import workspace_settings
from callgate.config.load import SettingsError, load_workspace_mcp
from callgate.config.trust import is_trusted
from callgate.core.errors import ToolRegistrationError
from callgate.core.mcp_servers import McpTable
from callgate.core.tools import ToolFactory
from callgate.dispatch.tools.sources import Lazy, ToolSource
from callgate.wiring.components import enabled_packs
from callgate.wiring.runtime import Wired

if TYPE_CHECKING:  # most homes have no host
    from callgate.sources.hosts.learning import Answers

_MCP = ("mcp__*", "mcp.*")


def register_configured(wired: Wired, workspace: str) -> None:
    """Register the built-in tools, those that the settings load, and those of their hosts.

    `SettingsError` names the file, and the line of it, that cannot be used. The runtime is
    not to be used then.
    """
    register_lazily(wired, workspace)
    wired.dispatcher.registry.load_all()


def register_lazily(wired: Wired, workspace: str) -> None:
    """The same for whoever means one tool: of the catalogue and of MCP servers nothing is looked
    at before a tool is meant that may be theirs."""
    register_own(wired)
    _add_configured(wired, workspace, _learn(wired, workspace))


async def register_sources(wired: Wired, workspace: str) -> None:
    """Register the tools of the hosts and MCP servers in the settings, where an event loop runs."""
    _add_configured(wired, workspace, await asyncio.to_thread(_learn, wired, workspace))
    wired.dispatcher.registry.load_all()


def register_known(wired: Wired, workspace: str) -> None:
    """The same as `register_configured`, without a look at hosts that are new: nothing is started,
    and nothing is reported of hosts."""
    register_own(wired)
    _add_configured(wired, workspace, None)
    wired.dispatcher.registry.load_all()


def register_own(wired: Wired) -> None:
    """Register the built-in tools, and those that the settings load."""
    loaded = _load_configured(wired)
    wired.register_built_in()
    for file, factory in loaded:
        try:
            wired.register(factory)
        except ToolRegistrationError as error:
            raise SettingsError(file, None, str(error)) from None


def _add_configured(wired: Wired, workspace: str, answers: Answers | None) -> None:
    """Hosts, MCP servers and packages. `answers`: what new hosts said; None: nobody asked them."""
    _add_hosts(wired, workspace, answers)
    _add_mcp(wired, workspace)
    if wired.settings.packs.enable:
        wired.dispatcher.registry.add(enabled_packs(lambda: wired.packs))


def _learn(wired: Wired, workspace: str) -> Answers:
    if not wired.settings.hosts:
        return {}
    from callgate.wiring.hosts import learn  # lazy: most homes have none  # noqa: PLC0415

    return learn(wired.home, wired.settings, wired.sandbox.surroundings, workspace)


def _add_hosts(wired: Wired, workspace: str, answers: Answers | None) -> None:
    """The tools of hosts, as they are pinned."""
    if not wired.settings.hosts:
        return
    from callgate.sources.hosts.host_tools import HostedTools  # lazy: most homes have none  # noqa: PLC0415
    from callgate.wiring.hosts import make_hosts  # lazy: as above  # noqa: PLC0415

    registry = wired.dispatcher.registry
    hosts = make_hosts(wired.home, wired.settings, wired.sandbox, workspace)
    wired.hosts = HostedTools(hosts, registry)
    registry.add(wired.hosts)
    if answers is not None:
        wired.notices += wired.hosts.notices(answers)


def _add_mcp(wired: Wired, workspace: str) -> None:
    """The tools of MCP servers, as they are pinned. Nothing is started."""
    workspace_servers: Mapping[str, McpTable] = {}
    if os.path.lexists(workspace_settings(workspace)) and is_trusted(wired.home, workspace):
        # Read now: errors in the workspace's settings are reported at once.
        workspace_servers = load_workspace_mcp(os.path.realpath(workspace))
    if not workspace_servers and not wired.settings.mcp:
        return

    def load() -> ToolSource:
        from callgate.wiring.mcp import make_tools  # lazy: most homes have none  # noqa: PLC0415

        tools = make_tools(wired.home, wired.settings, wired.sandbox, workspace, wired.runtime)
        wired.mcp = tools
        wired.notices += tools.notices()
        return tools

    wired.dispatcher.registry.add(Lazy(_MCP, load))


def _load_configured(wired: Wired) -> list[tuple[str, ToolFactory]]:
    specs = wired.settings.tools.load
    if not specs:
        return []
    from callgate.sources.modules import ToolLoadError, load_tools  # lazy: most homes load none  # noqa: PLC0415

    loaded: list[tuple[str, ToolFactory]] = []
    for spec in specs:
        try:
            factories = load_tools(spec, beside=wired.home.path)
        except ToolLoadError as error:
            raise SettingsError(error.file, error.line, error.problem) from error
        loaded += [(spec, factory) for factory in factories]
    return loaded
