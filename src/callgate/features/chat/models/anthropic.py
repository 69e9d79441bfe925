"""Adapter for Anthropic's Messages API: translates prompts to requests, and events to pieces."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from callgate.core.content import (
    ImageBlock,
    Message,
    MessageBlock,
    RedactedThinkingBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callgate.core.models import Key, Piece, Prompt, Reply, StopReason, Usage
from callgate.features.chat.models.http import ServedModel, Server
from callgate.features.chat.models.prompts import (
    IMAGE_TYPES,
    as_object,
    image_note,
    is_anthropic,
    is_strict,
    text_of,
    used_ids,
    wire_id,
    wire_name,
)
from callgate.features.chat.models.replies import (
    Draft,
    Part,
    ServerFailed,
    ServerFailure,
    SseEvent,
    Text,
    Thought,
    Use,
    cut,
    json_text,
    malformed,
    tokens,
)
from callgate.features.chat.settings import ModelTable
from callgate.protocol.provider_shapes import native_parts, to_anthropic

_STOPS: Mapping[str, StopReason] = {
    "end_turn": "end_turn",
    "stop_sequence": "end_turn",
    "tool_use": "tool_use",
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "max_tokens",
    "refusal": "refusal",
}
_COMPLETE = frozenset({"end_turn", "stop_sequence", "tool_use", "pause_turn"})
"""Stop reasons of complete replies. A truncated reply closes its last block, too."""


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Message(msgspec.Struct):
    model: str = ""
    usage: _Usage | None = None


class _Block(msgspec.Struct):
    type: str
    text: str = ""
    thinking: str = ""
    signature: str = ""
    data: str = ""
    id: str = ""
    name: str = ""
    input: msgspec.Raw = msgspec.Raw()


class _Delta(msgspec.Struct):
    type: str = ""
    text: str = ""
    partial_json: str = ""
    thinking: str = ""
    signature: str = ""
    stop_reason: str | None = None


class _Error(msgspec.Struct):
    type: str = ""
    message: str = ""


class _Event(msgspec.Struct):
    type: str
    index: int = -1
    message: _Message | None = None
    content_block: _Block | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Event).decode


class AnthropicReader:
    """Reads the events of one reply."""

    def __init__(self, taken: Collection[str] = ()) -> None:
        self.done = False
        self.paused = False
        self._draft = Draft(taken)
        self._blocks: dict[int, Part | None] = {}
        """Open blocks by index; None is a block of an unknown kind."""
        self._stop: StopReason | None = None
        self._complete = False
        """Whether the stop reason marks a complete reply."""
        self._counted = _Usage()

    def feed(self, event: SseEvent) -> Iterator[Piece]:
        try:
            read = _decode(event.data)
        except (ValueError, RecursionError):
            raise malformed("an event violates the protocol") from None
        match read.type:
            case "message_start":
                if read.message is not None:
                    self._draft.model = read.message.model
                    self._count(read.message.usage)
            case "content_block_start":
                yield from self._begin(read.index, read.content_block)
            case "content_block_delta":
                yield from self._go_on(read.index, read.delta)
            case "content_block_stop":
                part = self._blocks.pop(read.index, None)
                if isinstance(part, Use):
                    part.closed = True
            case "message_delta":
                self._end(read.delta)
                self._count(read.usage)
            case "message_stop":
                self.done = True
            case "error":
                error = read.error or _Error()
                raise ServerFailed(ServerFailure(error.message, error.type))

    def finish(self) -> Reply:
        if not self.done or self._stop is None:
            raise cut()
        return self._draft.reply(self._stop, complete=self._complete)

    def _begin(self, index: int, block: _Block | None) -> Iterator[Piece]:
        if block is None or index < 0 or index in self._blocks:
            raise malformed("a block starts at an invalid position")
        part: Part | None = None
        if block.type == "text":
            part = self._draft.add(Text())
            if block.text:
                yield part.add(block.text)
        elif block.type == "thinking":
            part = self._draft.add(Thought())
            part.signature = block.signature or None
            if block.thinking:
                yield part.add(block.thinking)
        elif block.type == "redacted_thinking":
            self._draft.add(RedactedThinkingBlock(block.data))
        elif block.type == "tool_use":
            part = self._draft.use(block.id, block.name)
            # Some servers send a complete input here; Anthropic sends an empty one.
            given = json_text(block.input)
            yield part.add("" if given == "{}" else given)
        self._blocks[index] = part

    def _go_on(self, index: int, delta: _Delta | None) -> Iterator[Piece]:
        if delta is None or index not in self._blocks:
            raise malformed("a delta belongs to no block")
        part = self._blocks[index]
        match delta.type:
            case "text_delta" if isinstance(part, Text):
                yield part.add(delta.text)
            case "thinking_delta" if isinstance(part, Thought):
                yield part.add(delta.thinking)
            case "signature_delta" if isinstance(part, Thought):
                part.signature = (part.signature or "") + delta.signature
            case "input_json_delta" if isinstance(part, Use):
                yield part.add(delta.partial_json)
            case "text_delta" | "thinking_delta" | "signature_delta" | "input_json_delta":
                if part is not None:
                    raise malformed("a delta does not match the kind of its block")

    def _end(self, delta: _Delta | None) -> None:
        if delta is not None and delta.stop_reason is not None:
            self.paused = delta.stop_reason == "pause_turn"
            self._stop = _STOPS.get(delta.stop_reason, "end_turn")
            self._complete = delta.stop_reason in _COMPLETE

    def _count(self, usage: _Usage | None) -> None:
        """Update the counts. They are totals: a later one replaces an earlier one."""
        if usage is None:
            return
        for field in usage.__struct_fields__:
            if (count := getattr(usage, field)) is not None:
                setattr(self._counted, field, tokens(count))
        read = self._counted.cache_read_input_tokens or 0
        written = self._counted.cache_creation_input_tokens or 0
        self._draft.usage = Usage(
            input=(self._counted.input_tokens or 0) + read + written,
            output=self._counted.output_tokens or 0,
            cache_read=read,
            cache_write=written,
        )


BASE_URL = "https://api.anthropic.com/v1"
VERSION = "2023-06-01"
MAX_TOKENS = 8192
CONTEXT_TOKENS = 200_000
MAX_PAUSES = 8
"""Maximum number of requests to continue a reply that the server paused."""

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
        # The API requires results first; other blocks of the message follow.
        blocks.sort(key=lambda each: each["type"] != "tool_result")
        if blocks:
            written.append({"role": message.role, "content": blocks})
    if written and written[-1]["role"] == "user":
        content = written[-1]["content"]
        content[-1] = {**content[-1], **_MARK}
    return written


def _block(block: MessageBlock) -> Iterator[dict[str, Any]]:
    """Yield the block in Anthropic's format; nothing if the API would reject it."""
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
