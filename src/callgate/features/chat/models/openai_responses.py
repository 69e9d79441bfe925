"""Adapter for OpenAI's Responses API: typed items and events. The server stores nothing."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from callgate.core.content import (
    ContentBlock,
    ImageBlock,
    Message,
    RedactedThinkingBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callgate.core.models import Key, Piece, Prompt, Reply, StopReason, Usage
from callgate.features.chat.models.http import ServedModel, Server
from callgate.features.chat.models.prompts import (
    arguments_text,
    image_address,
    image_note,
    is_strict,
    of_item,
    plain,
    result_text,
    text_of,
    used_ids,
    wire_id,
    wire_name,
)
from callgate.features.chat.models.prompts import item as signed_item
from callgate.features.chat.models.replies import (
    Draft,
    ServerFailed,
    ServerFailure,
    SseEvent,
    Text,
    Thought,
    Use,
    cut,
    malformed,
    tokens,
)
from callgate.features.chat.settings import ModelTable
from callgate.protocol.provider_shapes import native_parts, to_openai_responses


class _Content(msgspec.Struct):
    type: str = ""
    text: str = ""
    refusal: str = ""


class _Item(msgspec.Struct):
    type: str
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    status: str | None = None
    content: list[_Content] | None = None
    summary: list[_Content] | None = None
    encrypted_content: str | None = None


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Cached | None = None


class _Why(msgspec.Struct):
    reason: str | None = None
    code: str | int | None = None
    message: str | None = None
    type: str | None = None


class _Response(msgspec.Struct):
    model: str | None = None
    output: list[_Item] | None = None
    usage: _Usage | None = None
    error: _Why | None = None
    incomplete_details: _Why | None = None


class _Event(msgspec.Struct):
    type: str
    output_index: int | None = None
    item_id: str | None = None
    delta: Any = None
    item: _Item | None = None
    response: _Response | None = None
    code: str | int | None = None
    message: str | None = None
    error: _Why | None = None


_decode = msgspec.json.Decoder(_Event).decode
_BETWEEN_THOUGHTS = "\n\n"
PartT = TypeVar("PartT", Text, Thought, Use)


class ResponsesReader:
    """Reads the events of one reply.

    Deltas are for display. The reply contains the complete items of `output_item.done`.
    """

    def __init__(self, taken: Collection[str] = ()) -> None:
        self.done = False
        self._draft = Draft(taken)
        self._open: dict[int | str, Text | Thought | Use] = {}
        """Open parts, by index or id of the item."""
        self._refused = False
        self._complete = False
        self._stop: StopReason = "end_turn"

    def feed(self, event: SseEvent) -> Iterator[Piece]:
        if event.data.strip() == b"[DONE]":
            return
        try:
            read = _decode(event.data)
        except (ValueError, RecursionError):
            raise malformed("an event violates the protocol") from None
        match read.type.removeprefix("response."):
            case "output_item.added":
                yield from self._begin(read)
            case "output_item.done":
                self._close(read)
            case "output_text.delta" | "refusal.delta":
                yield self._part(read, Text).add(_delta(read))
            case "reasoning_summary_text.delta" | "reasoning_text.delta":
                yield self._part(read, Thought).add(_delta(read))
            case "reasoning_summary_part.added":
                thought = self._part(read, Thought)
                if thought.pieces:
                    yield thought.add(_BETWEEN_THOUGHTS)
            case "function_call_arguments.delta" | "custom_tool_call_input.delta":
                yield self._part(read, Use).add(_delta(read))
            case "completed" | "incomplete" as how:
                self._complete = how == "completed"
                self._end(read.response or _Response())
            case "failed":
                raise _failure((read.response or _Response()).error)
            case "error":
                raise _failure(read.error or _Why(code=read.code, message=read.message))

    def finish(self) -> Reply:
        if not self.done:
            raise cut()
        stop = "refusal" if self._refused else self._stop
        return self._draft.reply(stop, complete=self._complete)

    def _begin(self, event: _Event) -> Iterator[Piece]:
        key = _item_key(event)
        if event.item is None or key in self._open:
            raise malformed("an item starts at an invalid position")
        part = self._new(event.item)
        if part is not None:
            self._open[key] = part
        if isinstance(part, Use):
            yield part.add("")

    def _new(self, item: _Item) -> Text | Thought | Use | None:
        match item.type:
            case "message":
                return self._draft.add(Text())
            case "reasoning":
                return self._draft.add(Thought())
            case "function_call":
                return self._draft.use(item.call_id, item.name or "")
            case "custom_tool_call":
                return self._draft.use(item.call_id, item.name or "", free_text=True)
        return None  # a tool of the server, which no request enables

    def _part(self, event: _Event, kind: type[PartT]) -> PartT:
        part = self._open.get(_item_key(event))
        if not isinstance(part, kind):
            raise malformed("a delta belongs to no item of its kind")
        return part

    def _close(self, event: _Event) -> None:
        if event.item is None:
            raise malformed("an item ends that is missing")
        part = self._open.pop(_item_key(event), None) or self._new(event.item)
        if part is not None:
            self._fill(part, event.item)

    def _fill(self, part: Text | Thought | Use, item: _Item) -> None:
        """Set the content of a part from its complete item, which overrides the deltas."""
        if isinstance(part, Use):
            arguments = item.input if part.free_text else item.arguments
            part.pieces = part.pieces if arguments is None else [arguments]
            part.name = item.name or part.name
            part.closed = item.status in (None, "completed")
        elif isinstance(part, Thought):
            texts = [each.text for each in item.summary or item.content or ()]
            part.pieces = [_BETWEEN_THOUGHTS.join(texts)] if texts else part.pieces
            # without either, no request could continue from it
            if item.id and item.encrypted_content:
                part.signature = of_item(item.id, item.encrypted_content)
        else:
            content = item.content or ()
            self._refused = self._refused or any(each.type == "refusal" for each in content)
            part.pieces = [each.text or each.refusal for each in content] or part.pieces

    def _end(self, response: _Response) -> None:
        # Without earlier events, the server sends all items at the end.
        for item in () if self._draft.parts else response.output or ():
            part = self._new(item)
            if part is not None:
                self._fill(part, item)
        self._draft.model = response.model or ""
        self._count(response.usage or _Usage())
        why = (response.incomplete_details or _Why()).reason
        if why is not None:
            self._stop = "refusal" if why == "content_filter" else "max_tokens"
        self.done = True

    def _count(self, usage: _Usage) -> None:
        details = usage.input_tokens_details or _Cached()
        self._draft.usage = Usage(
            input=tokens(usage.input_tokens),
            output=tokens(usage.output_tokens),
            cache_read=tokens(details.cached_tokens),
            cache_write=tokens(details.cache_write_tokens),
        )


def _item_key(event: _Event) -> int | str:
    """Return the key of an event's item: its index, or its id if the server sends no index."""
    if event.output_index is not None:
        return event.output_index
    item = event.item or _Item(type="")
    key = event.item_id or item.id or item.call_id
    if not key:
        raise malformed("a delta belongs to no item")
    return key


def _delta(event: _Event) -> str:
    if not isinstance(event.delta, str):
        raise malformed("a delta is not text")
    return event.delta


def _failure(why: _Why | None) -> ServerFailed:
    why = why or _Why()
    return ServerFailed(
        ServerFailure(why.message or "", f"{why.type or ''} {why.code or ''}".strip())
    )


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
    """Ids of calls with free text as input; their results have a different type, too."""
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
    # the API rejects a reasoning item without a successor
    while items and items[-1]["type"] == "reasoning":
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
