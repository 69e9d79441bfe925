"""A call's result in the shapes that models and MCP clients take back.

A shape without room for an image gets a line of text in its place. A shape without a mark
for failure gets `Error: ` before its text, so that the model never takes one for the other.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from callgate.core.content import ContentBlock, ImageBlock, TextBlock
from callgate.core.results import ToolResult
from callgate.protocol.native_results import native_parts

MCP_CONTENT = "mcp_content"
"""In a result's `meta`: its content as an MCP server gave it, which ours cannot say as well."""


def to_anthropic_result(result: ToolResult, tool_use_id: str) -> dict[str, Any]:
    native = native_parts(result.native, "anthropic.messages", failed=False)
    blocks = native or [_anthropic_block(block) for block in result.content]
    answer: dict[str, Any] = {
        "type": "tool_result",
        "tool_use_id": tool_use_id,
        "is_error": not result.ok,
    }
    # The API refuses a text block without text, but takes a result without content.
    if shown := [block for block in blocks if block.get("text") != ""]:
        answer["content"] = shown
    return answer


def to_openai_chat_result(result: ToolResult, tool_call_id: str) -> dict[str, Any]:
    text = _failure_mark(result) + "\n".join(map(as_text, result.content))
    native = native_parts(result.native, "openai.chat_completions", failed=not result.ok)
    return {"role": "tool", "tool_call_id": tool_call_id, "content": native or text}


def to_openai_responses_result(
    result: ToolResult, call_id: str, input: Literal["object", "text"] = "object"
) -> dict[str, Any]:
    """`input` is what the tool's definition says: a custom tool's answer has another type."""
    kind = "function_call_output" if input == "object" else "custom_tool_call_output"
    output: Any = native_parts(result.native, "openai.responses", failed=not result.ok)
    if output is not None:
        return {"type": kind, "call_id": call_id, "output": output}
    output = _failure_mark(result) + "\n".join(map(as_text, result.content))
    if any(_image_url(block) for block in result.content):
        output = [_responses_part(block) for block in result.content]
        if not result.ok:
            output.insert(0, {"type": "input_text", "text": _failure_mark(result).strip()})
    return {"type": kind, "call_id": call_id, "output": output}


def to_mcp_result(result: ToolResult) -> dict[str, Any]:
    raw = result.meta.get(MCP_CONTENT)
    shown = raw if isinstance(raw, list) else [_mcp_block(block) for block in result.content]
    answer: dict[str, Any] = {
        "content": shown,
        "isError": not result.ok,
        "_meta": _mcp_meta(result),
    }
    if result.error is not None:
        answer["structuredContent"] = {"error": msgspec.to_builtins(result.error)}
    elif isinstance(result.value, dict):
        answer["structuredContent"] = result.value
    elif result.value is not None:  # MCP takes only objects there
        answer["structuredContent"] = {"result": result.value}
    return answer


def _failure_mark(result: ToolResult) -> str:
    return "" if result.ok else "Error: "


def as_text(block: ContentBlock) -> str:
    if isinstance(block, TextBlock):
        return block.text
    if isinstance(block, ImageBlock):
        shown = "" if block.source.kind == "base64" else f" {block.source.data}"
        return f"[image {block.media_type}{shown}]"
    return msgspec.json.encode(block.value).decode()


def _image_url(block: ContentBlock) -> str | None:
    if not isinstance(block, ImageBlock) or block.source.kind == "file_ref":
        return None
    if block.source.kind == "url":
        return block.source.data
    return f"data:{block.media_type};base64,{block.source.data}"


def _anthropic_block(block: ContentBlock) -> dict[str, Any]:
    if isinstance(block, ImageBlock):
        source = block.source
        if source.kind == "base64":
            base64_source = {"type": "base64", "media_type": block.media_type, "data": source.data}
            return {"type": "image", "source": base64_source}
        if source.kind == "url":
            return {"type": "image", "source": {"type": "url", "url": source.data}}
    return {"type": "text", "text": as_text(block)}


def _responses_part(block: ContentBlock) -> dict[str, Any]:
    if url := _image_url(block):
        return {"type": "input_image", "image_url": url}
    return {"type": "input_text", "text": as_text(block)}


def _mcp_block(block: ContentBlock) -> dict[str, Any]:
    if isinstance(block, ImageBlock):
        source = block.source
        if source.kind == "base64":
            return {"type": "image", "data": source.data, "mimeType": block.media_type}
        if source.kind == "url":
            link = {"uri": source.data, "name": source.data, "mimeType": block.media_type}
            return {"type": "resource_link", **link}
    return {"type": "text", "text": as_text(block)}


def _mcp_meta(result: ToolResult) -> dict[str, Any]:
    meta_fields = {key: value for key, value in result.meta.items() if key != MCP_CONTENT}
    meta: dict[str, Any] = {**meta_fields, "durationMs": result.duration_ms}
    if result.diagnostics:
        meta["diagnostics"] = list(map(str, result.diagnostics))
    if result.files_modified is not None:
        meta["filesModified"] = result.files_modified
    return meta
