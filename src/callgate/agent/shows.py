"""What a user interface is told of a turn as it happens, beside the events of its calls.

These carry text as the model wrote it, for the person whose conversation it is; events, which
others read too and which are kept, carry it without secrets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from callgate.core.content import ToolResultBlock, ToolUseBlock
from callgate.core.messages import Speaker as Speaker
from callgate.core.messages import Spoken as Spoken

SPAWN_AGENT = "spawn_agent"
"""The tool by which another agent does a task; its calls are `Delegated`."""


class Said(msgspec.Struct, frozen=True):
    """A piece of what the model says to the user."""

    text: str
    ends: bool = False
    """Nothing more comes of this saying."""


class Thought(msgspec.Struct, frozen=True):
    text: str


class Writing(msgspec.Struct, frozen=True):
    """A piece of the arguments of a call that is not complete yet."""

    tool: str
    text: str


class Opened(msgspec.Struct, frozen=True):
    """A page to be shown by the client: http or https."""

    url: str


class Noticed(msgspec.Struct, frozen=True):
    """Something about the turn itself."""

    text: str


class Restarted(msgspec.Struct, frozen=True):
    """The reply so far is void: the model is asked again."""

    why: str


class Asked(msgspec.Struct, frozen=True):
    """The model is asked for its next reply."""


class Started(msgspec.Struct, frozen=True):
    """A call begins its way through the dispatcher, or is refused before; what a model shows
    without a tool is none."""

    use: ToolUseBlock
    """Under our id."""


class Finished(msgspec.Struct, frozen=True):
    """A call that was `Started` has its result: once.

    Only a call that waits for a person while the runtime goes away has none yet."""

    result: ToolResultBlock
    value: Any = None
    """What the tool gave, as it gave it; no model sees it."""


class Delegated(msgspec.Struct, frozen=True):
    """A call of a sub-agent: nothing else of what it does is shown."""

    session: str
    """The sub-agent's."""
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
    """For a turn that nobody watches."""


def screen_with_speech(screen: Screen, speaker: Speaker) -> Screen:
    """Shows what it showed before, and has spoken what is to be heard."""

    def show(each: Show) -> None:
        screen(each)
        if isinstance(each, Spoken):
            speaker.speak(each)

    return show
