"""Conversions that all APIs share: texts, images, valid ids and names, signatures of thinking.

A provider accepts its own thinking and rejects the thinking of others. Anthropic's signatures are
stored unchanged. The signatures of other APIs have a prefix:

    responses:ID CONTENT     an item of OpenAI responses, and its encrypted content
    chat:FIELD               the field of a chat message in which a server sent it
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from callgate.core.content import (
    ContentBlock,
    ImageBlock,
    JsonBlock,
    Message,
    SummaryBlock,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)

IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})

_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}\Z")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_NAME = 64
_NAMED = frozenset({"properties", "$defs", "definitions"})
"""Keywords of a schema whose value maps names to schemas."""


def wire_id(id: str) -> str:
    """Return an id that every provider accepts. An invalid id is replaced, always by
    the same id.
    """
    if _ID.match(id):
        return id
    return "call_" + hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def wire_name(name: str) -> str:
    """Return a name that every provider accepts. Only names that a model invented are changed."""
    return _NOT_IN_NAMES.sub("_", name)[:_LONGEST_NAME] or "unknown"


def used_ids(messages: Sequence[Message]) -> set[str]:
    return {
        block.id
        for message in messages
        for block in message.content
        if isinstance(block, ToolUseBlock)
    }


def as_object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def encoded(value: Any) -> bytes:
    """Return JSON that every server accepts. An unpaired surrogate becomes `?`."""
    try:
        return msgspec.json.encode(value, enc_hook=repr)
    except UnicodeEncodeError:
        return msgspec.json.encode(_encodable(value), enc_hook=repr)


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_encodable(key): _encodable(each) for key, each in value.items()}
    return [_encodable(each) for each in value] if isinstance(value, list | tuple) else value


def arguments_text(value: Any) -> str:
    return encoded(as_object(value)).decode()


def text_of(block: TextBlock | JsonBlock | SummaryBlock) -> str:
    if isinstance(block, JsonBlock):
        return encoded(block.value).decode()
    return block.text


def image_address(image: ImageBlock) -> str | None:
    """Return the image as a URL; None if its type is not supported."""
    if image.media_type not in IMAGE_TYPES:
        return None
    if image.source.kind == "base64":
        return f"data:{image.media_type};base64,{image.source.data}"
    return image.source.data if image.source.kind == "url" else None


def image_note(image: ImageBlock) -> str:
    """Return the text that replaces an image that cannot be sent."""
    return f"[an image that cannot be shown here: {image.media_type}]"


def plain(content: Sequence[ContentBlock]) -> tuple[str, list[ImageBlock]]:
    """Return the text of a result, and its images that can be sent."""
    texts: list[str] = []
    images: list[ImageBlock] = []
    for block in content:
        if not isinstance(block, ImageBlock):
            texts.append(text_of(block))
        elif image_address(block) is None:
            texts.append(image_note(block))
        else:
            images.append(block)
    return "\n".join(texts), images


def result_text(result: ToolResultBlock, text: str) -> str:
    """Return the text of a result with a prefix if the call failed, for APIs without an error
    flag.
    """
    return f"Error: {text}" if result.is_error else text


def is_strict(schema: Any) -> bool:
    """Whether providers can enforce a schema: every object closed, every property required."""
    if isinstance(schema, list):
        return all(map(is_strict, schema))
    if not isinstance(schema, Mapping):
        return True
    if "properties" in schema or schema.get("type") == "object":
        properties = schema.get("properties")
        if schema.get("additionalProperties") is not False or not isinstance(properties, Mapping):
            return False
        if set(schema.get("required", ())) != set(properties):
            return False
    return all(
        all(map(is_strict, value.values()))
        if key in _NAMED and isinstance(value, Mapping)
        else is_strict(value)
        for key, value in schema.items()
    )


_RESPONSES = "responses:"
_CHAT = "chat:"

THOUGHTS = ("reasoning_content", "reasoning")
"""The fields of a chat message in which servers send thinking."""


def is_anthropic(signature: str | None) -> bool:
    return bool(signature) and not str(signature).startswith((_RESPONSES, _CHAT))


def of_item(id: str, encrypted: str) -> str:
    return f"{_RESPONSES}{id} {encrypted}"


def item(signature: str | None) -> tuple[str, str] | None:
    """Return the id of the item and its encrypted content; None for thinking of another
    provider.
    """
    if signature is None or not signature.startswith(_RESPONSES):
        return None
    id, _, encrypted = signature.removeprefix(_RESPONSES).partition(" ")
    return (id, encrypted) if id and encrypted else None


def of_field(field: str) -> str:
    return _CHAT + field


def field(signature: str | None) -> str | None:
    """Return the field of a chat message; None for thinking of another provider."""
    if signature is None or not signature.startswith(_CHAT):
        return None
    return signature.removeprefix(_CHAT)
