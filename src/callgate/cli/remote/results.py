"""The end of a call that an instance made, as the result that our own runtime would give."""

from __future__ import annotations

from typing import Any

import msgspec

from callgate.cli.errors import CliError
from callgate.cli.ui.call_results import CallOutcome
from callgate.core.content import TextBlock
from callgate.core.errors import ToolErrorClass
from callgate.core.results import ErrorInfo, ToolResult


def ended(frame: dict[str, Any], tool: str, signal: int | None) -> CallOutcome:
    """Read a `tool_result`. It says everything, or why it cannot."""
    try:
        result = (
            _full_result(frame["whole"], tool) if "whole" in frame else _short_result(frame, tool)
        )
    except (msgspec.ValidationError, KeyError, TypeError, ValueError):
        raise CliError(
            "the instance answered something that cannot be read",
            hint="Whether it ran is on record: callgate audit tail, callgate events.",
            error_class=ToolErrorClass.PROTOCOL_ERROR,
            reason="unreadable_result",
        ) from None
    return CallOutcome(result, signal)


def _full_result(payload: Any, tool: str) -> ToolResult:
    result = msgspec.convert(payload, ToolResult)
    if result.content and result.tool:
        return result
    # It was answered before its end came.
    shown = "" if result.error is None else result.error.message
    return msgspec.structs.replace(
        result, tool=result.tool or tool, content=result.content or [TextBlock(shown)]
    )


def _short_result(frame: dict[str, Any], tool: str) -> ToolResult:
    """A result that did not fit into a line, or was not asked for whole."""
    result, error = frame["result"], frame["result"]["error"]
    meta, details = result.get("meta") or {}, dict(error.get("details") or {})
    info = ErrorInfo(
        error_class=ToolErrorClass(details.pop("errorClass")),
        message=str(error["message"]),
        reason=details.pop("reason", None),
        details=details or None,
    )
    return ToolResult(
        call_id=str(meta.get("callId", "")),
        tool=tool,
        ok=False,
        content=[TextBlock(info.message)],
        error=info,
        duration_ms=float(meta.get("durationMs", 0.0)),
    )
