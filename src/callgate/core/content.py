"""Content of tool results and conversations: blocks, labels and messages."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, Protocol

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
    """Classification of a tool's output, remembered by the session."""

    PRIVATE = "private"
    """Mail, documents, accounts, secrets: not meant for third parties."""
    UNTRUSTED = "untrusted"
    """Third parties may have written it: web pages, mail, messages, results of foreign servers."""
    VOUCHED = "vouched"
    """Trusted like the user's own input: an address book, data of the user's own account."""
    WORKSPACE = "workspace"
    """Files of the workspace, and the output of commands there."""
    MEMORY = "memory"
    """Content remembered from earlier sessions."""


SESSION_LABELS = frozenset({Label.PRIVATE, Label.UNTRUSTED})
"""Labels that a session retains after it has read such content."""


LARGEST_DIFF = 256 * 1024
"""Maximum bytes of each side of a diff."""


class FileDiff(msgspec.Struct, frozen=True, kw_only=True):
    """A text file before and after a call. For people: no model, event or record has it."""

    path: str
    """Absolute."""
    old: str | None
    """None: the file did not exist."""
    new: str

    @classmethod
    def of(cls, path: str, old: str | None, new: str) -> tuple[FileDiff, ...]:
        """Return one diff, or none if nothing changed or a side is binary or too long."""
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
    """The model's id of the request; unique at most within its reply."""


NativeFormat = Literal["openai.chat_completions", "openai.responses", "anthropic.messages"]


class NativeResult(msgspec.Struct, frozen=True, kw_only=True):
    """A result in the format of one provider. Models of other providers receive its text."""

    format: NativeFormat
    content: list[Any]


class ToolResultBlock(msgspec.Struct, frozen=True, tag="tool_result", omit_defaults=True):
    """The result for the agent: exactly one for each `ToolUseBlock`."""

    tool_use_id: str
    content: list[ContentBlock]
    is_error: bool = msgspec.field(default_factory=bool)  # not a default to omit: always written
    duration_ms: float | msgspec.UnsetType = msgspec.UNSET
    diffs: tuple[FileDiff, ...] = ()
    """The changes of the call, for display to people. Models do not receive them."""
    native: NativeResult | None = None
    """Replaces `content` for the models of one provider."""


class ThinkingBlock(msgspec.Struct, frozen=True, tag="thinking"):
    """The reasoning of a model before its reply."""

    thinking: str
    signature: str | None = None
    """The provider's signature, for verification by the provider."""


class RedactedThinkingBlock(msgspec.Struct, frozen=True, tag="redacted_thinking"):
    """Reasoning that only its provider can decrypt."""

    data: str


class SummaryBlock(msgspec.Struct, frozen=True, tag="summary"):
    """Replaces the beginning of a conversation that has become too long."""

    text: str
    upto: int
    """Number of messages that the summary replaces."""


Role = Literal["user", "assistant"]
MessageBlock = (
    TextBlock
    | ImageBlock
    | JsonBlock
    | ToolUseBlock
    | ToolResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | SummaryBlock
)


class Message(msgspec.Struct, frozen=True, kw_only=True):
    role: Role
    content: list[MessageBlock]

    @classmethod
    def text(cls, role: Role, text: str) -> Message:
        return cls(role=role, content=[TextBlock(text)])


class Spoken(msgspec.Struct, frozen=True, kw_only=True):
    """Text for speech output."""

    utterance: str
    voice: str | None = None
    style: str | None = None
    locale: str | None = None


class Speaker(Protocol):
    """Speech output for the replies of a model, implemented by a tool package."""

    def speak(self, spoken: Spoken) -> None:
        """Queue text for speech. Never waits, never raises."""

    def stop(self) -> None:
        """Stop speaking and clear the queue; later text is spoken again."""

    async def heard(self) -> None:
        """Wait until the queue is empty."""

    async def close(self) -> None:
        """Stop speaking permanently."""
