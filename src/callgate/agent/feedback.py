"""What a model is shown of a result: bounded, and nothing that is not text."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from callgate.core.content import (
    ContentBlock,
    ImageBlock,
    JsonBlock,
    TextBlock,
    ToolResultBlock,
)
from callgate.core.results import ToolResult
from callgate.protocol.results import as_text


def result_block(result: ToolResult, tool_use_id: str) -> ToolResultBlock:
    """A result as the conversation keeps it: data as data, where its text says no more."""
    block = result.block(tool_use_id)
    match result.content:
        case [TextBlock(text)] if isinstance(result.value, dict | list | int | float):
            try:
                is_all = msgspec.json.decode(text) == result.value
            except (ValueError, RecursionError):
                return block
            if is_all:
                return msgspec.structs.replace(block, content=[JsonBlock(result.value)])
    return block


def bounded(content: list[ContentBlock], limit: int) -> list[ContentBlock]:
    """The same, with its text cut where it is too long, and saying so."""
    texts = [as_text(block) for block in content if not isinstance(block, ImageBlock)]
    length = sum(map(len, texts))
    if length <= limit:
        return content
    blocks: list[ContentBlock] = []
    room = limit
    for text in texts:
        if room > 0:
            blocks.append(TextBlock(text[:room]))
            room -= len(text)
    blocks.append(TextBlock(f"[cut: {limit:,} of {length:,} characters are shown]"))
    return blocks + [block for block in content if isinstance(block, ImageBlock)]


def execution_result(block: ToolResultBlock, id: str, type: str, limit: int) -> dict[str, Any]:
    """A result in the words of the text format."""
    shown: dict[str, Any] = {"toolId": id, "type": type, "success": not block.is_error}
    content = bounded(block.content, limit)
    value: Any = "\n".join(map(as_text, content))
    if len(content) == 1 and isinstance(content[0], JsonBlock):
        value = content[0].value
    shown["error" if block.is_error else "result"] = value
    if block.duration_ms is not UNSET:
        shown["duration"] = round(block.duration_ms)
    return shown
