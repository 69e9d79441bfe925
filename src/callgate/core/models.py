"""The port of a language model: it receives a prompt and streams pieces, then one reply."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, NoReturn, Protocol

import msgspec

from callgate.core.content import Message
from callgate.core.tools import ToolDefinition


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of one or more replies, with the same meaning for every provider."""

    input: int = 0
    """The whole prompt, with its cached part."""
    output: int = 0
    """The reply, with reasoning tokens."""
    cache_read: int = 0
    """The part of `input` that was read from the provider's cache."""
    cache_write: int = 0
    """The part of `input` that was written to the provider's cache."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
        )


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """US dollars per million tokens."""

    input: float = 0.0
    """Per million prompt tokens."""
    output: float = 0.0
    """Per million reply tokens."""
    cache_read: float | None = None
    """Per million prompt tokens read from the provider's cache. Default: the price of `input`."""
    cache_write: float | None = None
    """Per million prompt tokens written to the provider's cache. Default: the price of `input`."""

    def of(self, usage: Usage) -> float:
        read = self.input if self.cache_read is None else self.cache_read
        write = self.input if self.cache_write is None else self.cache_write
        plain = usage.input - usage.cache_read - usage.cache_write
        cost = plain * self.input + usage.cache_read * read + usage.cache_write * write
        return (cost + usage.output * self.output) / 1_000_000


_LONGEST_KEY = 8192

StopReason = Literal["end_turn", "tool_use", "max_tokens", "refusal"]


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    messages: Sequence[Message]
    system: str = ""
    tools: Sequence[ToolDefinition] = ()
    """Empty for a model without native tool calling."""
    max_tokens: int | None = None
    """Limit of the reply; None: as in the settings."""
    output_schema: Mapping[str, Any] | None = None
    """Schema for the text of the reply, if the server can constrain it."""


class TextDelta(msgspec.Struct, frozen=True):
    text: str


class ThinkingDelta(msgspec.Struct, frozen=True):
    text: str


class ToolUseDelta(msgspec.Struct, frozen=True):
    """A piece of a call's arguments, for display only; no call runs from it."""

    id: str
    name: str
    text: str


class Retrying(msgspec.Struct, frozen=True):
    """The request failed and is repeated. The earlier pieces of the reply are void."""

    kind: ModelErrorKind
    message: str
    wait_s: float
    attempt: int


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The complete reply, as the last piece."""

    message: Message
    stop: StopReason
    usage: Usage = Usage()
    model: str = ""
    """The model that answered, as the provider names it."""
    unreadable: Mapping[str, str] = {}
    """Why tool uses of the message cannot run, by id: their arguments were truncated or are not an
    object. Their input in the message is empty.
    """


Piece = TextDelta | ThinkingDelta | ToolUseDelta | Retrying | Reply


class ModelErrorKind(StrEnum):
    KEY = "key"
    """The key is missing, refused, or does not permit this model."""
    REQUEST = "request"
    """The provider rejects the request."""
    CONTEXT = "context"
    """The prompt exceeds the context window."""
    RATE = "rate"
    OVERLOADED = "overloaded"
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    CUT = "cut"
    """The stream ended before the reply."""
    NO_TOOLS = "no_tools"
    """The model has no native tool calling; its adapter has switched to calls as text."""
    MALFORMED = "malformed"
    """The response does not conform to the provider's format."""


class ModelError(Exception):
    """The model did not answer. The message is safe to show and contains no key."""

    def __init__(
        self,
        kind: ModelErrorKind,
        message: str,
        *,
        retryable: bool = False,
        retry_after_s: float | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.retryable = retryable
        """Whether the same request may succeed later."""
        self.retry_after_s = retry_after_s
        """The delay that the provider requests, if it does."""
        self.status = status
        """The HTTP status of the response, if there was one."""


class Key:
    """An API key. Only `reveal` returns its text."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        """Strip surrounding white space. Raises `ValueError` if the text cannot be a key."""
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
    """Its name in the settings."""
    images: bool
    """Whether it accepts images."""
    native_tools: bool
    """False: it writes its calls as text."""
    constrained: bool
    """Whether its text can be constrained to a schema: see `Prompt.output_schema`."""
    small: bool
    """It gets a short prompt, and its replies are limited."""
    catalogue_names: bool
    """It sees only the tools of the catalogue, under their catalogue names."""
    context_tokens: int
    """The context window: prompt and reply together."""
    price: Price | None

    def stream(self, prompt: Prompt) -> AsyncGenerator[Piece, None]:
        """Yield pieces as they arrive, then exactly one `Reply`; or raise a `ModelError`.

        Closing the generator (`contextlib.aclosing`) ends the request.
        """
        ...

    async def close(self) -> None: ...
