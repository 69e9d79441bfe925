"""What a tool shows: text, images and JSON, with labels that say what they are, and the blocks in
which an agent sees them."""

from __future__ import annotations

from enum import StrEnum
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


class Label(StrEnum):
    """What the output of a tool is, as a session remembers it."""

    PRIVATE = "private"
    """Mail, documents, accounts, secrets: not meant for strangers."""
    UNTRUSTED = "untrusted"
    """Strangers can have written it: web pages, mail, messages, results of foreign servers."""
    VOUCHED = "vouched"
    """As good as the user's words: an address book, the data of the user's own account."""
    WORKSPACE = "workspace"
    """Files of the workspace, and what commands print there."""
    MEMORY = "memory"
    """What was remembered in earlier sessions."""


SESSION_LABELS = frozenset({Label.PRIVATE, Label.UNTRUSTED})
"""Those that a session keeps once it has read such content."""


LARGEST_DIFF = 256 * 1024
"""Bytes of one side of a change that is kept to be shown."""


class FileDiff(msgspec.Struct, frozen=True, kw_only=True):
    """A text file before and after a call. For people: no model, event or record has it."""

    path: str
    """Absolute."""
    old: str | None
    """None: there was no such file."""
    new: str

    @classmethod
    def of(cls, path: str, old: str | None, new: str) -> tuple[FileDiff, ...]:
        """The one change, or none where nothing changed or a side cannot be shown."""
        if old == new or not _is_shown(new) or (old is not None and not _is_shown(old)):
            return ()
        return (cls(path=path, old=old, new=new),)


def _is_shown(text: str) -> bool:
    if len(text) > LARGEST_DIFF or "\0" in text:
        return False
    return text.isascii() or len(text.encode("utf-8", "replace")) <= LARGEST_DIFF


class ToolUseBlock(msgspec.Struct, frozen=True, tag="tool_use", omit_defaults=True):
    """A model's request to run one tool once."""

    id: str
    name: str
    input: Any
    external_id: str | None = None
    """What the model itself calls it; unique in its reply at most."""


NativeFormat = Literal["openai.chat_completions", "openai.responses", "anthropic.messages"]


class NativeResult(msgspec.Struct, frozen=True, kw_only=True):
    """A result for a model in the words of one provider. Models of others are shown its text."""

    format: NativeFormat
    content: list[Any]


class ToolResultBlock(msgspec.Struct, frozen=True, tag="tool_result", omit_defaults=True):
    """What the agent gets back: exactly one for each `ToolUseBlock`."""

    tool_use_id: str
    content: list[ContentBlock]
    is_error: bool = msgspec.field(default_factory=bool)  # not a default to omit: always written
    duration_ms: float | msgspec.UnsetType = msgspec.UNSET
    diffs: tuple[FileDiff, ...] = ()
    """What the call changed, as people are shown it; a model is not."""
    native: NativeResult | None = None
    """What takes the place of `content` for the models of one provider."""


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
