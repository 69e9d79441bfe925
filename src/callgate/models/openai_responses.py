"""OpenAI's responses: typed items and events. Nothing is kept at the server.

What a model thought comes encrypted and goes back with the next request, so that a
conversation needs no memory but ours.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from typing import Any

from callgate.core.content import (
    ContentBlock,
    ImageBlock,
    RedactedThinkingBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callgate.core.messages import Message
from callgate.core.models import Key, Piece, Prompt
from callgate.models.http import Server
from callgate.models.prompts import (
    arguments_text,
    image_address,
    image_note,
    is_strict,
    plain,
    result_text,
    text_of,
    used_ids,
    wire_id,
    wire_name,
)
from callgate.models.responses_events import ResponsesReader
from callgate.models.served import ServedModel
from callgate.models.signatures import item as signed_item
from callgate.models.tables import ModelTable
from callgate.protocol.definitions import to_openai_responses
from callgate.protocol.native_results import native_parts

BASE_URL = "https://api.openai.com/v1"
CONTEXT_TOKENS = 200_000


class OpenAIResponsesModel(ServedModel):
    def __init__(self, name: str, table: ModelTable, key: Key | None) -> None:
        base_url = BASE_URL if table.base_url is None else table.base_url
        server = Server(table, base_url, "/responses", key)
        super().__init__(name, table, server, context_tokens=CONTEXT_TOKENS)

    def stream(self, prompt: Prompt) -> AsyncGenerator[Piece, None]:
        taken = used_ids(prompt.messages)
        return self._ask(to_request(prompt, self._table), lambda: ResponsesReader(taken))


def to_request(prompt: Prompt, table: ModelTable) -> dict[str, Any]:
    free = {each.name for each in prompt.tools if each.input == "text"}
    request: dict[str, Any] = {
        "model": table.model,
        "input": _items(prompt.messages, free),
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
    }
    if prompt.system:
        request["instructions"] = prompt.system
    if prompt.tools:
        request["tools"] = [to_openai_responses(each) for each in prompt.tools]
    max_tokens = prompt.max_tokens or table.max_tokens
    if max_tokens is not None:
        request["max_output_tokens"] = max_tokens + (table.thinking_tokens or 0)
    if table.temperature is not None:
        request["temperature"] = table.temperature
    if table.effort is not None:
        request["reasoning"] = {"effort": table.effort, "summary": "auto"}
    if prompt.output_schema is not None:
        schema = prompt.output_schema
        named = {"name": "reply", "schema": schema, "strict": is_strict(schema)}
        request["text"] = {"format": {"type": "json_schema", **named}}
    return request


def _items(messages: Sequence[Message], free: Collection[str]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    custom: set[str] = set()
    """Ids of calls whose input is free text: their results are of another type, too."""
    for message in messages:
        if message.role == "assistant":
            items += _assistant(message, free, custom)
        else:
            items += _user(message, custom)
    return items


def _assistant(message: Message, free: Collection[str], custom: set[str]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for block in message.content:
        if isinstance(block, ThinkingBlock):
            items += _thought(block)
        elif isinstance(block, ToolUseBlock):
            items.append(_call(block, free, custom))
        elif isinstance(block, RedactedThinkingBlock | ToolResultBlock | ImageBlock):
            continue
        elif text := text_of(block):
            items.append({"type": "message", "role": "assistant", "content": text})
    while items and items[-1]["type"] == "reasoning":  # refused where nothing follows it
        items.pop()
    return items


def _thought(block: ThinkingBlock) -> Iterator[dict[str, Any]]:
    if (item := signed_item(block.signature)) is not None:
        id, encrypted = item
        summary = [{"type": "summary_text", "text": block.thinking}] if block.thinking else []
        thought = {"type": "reasoning", "id": id, "summary": summary}
        yield {**thought, "encrypted_content": encrypted}


def _call(block: ToolUseBlock, free: Collection[str], custom: set[str]) -> dict[str, Any]:
    named = {"call_id": wire_id(block.id), "name": wire_name(block.name)}
    text = block.input.get("text") if isinstance(block.input, dict) else None
    if block.name in free and isinstance(text, str):
        custom.add(block.id)
        return {"type": "custom_tool_call", **named, "input": text}
    return {"type": "function_call", **named, "arguments": arguments_text(block.input)}


def _user(message: Message, custom: Collection[str]) -> Iterator[dict[str, Any]]:
    content: list[dict[str, Any]] = []
    for block in message.content:
        if isinstance(block, ToolResultBlock):
            kind = "custom_tool_call" if block.tool_use_id in custom else "function_call"
            answered = {"call_id": wire_id(block.tool_use_id), "output": _output(block)}
            yield {"type": f"{kind}_output", **answered}
        elif not isinstance(block, ToolUseBlock | ThinkingBlock | RedactedThinkingBlock):
            content.append(
                _image(block) if isinstance(block, ImageBlock) else _text(text_of(block))
            )
    if content:
        yield {"type": "message", "role": "user", "content": content}


def _output(result: ToolResultBlock) -> str | list[dict[str, Any]]:
    native = native_parts(result.native, "openai.responses", failed=result.is_error)
    if native is not None:
        return native
    text, images = plain(result.content)
    if not images:
        return result_text(result, text)
    failed = [_text("Error:")] if result.is_error else []
    return failed + [_part(each) for each in result.content]


def _part(block: ContentBlock) -> dict[str, Any]:
    return _image(block) if isinstance(block, ImageBlock) else _text(text_of(block))


def _text(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


def _image(image: ImageBlock) -> dict[str, Any]:
    address = image_address(image)
    if address is None:
        return _text(image_note(image))
    return {"type": "input_image", "image_url": address, "detail": "auto"}
