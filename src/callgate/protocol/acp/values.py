"""What requests and updates are made of: content, tool calls, modes and options."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

from callgate.protocol.acp.reading import Sent

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
    """Of a resource: a text, or bytes in base64."""

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
    """What may change of a tool call; None leaves it as it is."""

    tool_call_id: str
    title: str | None = None
    name: str | None = None
    kind: ToolKind | None = None
    status: ToolStatus | None = None
    content: list[ToolContent] | None = None
    """Replaces all that there was."""
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
    """`mode`, `model`, `model_config`, `thought_level`, or one of our own with `_` before it."""
    current_value: str
    options: list[Choice] | list[ChoiceGroup]


class BooleanOption(Sent, frozen=True, kw_only=True, tag_field="type", tag="boolean"):
    """Only for clients that say they take such."""

    id: str
    name: str
    description: str | None = None
    category: str | None = None
    current_value: bool


ConfigOption = SelectOption | BooleanOption
