"""A language model as everyone sees it: a prompt goes in, pieces come out, a reply ends them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, Protocol

import msgspec

from callgate.core.messages import Message
from callgate.core.tools import ToolDefinition

StopReason = Literal["end_turn", "tool_use", "max_tokens", "refusal"]


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens, as the provider counted them."""

    input: int = 0
    """All of the prompt, cached or not."""
    output: int = 0
    """With what was thought."""
    cache_read: int = 0
    """Of the input, what came from the provider's cache."""
    cache_write: int = 0
    """Of the input, what went into it."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
        )


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """US dollars for a million tokens."""

    input: float = 0.0
    output: float = 0.0
    cache_read: float | None = None
    """None: as any input."""
    cache_write: float | None = None

    def of(self, usage: Usage) -> float:
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        plain = usage.input - usage.cache_read - usage.cache_write
        cost = plain * self.input + usage.cache_read * read + usage.cache_write * write
        return (cost + usage.output * self.output) / 1_000_000


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    messages: Sequence[Message]
    system: str = ""
    tools: Sequence[ToolDefinition] = ()
    """Empty for a model without tool calling of its own."""
    max_tokens: int | None = None
    """Of the reply; None: what the settings say."""
    output_schema: Mapping[str, Any] | None = None
    """What the text of the reply must obey, where the server can constrain it."""


class TextDelta(msgspec.Struct, frozen=True):
    text: str


class ThinkingDelta(msgspec.Struct, frozen=True):
    text: str


class ToolUseDelta(msgspec.Struct, frozen=True):
    """A piece of a call's arguments, to be shown; nothing is run from it."""

    id: str
    name: str
    text: str


class Retrying(msgspec.Struct, frozen=True):
    """The request failed and is made again. What was said of the reply so far is void."""

    kind: ModelErrorKind
    message: str
    wait_s: float
    attempt: int


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """All of it, at the end."""

    message: Message
    stop: StopReason
    usage: Usage = Usage()
    model: str = ""
    """Who answered, as the provider names it."""
    unreadable: Mapping[str, str] = {}
    """Why tool uses of the message cannot be run, by their id: their arguments were cut or are
    no object. The message has them with an empty input."""


Piece = TextDelta | ThinkingDelta | ToolUseDelta | Retrying | Reply


class ModelErrorKind(StrEnum):
    KEY = "key"
    """Missing, refused, or without the right to this model."""
    REQUEST = "request"
    """The provider does not take the request."""
    CONTEXT = "context"
    """The prompt is longer than the model's window."""
    RATE = "rate"
    OVERLOADED = "overloaded"
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    CUT = "cut"
    """The stream ended before the reply did."""
    MALFORMED = "malformed"
    """What came is not what the dialect says."""


class ModelError(Exception):
    """The model did not answer. The text is fit for a person and holds no key."""

    def __init__(
        self, kind: ModelErrorKind, message: str, *, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.retry_after_s = retry_after_s


class Model(Protocol):
    name: str
    """As the settings call it."""
    native_tools: bool
    """False: it writes its calls as text."""
    context_tokens: int
    """The window: prompt and reply together."""
    price: Price | None

    def stream(self, prompt: Prompt) -> AsyncIterator[Piece]:
        """Pieces as they arrive, then exactly one `Reply`; or a `ModelError`.

        Closing the iterator ends the request."""
        ...

    async def close(self) -> None: ...
