"""Adapter for OpenAI's Chat Completions API, including the variants of compatible servers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from callgate.core.content import (
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
    THOUGHTS,
    arguments_text,
    field,
    image_address,
    image_note,
    is_strict,
    of_field,
    plain,
    result_text,
    text_of,
    used_ids,
    wire_id,
    wire_name,
)
from callgate.features.chat.models.replies import (
    Draft,
    ServerFailed,
    SseEvent,
    Use,
    cut,
    json_text,
    malformed,
    read_body,
    tokens,
)
from callgate.features.chat.settings import ModelTable
from callgate.protocol.provider_shapes import native_parts, to_openai_chat

_STOPS: Mapping[str, StopReason] = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}
_COMPLETE = frozenset({"stop", "tool_calls", "function_call"})
"""Stop reasons of complete replies. Unknown reasons are not among them."""


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: msgspec.Raw = msgspec.Raw()
    """A string according to the protocol; some servers send an object."""


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    index: int | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Cached | None = None


class _Chunk(msgspec.Struct):
    model: str | None = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw()


_decode = msgspec.json.Decoder(_Chunk).decode


class ChatReader:
    """Reads the chunks of one reply."""

    def __init__(self, taken: Collection[str] = ()) -> None:
        self.done = False
        self._draft = Draft(taken)
        self._calls: dict[int, tuple[str | None, Use]] = {}
        """The server's id and the call, by index."""
        self._indexes: dict[str, int] = {}
        """The index of the newest call, by the server's id."""
        self._last = -1
        self._stop: StopReason | None = None
        self._complete = False
        """Whether the stop reason marks a complete reply."""
        self._refused = False

    def feed(self, event: SseEvent) -> Iterator[Piece]:
        if event.data.strip() == b"[DONE]":
            self.done = True
            return
        try:
            chunk = _decode(event.data)
        except (ValueError, RecursionError):
            raise malformed("an event violates the protocol") from None
        if bytes(chunk.error).strip() not in (b"", b"null"):
            raise ServerFailed(read_body(event.data))
        self._draft.model = self._draft.model or chunk.model or ""
        if chunk.usage is not None:
            self._count(chunk.usage)
        for choice in chunk.choices or ():
            if not choice.index:  # only the first alternative counts
                yield from self._read(choice)

    def finish(self) -> Reply:
        if self._stop is None:  # some servers omit the last line, none omits the reason
            raise cut()
        for _, use in self._calls.values():
            use.closed = True  # the protocol has no end mark for calls
        stop = "refusal" if self._refused else self._stop
        return self._draft.reply(stop, complete=self._complete)

    def _read(self, choice: _Choice) -> Iterator[Piece]:
        if (delta := choice.delta) is not None:
            for name in THOUGHTS:
                if text := getattr(delta, name):
                    thought = self._draft.thought()
                    thought.signature = of_field(name)
                    yield thought.add(text)
                    break  # a server that sends both sends the same text twice
            if delta.content:
                yield self._draft.text().add(delta.content)
            if delta.refusal:
                self._refused = True
                yield self._draft.text().add(delta.refusal)
            for call in delta.tool_calls or ():
                yield self._call(call)
        if choice.finish_reason:
            self._stop = _STOPS.get(choice.finish_reason, "end_turn")
            self._complete = choice.finish_reason in _COMPLETE

    def _call(self, call: _Call) -> Piece:
        function = call.function or _Function()
        name, text = function.name or "", json_text(function.arguments)
        index, known = self._find(call)
        if known is None:
            known = self._draft.use(call.id, name)
            self._calls[index] = (call.id, known)
            self._last = max(self._last, index)
            if call.id:
                self._indexes[call.id] = index
        elif not known.name:
            known.name = name
        return known.add(text)

    def _find(self, call: _Call) -> tuple[int, Use | None]:
        """Return the index of a delta's call, and the call itself unless the delta starts a new
        one.
        """
        index, same = call.index, self._indexes.get(call.id or "")
        if index is None:  # a server without indexes: a new id or a name starts a call
            begins = call.id or (call.function is not None and call.function.name)
            index = self._last + 1 if begins else self._last
            index = index if same is None else same
        if index not in self._calls:
            return max(index, 0), None
        id, use = self._calls[index]
        if call.id and id and call.id != id:  # a server that gives every call the index 0
            return (self._last + 1, None) if same is None else (same, self._calls[same][1])
        return index, use

    def _count(self, usage: _Usage) -> None:
        details = usage.prompt_tokens_details or _Cached()
        self._draft.usage = Usage(
            input=tokens(usage.prompt_tokens),
            output=tokens(usage.completion_tokens),
            cache_read=tokens(details.cached_tokens),
            cache_write=tokens(details.cache_write_tokens),
        )


BASE_URL = "https://api.openai.com/v1"
CONTEXT_TOKENS = 128_000


class OpenAIChatModel(ServedModel):
    def __init__(self, name: str, table: ModelTable, key: Key | None) -> None:
        base_url = BASE_URL if table.base_url is None else table.base_url
        server = Server(table, base_url, "/chat/completions", key)
        super().__init__(name, table, server, context_tokens=CONTEXT_TOKENS)
        # OpenAI's new name of the field; other servers know only the old one.
        host = server.host
        new = host == "api.openai.com" or host.endswith(".openai.azure.com")
        self._limit_field = "max_completion_tokens" if new else "max_tokens"

    def stream(self, prompt: Prompt) -> AsyncGenerator[Piece, None]:
        taken = used_ids(prompt.messages)
        request = to_request(prompt, self._table, self._limit_field)
        return self._ask(request, lambda: ChatReader(taken))


def to_request(
    prompt: Prompt, table: ModelTable, limit_field: str = "max_completion_tokens"
) -> dict[str, Any]:
    request: dict[str, Any] = {
        "model": table.model,
        "messages": _messages(prompt),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if prompt.tools:
        request["tools"] = [to_openai_chat(each) for each in prompt.tools]
    max_tokens = prompt.max_tokens or table.max_tokens
    if max_tokens is not None:
        request[limit_field] = max_tokens + (table.thinking_tokens or 0)
    if table.temperature is not None:
        request["temperature"] = table.temperature
    if table.effort is not None:
        request["reasoning_effort"] = table.effort
    if prompt.output_schema is not None:
        schema = prompt.output_schema
        named = {"name": "reply", "schema": schema, "strict": is_strict(schema)}
        request["response_format"] = {"type": "json_schema", "json_schema": named}
    return request


def _messages(prompt: Prompt) -> list[dict[str, Any]]:
    written: list[dict[str, Any]] = []
    if prompt.system:
        written.append({"role": "system", "content": prompt.system})
    asked_last = _last_question(prompt.messages)
    for index, message in enumerate(prompt.messages):
        if message.role == "assistant":
            written += _assistant(message, thoughts=index > asked_last)
        else:
            written += _user(message)
    return written


def _last_question(messages: Sequence[Message]) -> int:
    """Return the index of the last user message. Servers expect only the thinking after it."""
    for index in range(len(messages) - 1, -1, -1):
        results = any(isinstance(each, ToolResultBlock) for each in messages[index].content)
        if messages[index].role == "user" and not results:
            return index
    return -1


def _assistant(message: Message, *, thoughts: bool) -> Iterator[dict[str, Any]]:
    assistant: dict[str, Any] = {"role": "assistant"}
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in message.content:
        if isinstance(block, ToolUseBlock):
            function = {"name": wire_name(block.name), "arguments": arguments_text(block.input)}
            calls.append({"id": wire_id(block.id), "type": "function", "function": function})
        elif isinstance(block, ThinkingBlock):
            name = field(block.signature)
            if thoughts and name in THOUGHTS:
                assistant[name] = assistant.get(name, "") + block.thinking
        elif not isinstance(block, RedactedThinkingBlock | ToolResultBlock | ImageBlock):
            texts.append(text_of(block))
    text = "".join(texts)
    if not text and not calls:
        return
    assistant["content"] = text or None
    if calls:
        assistant["tool_calls"] = calls
    yield assistant


def _user(message: Message) -> Iterator[dict[str, Any]]:
    """Yield results as separate messages, then their images and the user's text."""
    content: list[dict[str, Any]] = []
    for block in message.content:
        if isinstance(block, ToolResultBlock):
            id = wire_id(block.tool_use_id)
            native = native_parts(block.native, "openai.chat_completions", failed=block.is_error)
            if native is not None:
                yield {"role": "tool", "tool_call_id": id, "content": native}
                continue
            text, images = plain(block.content)
            shown = result_text(block, text or ("(see the images below)" if images else ""))
            yield {"role": "tool", "tool_call_id": id, "content": shown}
            if images:
                content.append(_text(f"Images in the result of {id}:"))
                content += [each for image in images for each in _image(image)]
    for block in message.content:
        if isinstance(block, ImageBlock):
            content += _image(block)
        elif not isinstance(
            block, ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedThinkingBlock
        ):
            content.append(_text(text_of(block)))
    if len(content) == 1 and content[0]["type"] == "text":  # the form that every server accepts
        yield {"role": "user", "content": content[0]["text"]}
    elif content:
        yield {"role": "user", "content": content}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _image(image: ImageBlock) -> list[dict[str, Any]]:
    address = image_address(image)
    if address is None:
        return [_text(image_note(image))]
    return [{"type": "image_url", "image_url": {"url": address}}]
