"""One message of a conversation, as a list of content blocks."""

from __future__ import annotations

from typing import Literal

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
