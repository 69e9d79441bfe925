"""From settings to the MCP servers that editors name. Loaded only where a session names some."""

from __future__ import annotations

from collections.abc import Collection

from callgate.config.home import Home
from callgate.config.load import SettingsError
from callgate.config.schema import Settings
from callgate.dispatch.commands.sandboxes import Sandbox
from callgate.runtime import Runtime
from callgate.sources.mcp import editor_servers
from callgate.wiring.mcp import make_asks, make_builder, tables


class EditorServers(editor_servers.EditorServers):
    def __init__(self, home: Home, settings: Settings, sandbox: Sandbox, runtime: Runtime) -> None:
        def configured(workspace: str) -> Collection[str]:
            try:
                return tables(home, settings, workspace)
            except SettingsError:  # of the workspace, which brings none then
                return settings.mcp

        super().__init__(
            make_builder(home, sandbox),
            settings.acp.mcp,
            configured,
            runtime.dispatcher.registry,
            make_asks(home, settings, runtime),
        )
