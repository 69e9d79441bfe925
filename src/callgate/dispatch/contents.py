"""What a tool gave, looked at: its text, size and value, the beginning that goes on record, and the
result that its caller gets. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from callgate.core.calls import ToolCall
from callgate.core.content import ContentBlock, TextBlock
from callgate.core.errors import ToolError
from callgate.core.results import Diagnostic, ErrorInfo, ToolResult
from callgate.core.tools import ToolOutput
from callgate.redaction.data import redact_value
from callgate.redaction.summaries import LONGEST
from callgate.redaction.texts import redact

MOST_DISPLAYED = 16_384
"""Bytes of what a tool shows on a screen that events hold; the result has all of it."""


def completed_result(
    call: ToolCall,
    output: ToolOutput,
    content: list[ContentBlock],
    error: ErrorInfo | None,
    duration_ms: float,
) -> ToolResult:
    """Of a call whose tool came to its end; `error` is what the tool reported itself."""
    return ToolResult(
        call_id=call.id,
        tool=call.tool,
        ok=output.success,
        content=content,
        value=output.value if output.value is not msgspec.UNSET else value_of(output, content),
        error=error,
        diagnostics=diagnostics(output.metadata) if output.metadata else (),
        meta=output.metadata,
        files_modified=output.files_modified,
        command_executed=output.command_executed,
        truncated=output.truncated,
        duration_ms=duration_ms,
        diffs=output.diffs,
        native=output.native,
    )


def failed_result(
    call: ToolCall,
    error: ErrorInfo,
    content: list[ContentBlock],
    duration_ms: float,
    partial: ToolOutput | None = None,
) -> ToolResult:
    """Of a call that was refused, failed or was stopped, with what its tool had to show by then."""
    return ToolResult(
        call_id=call.id,
        tool=call.tool,
        ok=False,
        content=content,
        value=None if partial is None else value_of(partial, content),
        error=error,
        partial=partial is not None,
        files_modified=None if partial is None else partial.files_modified,
        command_executed=None if partial is None else partial.command_executed,
        duration_ms=duration_ms,
        diffs=() if partial is None else partial.diffs,
    )


def handled(output: ToolOutput, content: list[ContentBlock]) -> ToolError:
    return ToolError(
        text_of(content)[:2_000] or "The tool reported failure.",
        reason=str(output.metadata.get("reason", "tool_reported")),
        details=output.metadata.get("details"),
    )


def diagnostics(metadata: Mapping[str, Any]) -> tuple[str | Diagnostic, ...]:
    found = metadata.get("diagnostics", ())
    return tuple(map(_diagnostic, found)) if isinstance(found, list | tuple) else ()


def _diagnostic(found: Any) -> str | Diagnostic:
    if not isinstance(found, dict) or not isinstance(message := found.get("message"), str):
        return str(found)
    level = found.get("level")
    return Diagnostic(message, level) if level in ("warn", "error") else message


def display_of(metadata: Mapping[str, Any]) -> Any:
    """What a tool made of its result for a screen, without secrets; None where that is nothing,
    or too much for an event."""
    display = metadata.get("display")
    if not isinstance(display, dict):
        return None
    try:
        encoded = msgspec.json.encode(display)
    except (TypeError, ValueError, RecursionError):  # from a function it may be anything
        return None
    return redact_value(display) if len(encoded) <= MOST_DISPLAYED else None


def value_of(output: ToolOutput, content: list[ContentBlock]) -> Any:
    if output.value is not msgspec.UNSET:
        return output.value
    if len(content) == 1 and isinstance(content[0], TextBlock):
        return content[0].text
    try:
        return msgspec.to_builtins(content)
    except (TypeError, ValueError, RecursionError):  # a tool's own block may hold anything
        return None


def beginning(content: list[ContentBlock]) -> str:
    """The beginning of a result. More is looked at than is shown, so that a secret which
    reaches over the end of what is shown is still recognised."""
    match content:
        case [block] if type(block) is TextBlock:
            text = block.text
        case _:
            text = text_of(content)
    return text if len(text) < 6 else redact(text[: 5 * LONGEST])[:LONGEST]


def text_of(content: list[ContentBlock]) -> str:
    if len(content) == 1 and type(content[0]) is TextBlock:
        return content[0].text
    return "\n".join(block.text for block in content if isinstance(block, TextBlock))


def size_of(content: list[ContentBlock]) -> int:
    size = 0
    for block in content:
        if type(block) is TextBlock:
            text = block.text
            size += len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        else:
            size += len(msgspec.json.encode(block))
    return size
