"""Settings of chat: `model`, `[models.NAME]` and `[agent]`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from callgate.config.schema import Count, ModelName, Seconds, SettingsPart, Table
from callgate.core.models import Price

Kind = Literal["anthropic", "openai", "responses", "ollama", "scripted", "local"]


class PriceTable(Price, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """US dollars per million tokens."""


class ModelTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[models.NAME]`: a language model."""

    kind: Kind
    """Provider and protocol; `openai` is chat completions."""
    model: str = ""
    """Name of the model at the provider."""
    base_url: str | None = None
    """The URL up to and including the version, such as `https://api.openai.com/v1`."""
    insecure_http: bool = False
    """Allow plain http:// to other machines. Anyone on the network path can read key and prompt."""
    key_env: str | None = None
    """Environment variable with the key."""
    key_command: Annotated[list[str], msgspec.Meta(min_length=1)] | None = None
    """Command that prints the key; it runs without a shell."""
    tools: Literal["native", "text"] = "native"
    """`text`: the model has no native tool calling and writes its calls as text."""
    images: bool | None = None
    """Whether the model accepts images; absent: the default of its kind."""
    constrain: bool | None = None
    """Whether the server constrains text calls to a schema; absent: only a local model does."""
    small: bool | None = None
    """Whether it gets a short prompt, and each reply either calls tools or is the final text;
    absent: only a local model does.
    """
    names: Literal["callgate", "catalogue"] = "callgate"
    """`catalogue`: it gets only the tools of the catalogue, under their names there."""
    threads: Count | None = None
    """Threads of a local model; absent: the default of llama.cpp."""
    max_tokens: Count | None = None
    """Maximum number of tokens in a reply, without thinking."""
    context_tokens: Count | None = None
    """Size of the context window: prompt and reply together."""
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    """Sampling temperature; sent only if it is set."""
    thinking_tokens: Count | None = None
    """Maximum number of tokens for thinking; sent only if it is set."""
    effort: str | None = None
    """Thinking effort, in the provider's terms: low, medium, high."""
    timeout_s: Seconds = 300.0
    """Time limit for a silent server."""
    total_timeout_s: Seconds = 3600.0
    """Time limit for one reply, including retries."""
    retries: Annotated[int, msgspec.Meta(ge=0, le=20)] = 4
    """Number of retries of a failed request."""
    proxy: str | None = None
    """An address, or `none`; absent: the environment decides, but never for loopback."""
    headers: dict[str, str] = {}
    """Additional request headers; never displayed."""
    price: PriceTable | None = None
    tags: list[str] = []
    """Tags of the sessions in which it works; they select the visible tools."""
    path: str | None = None
    """Path of a script or a GGUF file."""


class AgentTable(Table, frozen=True):
    """`[agent]`: how a model works with the tools."""

    instructions: str = ""
    """Additional instructions in the system prompt."""
    cycles: Count = 20
    """Maximum number of requests to the model in one turn."""
    calls_per_cycle: Count = 20
    """Maximum number of calls in one reply of the model."""
    calls_per_turn: Count = 50
    """Maximum number of calls in one turn."""
    result_chars: Annotated[int, msgspec.Meta(ge=200)] = 8_000
    """Maximum number of characters of one result in the prompt."""
    tokens_per_turn: Count | None = None
    """Maximum number of tokens in one turn; absent: no limit."""
    turn_time_s: Seconds | None = None
    """Time limit for one turn; absent: no limit."""
    speak: bool | Literal["client"] = False
    """Whether this machine plays the model's speech; `client`: the client plays it. The model gets
    the speech tool only if one of them plays.
    """
    unknown_slash: Literal["error", "pass"] = "error"
    """Treatment of a prompt `/NAME` if no skill has that name."""


class ChatSettings(SettingsPart, frozen=True):
    owner: ClassVar[str] = "chat"
    agent: AgentTable = AgentTable()
    model: str | None = None
    """The default model: one of `models`, or KIND/MODEL."""
    models: dict[ModelName, ModelTable] = {}
