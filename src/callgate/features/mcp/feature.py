"""MCP servers as sources of tools, and the MCP commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callgate.feature import Feature

TYPE_CHECKING = False
if TYPE_CHECKING:
    from callgate.dispatch.tools.sources import ToolSource
    from callgate.instance.wiring.runtime import Wired


def _settings() -> type:
    from callgate.features.mcp.settings import McpSettings  # lazy: with a table in the file  # noqa: PLC0415

    return McpSettings


def _commands() -> Mapping[str, Any]:
    from callgate.features.mcp.commands import COMMANDS  # lazy: for the command line  # noqa: PLC0415

    return COMMANDS


def _checks() -> Mapping[str, Any]:
    from callgate.features.mcp.commands.servers import check_server_data  # lazy: for doctor  # noqa: PLC0415

    return {"servers": check_server_data}


def _add_servers(wired: Wired, workspace: str) -> ToolSource:
    from callgate.features.mcp.wiring import add_servers  # lazy: most homes have none  # noqa: PLC0415

    return add_servers(wired, workspace)


def _workspace_servers(workspace: str) -> Mapping[str, Any]:
    from callgate.features.mcp.settings import load_workspace_mcp  # lazy: few workspaces have some  # noqa: PLC0415

    return load_workspace_mcp(workspace)


FEATURE = Feature(
    name="mcp",
    settings=_settings,
    commands=_commands,
    checks=_checks,
    ports={"add_servers": _add_servers, "workspace_servers": _workspace_servers},
)
