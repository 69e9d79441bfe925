"""What a tool shows: text, images and JSON, and the blocks in which an agent sees them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class TextBlock(msgspec.Struct, frozen=True, tag="text"):
    text: str


class ImageSource(msgspec.Struct, frozen=True, kw_only=True):
    kind: Literal["base64", "url", "file_ref"] = "base64"
    data: str


class ImageBlock(msgspec.Struct, frozen=True, tag="image"):
    source: ImageSource
    media_type: str


class JsonBlock(msgspec.Struct, frozen=True, tag="json"):
    value: Any


ContentBlock = TextBlock | ImageBlock | JsonBlock


class ToolUseBlock(msgspec.Struct, frozen=True, tag="tool_use", omit_defaults=True):
    """A model's request to run one tool once."""

    id: str
    name: str
    input: Any
    external_id: str | None = None
    """What the model itself calls it; unique in its reply at most."""


class ToolResultBlock(msgspec.Struct, frozen=True, tag="tool_result"):
    """What the agent gets back: exactly one for each `ToolUseBlock`."""

    tool_use_id: str
    content: list[ContentBlock]
    is_error: bool = False
    duration_ms: float | msgspec.UnsetType = msgspec.UNSET


class ThinkingBlock(msgspec.Struct, frozen=True, tag="thinking"):
    """What a model thought before it spoke."""

    thinking: str
    signature: str | None = None
    """By which its provider knows it again."""


class RedactedThinkingBlock(msgspec.Struct, frozen=True, tag="redacted_thinking"):
    """A thought that only its provider can read."""

    data: str


class SummaryBlock(msgspec.Struct, frozen=True, tag="summary"):
    """Stands for the beginning of a conversation that has become too long."""

    text: str
    upto: int
    """How many messages of the conversation it stands for."""
