"""Anthropic's messages: a prompt becomes a request, the events of the stream become pieces."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from callgate.core.content import (
    ImageBlock,
    RedactedThinkingBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callgate.core.messages import Message, MessageBlock
from callgate.core.models import Key, Piece, Prompt, Reply
from callgate.models.anthropic_events import AnthropicReader
from callgate.models.http import Server
from callgate.models.prompts import (
    IMAGE_TYPES,
    as_object,
    image_note,
    is_strict,
    text_of,
    used_ids,
    wire_id,
    wire_name,
)
from callgate.models.served import ServedModel
from callgate.models.signatures import is_anthropic
from callgate.models.tables import ModelTable
from callgate.protocol.definitions import to_anthropic
from callgate.protocol.native_results import native_parts

BASE_URL = "https://api.anthropic.com/v1"
VERSION = "2023-06-01"
MAX_TOKENS = 8192
CONTEXT_TOKENS = 200_000
MAX_PAUSES = 8
"""How often a reply that the server interrupted is asked to go on."""

_MARK = {"cache_control": {"type": "ephemeral"}}


class AnthropicModel(ServedModel):
    def __init__(self, name: str, table: ModelTable, key: Key | None) -> None:
        base_url = BASE_URL if table.base_url is None else table.base_url
        server = Server(
            table, base_url, "/messages", key, "x-api-key", {"anthropic-version": VERSION}
        )
        super().__init__(name, table, server, context_tokens=CONTEXT_TOKENS)

    async def stream(self, prompt: Prompt) -> AsyncGenerator[Piece, None]:
        reply: Reply | None = None
        for _ in range(MAX_PAUSES + 1):
            messages = [*prompt.messages, *([] if reply is None else [reply.message])]
            continued = msgspec.structs.replace(prompt, messages=messages)
            readers = _Readers(used_ids(messages))
            request = to_request(continued, self._table)
            async with aclosing(self._ask(request, readers.new)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Reply):
                        reply = piece if reply is None else _joined(reply, piece)
                    else:
                        yield piece
            if not readers.latest.paused:
                break
        assert reply is not None
        yield reply


class _Readers:
    """A reader for each attempt."""

    def __init__(self, taken: Collection[str]) -> None:
        self._taken = taken

    def new(self) -> AnthropicReader:
        self.latest = AnthropicReader(self._taken)
        return self.latest


def _joined(first: Reply, more: Reply) -> Reply:
    content = [*first.message.content, *more.message.content]
    return msgspec.structs.replace(
        more,
        message=Message(role="assistant", content=content),
        usage=first.usage + more.usage,
        unreadable={**first.unreadable, **more.unreadable},
    )


def to_request(prompt: Prompt, table: ModelTable) -> dict[str, Any]:
    max_tokens = prompt.max_tokens or table.max_tokens or MAX_TOKENS
    request: dict[str, Any] = {
        "model": table.model,
        "max_tokens": max_tokens + (table.thinking_tokens or 0),
        "messages": _messages(prompt.messages),
        "stream": True,
    }
    if prompt.system:
        request["system"] = [{"type": "text", "text": prompt.system, **_MARK}]
    if prompt.tools:
        tools = [to_anthropic(each) for each in prompt.tools]
        request["tools"] = [*tools[:-1], {**tools[-1], **_MARK}]
    if table.temperature is not None:
        request["temperature"] = table.temperature
    output: dict[str, Any] = {}
    if table.thinking_tokens is not None:
        request["thinking"] = {"type": "enabled", "budget_tokens": table.thinking_tokens}
    elif table.effort is not None:
        request["thinking"] = {"type": "adaptive"}
    if table.effort is not None:
        output["effort"] = table.effort
    if prompt.output_schema is not None and is_strict(prompt.output_schema):
        output["format"] = {"type": "json_schema", "schema": prompt.output_schema}
    if output:
        request["output_config"] = output
    return request


def _messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = []
    for message in messages:
        blocks = [each for block in message.content for each in _block(block)]
        # Results must stand first: whatever a person said meanwhile comes behind them.
        blocks.sort(key=lambda each: each["type"] != "tool_result")
        if blocks:
            written.append({"role": message.role, "content": blocks})
    if written and written[-1]["role"] == "user":
        content = written[-1]["content"]
        content[-1] = {**content[-1], **_MARK}
    return written


def _block(block: MessageBlock) -> Iterator[dict[str, Any]]:
    """The block in their words; nothing where they would refuse it."""
    if isinstance(block, ThinkingBlock):
        if is_anthropic(block.signature):
            signed = {"thinking": block.thinking, "signature": block.signature}
            yield {"type": "thinking", **signed}
    elif isinstance(block, RedactedThinkingBlock):
        yield {"type": "redacted_thinking", "data": block.data}
    elif isinstance(block, ToolUseBlock):
        named = {"id": wire_id(block.id), "name": wire_name(block.name)}
        yield {"type": "tool_use", **named, "input": as_object(block.input)}
    elif isinstance(block, ToolResultBlock):
        content = native_parts(block.native, "anthropic.messages", failed=False)
        if content is None:
            content = [each for part in block.content for each in _block(part)]
        failed = {"is_error": True} if block.is_error else {}
        answered = {"tool_use_id": wire_id(block.tool_use_id), "content": content}
        yield {"type": "tool_result", **answered, **failed}
    elif isinstance(block, ImageBlock):
        yield _image(block)
    elif (text := text_of(block)).strip():
        yield {"type": "text", "text": text}


def _image(image: ImageBlock) -> dict[str, Any]:
    source = image.source
    if image.media_type in IMAGE_TYPES and source.kind == "base64":
        given = {"type": "base64", "media_type": image.media_type, "data": source.data}
        return {"type": "image", "source": given}
    if image.media_type in IMAGE_TYPES and source.kind == "url":
        return {"type": "image", "source": {"type": "url", "url": source.data}}
    return {"type": "text", "text": image_note(image)}
