"""What an MCP server may ask back while it runs a call, as values; and for which call it asks."""

from __future__ import annotations

import contextvars
from typing import Any, Literal, Protocol

import msgspec

from callgate.core.tools import ToolContext


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """An elicitation: a person is to fill in a form, or to visit an address."""

    message: str
    schema: dict[str, Any] = {}
    url: str | None = None


class Filled(msgspec.Struct, frozen=True, kw_only=True):
    """`accept` with what was filled in, `decline` if a person said no, else `cancel`."""

    action: str
    content: dict[str, Any] | None = None


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    role: str
    text: str


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt for our model."""

    turns: tuple[Turn, ...]
    system: str = ""
    max_tokens: int


class Sampled(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    model: str
    stop: str = "endTurn"


class Logged(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a server's log."""

    level: str
    """One of MCP's."""
    logger: str | None = None
    text: str


Changed = Literal["resources", "prompts"]
"""A list of a server that is another than before."""


class Refused(Exception):
    """Nobody answers; why, in words for the server."""


class Asks(Protocol):
    """Who answers; `sources.mcp.questions` implements it with the dispatcher."""

    async def fill(self, server: str, form: Form, calling: Calling) -> Filled: ...

    async def sample(self, server: str, sample: Sample, calling: Calling) -> Sampled:
        """Raises `Refused`."""
        ...

    def logged(self, line: Logged, calling: Calling) -> None:
        """It says something of a call that runs."""
        ...

    def changed(self, kind: Changed) -> None: ...


class Calling(msgspec.Struct, frozen=True, eq=False):
    """One call under way."""

    context: ToolContext
    variables: contextvars.Context
    """The context in which requests for this call run."""


current: contextvars.ContextVar[Calling | None] = contextvars.ContextVar("calling", default=None)
