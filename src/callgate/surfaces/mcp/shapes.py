"""Tools and results of ours in the shapes of MCP. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mcp_types as types
from mcp.shared.exceptions import MCPError

from callgate.core.errors import ToolError, ToolErrorClass
from callgate.core.results import ErrorInfo, ToolResult
from callgate.protocol.definitions import to_mcp
from callgate.protocol.results import to_mcp_result
from callgate.runtime import Registered
from callgate.surfaces.mcp.pending_requests import LACKS


def tool_of(tool: Registered, name: str, extra: Mapping[str, Any]) -> types.Tool:
    """`extra` is what is told of it beside what its definition says."""
    shaped = to_mcp(tool.definition)
    hints = {
        "openWorldHint": False,  # unsaid, it would mean yes
        **shaped["annotations"],
        **extra.get("annotations", {}),
    }
    return types.Tool.model_validate({**shaped, **extra, "name": name, "annotations": hints})


def result_of(result: ToolResult, name: str, *, modern: bool) -> dict[str, Any]:
    """The answer to `tools/call` of a tool that the client calls `name`. Raises `MCPError` for
    what is no tool's failure."""
    if result.error is not None:
        _ensure_of_tool(result.error, name, modern)
    shaped = to_mcp_result(result)
    if result.error is None and not isinstance(result.value, dict):
        shaped.pop("structuredContent", None)  # it would say the text once more
    if modern:
        shaped["resultType"] = "complete"
    return shaped


def _ensure_of_tool(error: ErrorInfo, name: str, modern: bool) -> None:
    if error.error_class is ToolErrorClass.NOT_FOUND and error.reason != LACKS:
        raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {name[:200]}")
    if modern and error.reason == LACKS:
        raise MCPError(
            types.MISSING_REQUIRED_CLIENT_CAPABILITY, error.message, dict(error.detail_fields)
        )


def error_of(error: ToolError, uri: str | None = None) -> MCPError:
    """A refusal or a failure where there is no tool whose result could say so."""
    info = ErrorInfo.of(error, "")
    details = {"class": str(info.error_class), "reason": info.reason}
    if uri is not None:
        details["uri"] = uri
    return MCPError(types.INTERNAL_ERROR, info.message, details)


def unknown_resource(uri: str, *, modern: bool) -> MCPError:
    code = types.INVALID_PARAMS if modern else _NOT_FOUND_2025
    return MCPError(code, f"Unknown resource: {uri[:200]}", {"uri": uri})


_NOT_FOUND_2025 = -32002
