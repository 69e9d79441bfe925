"""Updates of a turn for a user interface, in addition to the events of its calls.

They contain text as the model wrote it, for the user of the conversation. Events are stored and
have other readers, so their text is redacted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from callgate.core.content import Speaker as Speaker
from callgate.core.content import Spoken as Spoken
from callgate.core.content import ToolResultBlock, ToolUseBlock
from callgate.core.models import ModelErrorKind, Usage

SPAWN_AGENT = "spawn_agent"
"""The tool that delegates a task to another agent; its calls are `Delegated`."""


TurnStop = Literal[
    "end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled", "error", "waiting"
]


class TurnEnd(msgspec.Struct, frozen=True, kw_only=True):
    stop: TurnStop
    """`waiting`: the runtime shuts down; the turn is not over, and continues after a resume."""
    notice: str | None = None
    """Important information for the user about the turn."""
    failure: ModelErrorKind | None = None
    """The failure of the model, if it ended the turn."""
    text: str = ""
    """The last text of the model."""
    usage: Usage = Usage()
    cost_usd: float | None = None
    """None if the price of the model is unknown."""
    cycles: int = 0
    calls: int = 0


class Said(msgspec.Struct, frozen=True):
    """A part of the model's text for the user."""

    text: str
    ends: bool = False
    """Whether this is the last part of the text."""


class Thought(msgspec.Struct, frozen=True):
    text: str


class Writing(msgspec.Struct, frozen=True):
    """A piece of the arguments of an incomplete call."""

    tool: str
    text: str


class Opened(msgspec.Struct, frozen=True):
    """A page for the client to open: http or https."""

    url: str


class Noticed(msgspec.Struct, frozen=True):
    """A notice about the turn itself."""

    text: str


class Restarted(msgspec.Struct, frozen=True):
    """Discards the reply so far: the model is called again."""

    why: str


class Asked(msgspec.Struct, frozen=True):
    """The model is called for its next reply."""


class Started(msgspec.Struct, frozen=True):
    """The dispatcher takes over a call, or the call is refused before that. Displays of a model
    without a tool are not calls."""

    use: ToolUseBlock
    """The tool use under callgate's id."""


class Finished(msgspec.Struct, frozen=True):
    """A `Started` call has its result. Sent once.

    A call that waits for approval at a shutdown gets none."""

    result: ToolResultBlock
    value: Any = None
    """The tool's own value; no model sees it."""


class Delegated(msgspec.Struct, frozen=True):
    """A call of a sub-agent, the only visible part of its work."""

    session: str
    """The sub-agent's session."""
    show: Started | Finished


Show = (
    Said
    | Thought
    | Writing
    | Spoken
    | Opened
    | Noticed
    | Restarted
    | Asked
    | Started
    | Finished
    | Delegated
)
Screen = Callable[[Show], None]


def nobody(show: Show) -> None:
    """Discard updates, for a turn without observers."""


def screen_with_speech(screen: Screen, speaker: Speaker) -> Screen:
    """Wrap a screen so that spoken text is also sent to the speaker."""

    def show(each: Show) -> None:
        screen(each)
        if isinstance(each, Spoken):
            speaker.speak(each)

    return show
