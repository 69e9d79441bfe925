"""OpenAI's chat completions, which most other servers speak too, each a little differently."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

from callgate.core.content import (
    ImageBlock,
    RedactedThinkingBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callgate.core.messages import Message
from callgate.core.models import Key, Piece, Prompt
from callgate.models.chat_events import ChatReader
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
from callgate.models.served import ServedModel
from callgate.models.signatures import THOUGHTS, field
from callgate.models.tables import ModelTable
from callgate.protocol.definitions import to_openai_chat
from callgate.protocol.native_results import native_parts

BASE_URL = "https://api.openai.com/v1"
CONTEXT_TOKENS = 128_000


class OpenAIChatModel(ServedModel):
    def __init__(self, name: str, table: ModelTable, key: Key | None) -> None:
        base_url = BASE_URL if table.base_url is None else table.base_url
        server = Server(table, base_url, "/chat/completions", key)
        super().__init__(name, table, server, context_tokens=CONTEXT_TOKENS)
        # Their own name for it; older servers know only the old one.
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
    """Where a person spoke last: servers want to see again only what was thought since."""
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
    """Results as messages of their own, then their images and what the person said."""
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
    if len(content) == 1 and content[0]["type"] == "text":  # what every server takes
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
