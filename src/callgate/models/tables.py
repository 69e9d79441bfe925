"""What the settings say of one model: `[models.NAME]`. Light to import."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from callgate.core.usage import Price

Count = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=31_536_000)]
Kind = Literal["anthropic", "openai", "responses", "scripted", "local"]


class PriceTable(Price, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """US dollars for a million tokens."""


class ModelTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[models.NAME]`: a language model."""

    kind: Kind
    """Who answers, and in which dialect; `openai` is chat completions."""
    model: str = ""
    """As the provider calls it."""
    base_url: str | None = None
    """Up to and with the version, such as `https://api.openai.com/v1`."""
    insecure_http: bool = False
    """Plain http:// also to other machines: whoever is on the way reads key and prompt."""
    key_env: str | None = None
    """The variable that has the key."""
    key_command: Annotated[list[str], msgspec.Meta(min_length=1)] | None = None
    """A program that prints the key; no shell reads it."""
    tools: Literal["native", "text"] = "native"
    """`text`: the model has no tool calling of its own and writes its calls."""
    images: bool | None = None
    """Whether it can be shown pictures; absent: what is usual for its kind."""
    constrain: bool | None = None
    """Whether the server binds what is written as text to a schema; absent: a local one does."""
    small: bool | None = None
    """Whether it gets a short prompt, and a reply either calls tools or speaks and ends; absent: a
    local one does."""
    names: Literal["callgate", "catalogue"] = "callgate"
    """`catalogue`: it is told of the catalogue's tools only, under the names they have there."""
    threads: Count | None = None
    """That compute, of a local model; absent: as many as llama.cpp finds good."""
    max_tokens: Count | None = None
    """Of a reply, without what is thought."""
    context_tokens: Count | None = None
    """The window: prompt and reply together."""
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    """Sent only where it is set."""
    thinking_tokens: Count | None = None
    """How much it may think; sent only where it is set."""
    effort: str | None = None
    """How hard to think, in the provider's words: low, medium, high."""
    timeout_s: Seconds = 300.0
    """How long the server may be silent."""
    total_timeout_s: Seconds = 3600.0
    """How long one reply may take, repeated requests included."""
    retries: Annotated[int, msgspec.Meta(ge=0, le=20)] = 4
    """How often a request that failed is made again."""
    proxy: str | None = None
    """An address, or `none`; without it the environment decides, but never for loopback."""
    headers: dict[str, str] = {}
    """Sent along, and never shown."""
    price: PriceTable | None = None
    tags: list[str] = []
    """Of the sessions in which it works: which tools they see."""
    path: str | None = None
    """Of a script, or of a GGUF file."""
