"""One message of a conversation, as a list of content blocks."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

from callgate.core.content import (
    ImageBlock,
    JsonBlock,
    RedactedThinkingBlock,
    SummaryBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)

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
    """To be heard."""

    utterance: str
    voice: str | None = None
    style: str | None = None
    locale: str | None = None


class Speaker(Protocol):
    """Makes heard what a model says aloud. A package of tools brings one."""

    def speak(self, spoken: Spoken) -> None:
        """Have it heard after what was to be heard before. Never waits, never raises."""

    def stop(self) -> None:
        """Be silent now, and forget what waits; what is said later is heard again."""

    async def heard(self) -> None:
        """Wait until nothing is left to be heard."""

    async def close(self) -> None:
        """Be silent for ever."""
