"""What we tell a client of a session as it happens: `session/update`, one struct a kind."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from callgate.protocol.acp.reading import Sent
from callgate.protocol.acp.values import (
    Block,
    ConfigOption,
    Location,
    ToolContent,
    ToolFields,
    ToolKind,
    ToolStatus,
)


class _Update(Sent, frozen=True, kw_only=True, tag_field="sessionUpdate"):
    pass


class _Chunk(_Update, frozen=True, kw_only=True):
    content: Block
    message_id: str | None = None


class UserMessageChunk(_Chunk, frozen=True, kw_only=True, tag="user_message_chunk"):
    pass


class AgentMessageChunk(_Chunk, frozen=True, kw_only=True, tag="agent_message_chunk"):
    pass


class AgentThoughtChunk(_Chunk, frozen=True, kw_only=True, tag="agent_thought_chunk"):
    pass


class ToolCall(_Update, frozen=True, kw_only=True, tag="tool_call"):
    """The first that is told of a call."""

    tool_call_id: str
    title: str
    name: str | None = None
    kind: ToolKind
    status: ToolStatus
    content: list[ToolContent] = []
    locations: list[Location] = []
    raw_input: Any = None
    raw_output: Any = None


class ToolCallUpdate(
    ToolFields, frozen=True, kw_only=True, tag_field="sessionUpdate", tag="tool_call_update"
):
    pass


class PlanEntry(Sent, frozen=True, kw_only=True):
    content: str
    priority: Literal["high", "medium", "low"]
    status: Literal["pending", "in_progress", "completed"]


class Plan(_Update, frozen=True, kw_only=True, tag="plan"):
    entries: list[PlanEntry]
    """All of them."""


class CommandInput(Sent, frozen=True, kw_only=True):
    hint: str


class Command(Sent, frozen=True, kw_only=True):
    name: str
    """Without the slash."""
    description: str
    input: CommandInput | None = None


class AvailableCommands(_Update, frozen=True, kw_only=True, tag="available_commands_update"):
    available_commands: list[Command]


class CurrentMode(_Update, frozen=True, kw_only=True, tag="current_mode_update"):
    current_mode_id: str


class ConfigOptions(_Update, frozen=True, kw_only=True, tag="config_option_update"):
    config_options: list[ConfigOption]
    """All of them."""


class SessionInfoUpdate(_Update, frozen=True, kw_only=True, tag="session_info_update"):
    """None clears what there was."""

    title: str | UnsetType | None = UNSET
    updated_at: str | UnsetType | None = UNSET


class Cost(Sent, frozen=True, kw_only=True):
    amount: float
    currency: str


class UsageUpdate(_Update, frozen=True, kw_only=True, tag="usage_update"):
    used: int
    """Tokens in the context."""
    size: int
    """Tokens that fit into it."""
    cost: Cost | None = None


class Notice(_Update, frozen=True, kw_only=True, tag="notice"):
    """Only for clients that say they show such."""

    severity: Literal["info", "warning", "error"]
    title: str
    description: str | None = None


class Compaction(_Update, frozen=True, kw_only=True, tag="compaction_update"):
    """Only for clients that say they show such."""

    compaction_id: str
    status: Literal["in_progress", "completed", "failed", "cancelled"]
    summary: list[Block] | None = None
    error: str | None = None


class CompactionChunk(_Update, frozen=True, kw_only=True, tag="compaction_summary_chunk"):
    compaction_id: str
    content: Block


Update = (
    UserMessageChunk
    | AgentMessageChunk
    | AgentThoughtChunk
    | ToolCall
    | ToolCallUpdate
    | Plan
    | AvailableCommands
    | CurrentMode
    | ConfigOptions
    | SessionInfoUpdate
    | UsageUpdate
    | Notice
    | Compaction
    | CompactionChunk
)


class SessionUpdate(Sent, frozen=True, kw_only=True):
    """The parameters of `session/update`."""

    session_id: str
    update: Update
