"""Definitions, tool uses and results in the shapes of Anthropic, OpenAI and MCP.

    definition  ->  the shape for a model or an MCP client
    tool use    ->  `ToolUseBlock`, from dicts or objects of the libraries, alone or in a list
    result      ->  the shape for the answer

A shape without room for an image gets a line of text instead. A shape without a mark for failure
gets `Error: ` before its text, so that the model never mistakes a failure for a success.

Arguments that arrive as text are read strictly and never repaired. An unreadable call becomes an
`UnreadableUse`, which is answered under its id and never run. Other parts of a message are skipped.

A result in one provider's own format keeps its known parts for that provider. An unknown part
becomes text, because a provider that receives one refuses the conversation from then on. Other
dialects show the result's text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from callgate.core.calls import ToolResult
from callgate.core.content import (
    ContentBlock,
    ImageBlock,
    NativeFormat,
    NativeResult,
    TextBlock,
    ToolUseBlock,
)
from callgate.core.effects import Capability, SideEffects
from callgate.core.tools import ToolDefinition
from callgate.protocol import strict_json


def to_anthropic(definition: ToolDefinition) -> dict[str, Any]:
    return {
        "name": definition.name,
        "description": definition.description,
        "input_schema": definition.input_schema,
    }


def to_openai_chat(definition: ToolDefinition) -> dict[str, Any]:
    """Return a function, even if the tool takes text: few compatible servers know custom tools."""
    return {
        "type": "function",
        "function": {
            "name": definition.name,
            "description": definition.description,
            "parameters": definition.input_schema,
        },
    }


def to_openai_responses(definition: ToolDefinition) -> dict[str, Any]:
    named = {"name": definition.name, "description": definition.description}
    if definition.input == "text":
        return {"type": "custom", **named}
    # Strict mode requires every property; our schemas have optional ones.
    return {"type": "function", **named, "parameters": definition.input_schema, "strict": False}


def to_mcp(definition: ToolDefinition) -> dict[str, Any]:
    return {
        "name": definition.name,
        "description": definition.description,
        "inputSchema": definition.input_schema,
        "annotations": _hints(definition),
    }


def _hints(definition: ToolDefinition) -> dict[str, bool]:
    capabilities = definition.capabilities
    effect = definition.effect
    destructive = Capability.DESTRUCTIVE in capabilities
    match effect:
        case SideEffects.NONE:
            return {"readOnlyHint": True}
        case SideEffects.READ:
            online = Capability.ACCESSES_NETWORK in capabilities
            return {"readOnlyHint": True, "openWorldHint": online}
        case SideEffects.WRITE:
            return {"readOnlyHint": False, "destructiveHint": destructive}
        case SideEffects.NETWORK:
            return {"readOnlyHint": False, "destructiveHint": destructive, "openWorldHint": True}
        case SideEffects.EXECUTE:
            return {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True}


class _Dialect(NamedTuple):
    text: str
    """Type of its text parts."""
    parts: frozenset[str]


_DIALECTS: dict[NativeFormat, _Dialect] = {
    "openai.chat_completions": _Dialect(
        "text", frozenset({"text", "image_url", "input_audio", "file"})
    ),
    "openai.responses": _Dialect(
        "input_text", frozenset({"input_text", "input_image", "input_file"})
    ),
    "anthropic.messages": _Dialect("text", frozenset({"text", "image", "document"})),
}


def native_parts(
    native: NativeResult | None, format: NativeFormat, *, failed: bool
) -> list[dict[str, Any]] | None:
    """Build the content of a result; None if the plain text represents it. `failed`: begin with the
    failure, for dialects without a field for it."""
    if native is None or native.format != format or not native.content:
        return None
    dialect = _DIALECTS[format]
    converted = [_part(each, dialect) for each in native.content]
    return [{"type": dialect.text, "text": "Error:"}, *converted] if failed else converted


def _part(part: Any, dialect: _Dialect) -> dict[str, Any]:
    kind = part.get("type") if type(part) is dict else None
    if type(kind) is str and kind in dialect.parts and (kind != dialect.text or _text(part)):
        return part  # type: ignore[no-any-return]
    shown = part if type(part) is str else msgspec.json.encode(part).decode()
    return {"type": dialect.text, "text": shown or " "}


def native_text(native: NativeResult) -> str:
    """Return the texts of a result for other dialects, or its JSON if it has other parts."""
    texts = [_text(part) for part in native.content]
    if None in texts:
        return msgspec.json.encode(native.content).decode()
    return "\n".join(filter(None, texts))


def native_size(native: NativeResult) -> int:
    """Return the number of characters of its texts; images do not count."""
    return sum(len(_text(part) or "") for part in native.content)


def _text(part: Any) -> str | None:
    text = part.get("text") if type(part) is dict else None
    return text if type(text) is str and text else None


MCP_CONTENT = "mcp_content"
"""Key in a result's `meta`: its original content from an MCP server, which our types cannot
represent completely.
"""


def to_anthropic_result(result: ToolResult, tool_use_id: str) -> dict[str, Any]:
    native = native_parts(result.native, "anthropic.messages", failed=False)
    blocks = native or [_anthropic_block(block) for block in result.content]
    answer: dict[str, Any] = {
        "type": "tool_result",
        "tool_use_id": tool_use_id,
        "is_error": not result.ok,
    }
    # The API refuses an empty text block, but accepts a result without content.
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
    """Build the answer to a call. `input` is from the tool's definition: a custom tool has another
    type."""
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
    elif result.value is not None:  # MCP permits only objects there
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


class UnreadableUse(msgspec.Struct, frozen=True):
    """A call that cannot run: its known facts, and the reason."""

    id: str
    """Empty if the call has none."""
    name: str
    message: str


ToolUse = ToolUseBlock | UnreadableUse

_HOLDERS = ("tool_calls", "content", "output", "message")
"""Fields of messages and whole responses that contain calls."""


def read_tool_uses(message_or_blocks: Any) -> list[ToolUse]:
    """Return the calls in their order in the message."""
    return list(_read(message_or_blocks))


def _read(source: Any) -> Iterator[ToolUse]:
    if isinstance(source, ToolUseBlock | UnreadableUse):
        yield source
    elif isinstance(source, list | tuple):
        for each in source:
            yield from _read(each)
    elif source is None or isinstance(source, str):
        return
    elif (use := _use(source)) is not None:
        yield use
    elif _get(source, "type") in (None, "message"):
        for holder in _HOLDERS:
            yield from _read(_get(source, holder))
        if choices := _get(source, "choices"):  # alternatives: only one of them was chosen
            yield from _read(choices[0])


def _use(source: Any) -> ToolUse | None:
    """Return the call that this object represents; None if it is none."""
    match _get(source, "type"):
        case "tool_use":
            return _call(_get(source, "id"), _get(source, "name"), _get(source, "input"))
        case "function" if (function := _get(source, "function")) is not None:
            return _call(_get(source, "id"), _get(function, "name"), _get(function, "arguments"))
        case "custom" if (custom := _get(source, "custom")) is not None:
            return _text_call(_get(source, "id"), _get(custom, "name"), _get(custom, "input"))
        case "function_call":
            name, arguments = _get(source, "name"), _get(source, "arguments")
            return _call(_get(source, "call_id"), name, arguments)
        case "custom_tool_call":
            return _text_call(_get(source, "call_id"), _get(source, "name"), _get(source, "input"))
    if _get(source, "method") == "tools/call":
        request, parameters = _get(source, "id"), _get(source, "params")
        arguments = _get(parameters, "arguments")
        return _call(request, _get(parameters, "name"), {} if arguments is None else arguments)
    if (function := _get(source, "function")) is not None:  # some servers omit the type
        return _call(_get(source, "id"), _get(function, "name"), _get(function, "arguments"))
    return None


def _get(source: Any, key: str) -> Any:
    return source.get(key) if isinstance(source, Mapping) else getattr(source, key, None)


def _call(id: Any, name: Any, arguments: Any) -> ToolUse:
    shown_id = str(id) if isinstance(id, str | int) and not isinstance(id, bool) else ""
    if not shown_id:
        return UnreadableUse("", name if isinstance(name, str) else "", "the call has no id")
    if not isinstance(name, str) or not name:
        return UnreadableUse(shown_id, "", "the call names no tool")
    if isinstance(arguments, str):
        try:
            arguments = strict_json.loads(arguments)
        except strict_json.StrictJsonError as error:
            return UnreadableUse(shown_id, name, f"the arguments are not JSON we take: {error}")
    if not isinstance(arguments, dict):
        return UnreadableUse(shown_id, name, "the arguments are not a JSON object")
    return ToolUseBlock(shown_id, name, arguments)


def _text_call(id: Any, name: Any, text: Any) -> ToolUse:
    return _call(id, name, {"text": text} if isinstance(text, str) else None)
