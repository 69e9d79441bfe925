"""What the dialects share when a prompt is written: texts, images, ids and names they take."""

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
    SummaryBlock,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callgate.core.messages import Message

IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})

_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}\Z")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
_LONGEST_NAME = 64
_NAMED = frozenset({"properties", "$defs", "definitions"})
"""Keywords of a schema whose value maps names to schemas."""


def wire_id(id: str) -> str:
    """The id as every provider takes it: a foreign one is replaced, always by the same."""
    if _ID.match(id):
        return id
    return "call_" + hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def wire_name(name: str) -> str:
    """The name as every provider takes it. Only one that a model invented needs it."""
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
    """JSON that every server takes: half a character, which is no Unicode, becomes `?`."""
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
    """The image as a URL; None where it cannot be sent."""
    if image.media_type not in IMAGE_TYPES:
        return None
    if image.source.kind == "base64":
        return f"data:{image.media_type};base64,{image.source.data}"
    return image.source.data if image.source.kind == "url" else None


def image_note(image: ImageBlock) -> str:
    """What stands for an image that cannot be sent."""
    return f"[an image that cannot be shown here: {image.media_type}]"


def plain(content: Sequence[ContentBlock]) -> tuple[str, list[ImageBlock]]:
    """The text of a result, and the images that can be sent beside it."""
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
    """For dialects that have no other way to say that a call failed."""
    return f"Error: {text}" if result.is_error else text


def is_strict(schema: Any) -> bool:
    """Whether providers can enforce it: every object closed, every property required."""
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
