"""From what an MCP server answers to what a tool gives, or to the error that says why not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mcp_types as types
import msgspec

from callgate.core.content import ContentBlock, ImageBlock, ImageSource, TextBlock
from callgate.core.tools import ToolOutput
from callgate.protocol.results import MCP_CONTENT

_IMAGES = "image/"
_OURS = ({"type", "text"}, {"type", "data", "mimeType"})
"""The keys of blocks that our own say as well."""


def to_output(result: types.CallToolResult) -> ToolOutput:
    """Structured content is the value; a text that only repeats it is left to the model."""
    structured = result.structured_content
    content = [block for each in result.content for block in _blocks(each)]
    if not content and structured is not None:
        content = [TextBlock(msgspec.json.encode(structured).decode())]
    return ToolOutput(
        content=content,
        success=not result.is_error,
        metadata=_as_it_is(result.content),
        value=msgspec.UNSET if structured is None else structured,
    )


def _as_it_is(content: list[types.ContentBlock]) -> dict[str, Any]:
    """For a client that speaks MCP itself: sounds and resources, of which ours only tell, and
    for whom something is meant."""
    blocks = [plain(each) for each in content]
    if all(each.keys() in _OURS for each in blocks):
        return {}
    return {MCP_CONTENT: blocks}


def _blocks(block: types.ContentBlock) -> Iterator[ContentBlock]:
    match block:
        case types.TextContent():
            yield TextBlock(block.text)
        case types.ImageContent():
            yield ImageBlock(source=ImageSource(data=block.data), media_type=block.mime_type)
        case types.AudioContent():
            yield TextBlock(f"[audio, {block.mime_type}, {_size(block.data)} bytes]")
        case types.ResourceLink():
            named = f"{block.title or block.name}: " if block.name else ""
            yield TextBlock(f"{named}{block.uri}")
        case types.EmbeddedResource():
            yield from to_blocks(block.resource)


def to_blocks(
    resource: types.TextResourceContents | types.BlobResourceContents,
) -> Iterator[ContentBlock]:
    """The content of a resource."""
    if isinstance(resource, types.TextResourceContents):
        yield TextBlock(resource.text)
        return
    kind = resource.mime_type or "application/octet-stream"
    if kind.startswith(_IMAGES):
        yield ImageBlock(source=ImageSource(data=resource.blob), media_type=kind)
    else:
        yield TextBlock(f"[{resource.uri}, {kind}, {_size(resource.blob)} bytes]")


def _size(data: str) -> int:
    """Of what base64 says."""
    return len(data) * 3 // 4 - data[-2:].count("=")


def plain(value: Any) -> Any:
    """A value of the SDK as JSON has it."""
    return value.model_dump(by_alias=True, mode="json", exclude_none=True)
