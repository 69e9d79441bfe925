"""A call's result as `--json` prints it, and as a person at a terminal reads it."""

from __future__ import annotations

from typing import Any

import msgspec

from callgate.core.content import ContentBlock, ImageBlock, TextBlock
from callgate.core.results import ToolResult

_decode = msgspec.json.Decoder(dict[str, Any]).decode


def envelope(result: ToolResult) -> dict[str, Any]:
    """Always the same keys, `ok` first."""
    fields: dict[str, Any] = {"ok": result.ok, **msgspec.structs.asdict(result)}
    del fields["diffs"]  # both sides of each change: `files_modified` says which
    del fields["native"]  # for models: `content` has the same in our blocks
    if result.error is not None:
        error = msgspec.to_builtins(result.error, enc_hook=repr)
        fields["error"] = {"class": None, "message": None, "reason": None, "details": None, **error}
    try:  # through JSON, for what a tool put into its metadata may be anything
        return _decode(msgspec.json.encode(fields, enc_hook=repr))
    except UnicodeEncodeError:  # a lone surrogate, which only the escapes of ASCII can spell
        return msgspec.to_builtins(fields, str_keys=True, enc_hook=repr)  # type: ignore[no-any-return]


def shown_blocks(result: ToolResult) -> list[ContentBlock]:
    """What belongs on stdout: the content, but not the error that stands behind it."""
    if result.ok or result.error is None or result.error.reason == "tool_reported":
        return result.content
    return result.content[:-1] if result.partial else []


def block_text(block: ContentBlock) -> str:
    if isinstance(block, TextBlock):
        return block.text
    if isinstance(block, ImageBlock):
        return f"[{block.media_type}, {_size(block)}]"
    return msgspec.json.encode(block.value, enc_hook=repr).decode()


def _size(image: ImageBlock) -> str:
    data = image.source.data
    if image.source.kind != "base64":
        return data
    return f"{len(data) * 3 // 4 - data[-2:].count('='):,} bytes"
