"""A language model as everyone sees it: a prompt goes in, pieces come out, a reply ends them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, NoReturn, Protocol

import msgspec

from callgate.core.messages import Message
from callgate.core.tools import ToolDefinition
from callgate.core.usage import Price as Price
from callgate.core.usage import Usage as Usage

_LONGEST_KEY = 8192

StopReason = Literal["end_turn", "tool_use", "max_tokens", "refusal"]


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
        self,
        kind: ModelErrorKind,
        message: str,
        *,
        retryable: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.retryable = retryable
        """Whether the same request may well succeed a little later."""
        self.retry_after_s = retry_after_s
        """How long the provider asks to wait, where it says."""


class Key:
    """What a provider knows us by. Only `reveal` shows it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        """Spaces and line ends around it do not count. ValueError if it cannot be one."""
        text = text.strip()
        if not text:
            raise ValueError("the key is empty")
        if len(text) > _LONGEST_KEY or not all("!" <= each <= "~" for each in text):
            raise ValueError(
                f"a key is at most {_LONGEST_KEY} visible ASCII characters, without spaces"
            )
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "Key(...)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a key is not written down")


class Model(Protocol):
    name: str
    """As the settings call it."""
    images: bool
    """Whether it can be shown pictures."""
    native_tools: bool
    """False: it writes its calls as text."""
    constrained: bool
    """Its text can be bound to a schema: see `Prompt.output_schema`."""
    small: bool
    """It is given a short prompt, and what it may write at once is little."""
    catalogue_names: bool
    """It is told of the tools of the catalogue, under their names there, and of no others."""
    context_tokens: int
    """The window: prompt and reply together."""
    price: Price | None

    def stream(self, prompt: Prompt) -> AsyncGenerator[Piece, None]:
        """Pieces as they arrive, then exactly one `Reply`; or a `ModelError`.

        Closing the generator (`contextlib.aclosing`) ends the request."""
        ...

    async def close(self) -> None: ...
