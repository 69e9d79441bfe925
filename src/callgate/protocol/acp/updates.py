"""Updates of a session (`session/update`, one struct per kind), and the values in them.

Content, tool calls, modes and options also appear in requests.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, UnsetType

from callgate.protocol.acp.initialize import Sent

ToolKind = Literal[
    "read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"
]
ToolStatus = Literal["pending", "in_progress", "completed", "failed"]
StopReason = Literal["end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"]

SESSION_UPDATE = "session/update"

AUTH_REQUIRED = -32000
RESOURCE_NOT_FOUND = -32002


# Content, in both directions


class _Content(Sent, frozen=True, kw_only=True, tag_field="type"):
    forgives: ClassVar[bool] = True
    meta: Any = msgspec.field(name="_meta", default=None)


class Text(_Content, frozen=True, kw_only=True, tag="text"):
    text: str


class Image(_Content, frozen=True, kw_only=True, tag="image"):
    data: str
    """In base64."""
    mime_type: str
    uri: str | None = None


class Audio(_Content, frozen=True, kw_only=True, tag="audio"):
    data: str
    mime_type: str


class ResourceLink(_Content, frozen=True, kw_only=True, tag="resource_link"):
    name: str
    uri: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None


class Contents(Sent, frozen=True, kw_only=True):
    """Content of a resource: a text, or bytes in base64."""

    forgives: ClassVar[bool] = True
    meta: Any = msgspec.field(name="_meta", default=None)
    uri: str
    mime_type: str | None = None
    text: str | None = None
    blob: str | None = None

    def __post_init__(self) -> None:
        if (self.text is None) == (self.blob is None):
            raise ValueError("There has to be either text or blob")


class Resource(_Content, frozen=True, kw_only=True, tag="resource"):
    resource: Contents


Block = Text | Image | Audio | ResourceLink | Resource


# Tool calls


class Shown(Sent, frozen=True, kw_only=True, tag_field="type", tag="content"):
    content: Block


class Diff(Sent, frozen=True, kw_only=True, tag_field="type", tag="diff"):
    path: str
    """Absolute."""
    old_text: str | None = None
    """None: the file is new."""
    new_text: str


class Terminal(Sent, frozen=True, kw_only=True, tag_field="type", tag="terminal"):
    terminal_id: str


ToolContent = Shown | Diff | Terminal


class Location(Sent, frozen=True, kw_only=True):
    path: str
    """Absolute."""
    line: int | None = None


class ToolFields(Sent, frozen=True, kw_only=True):
    """Mutable fields of a tool call; None leaves a field unchanged."""

    tool_call_id: str
    title: str | None = None
    name: str | None = None
    kind: ToolKind | None = None
    status: ToolStatus | None = None
    content: list[ToolContent] | None = None
    """Replaces the previous content."""
    locations: list[Location] | None = None
    raw_input: Any = None
    raw_output: Any = None


# Modes and options


class Mode(Sent, frozen=True, kw_only=True):
    id: str
    name: str
    description: str | None = None


class Modes(Sent, frozen=True, kw_only=True):
    current_mode_id: str
    available_modes: list[Mode]


class Choice(Sent, frozen=True, kw_only=True):
    value: str
    name: str
    description: str | None = None


class ChoiceGroup(Sent, frozen=True, kw_only=True):
    group: str
    name: str
    options: list[Choice]


class SelectOption(Sent, frozen=True, kw_only=True, tag_field="type", tag="select"):
    id: str
    name: str
    description: str | None = None
    category: str | None = None
    """`mode`, `model`, `model_config`, `thought_level`, or a custom category with a leading `_`."""
    current_value: str
    options: list[Choice] | list[ChoiceGroup]


class BooleanOption(Sent, frozen=True, kw_only=True, tag_field="type", tag="boolean"):
    """Only for clients that declare support."""

    id: str
    name: str
    description: str | None = None
    category: str | None = None
    current_value: bool


ConfigOption = SelectOption | BooleanOption


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
    """First update of a call."""

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
    """All entries."""


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
    """All options."""


class SessionInfoUpdate(_Update, frozen=True, kw_only=True, tag="session_info_update"):
    """None clears the previous value."""

    title: str | UnsetType | None = UNSET
    updated_at: str | UnsetType | None = UNSET


class Cost(Sent, frozen=True, kw_only=True):
    amount: float
    currency: str


class UsageUpdate(_Update, frozen=True, kw_only=True, tag="usage_update"):
    used: int
    """Tokens in the context."""
    size: int
    """Maximum tokens of the context."""
    cost: Cost | None = None


class Notice(_Update, frozen=True, kw_only=True, tag="notice"):
    """Only for clients that declare support."""

    severity: Literal["info", "warning", "error"]
    title: str
    description: str | None = None


class Compaction(_Update, frozen=True, kw_only=True, tag="compaction_update"):
    """Only for clients that declare support."""

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
