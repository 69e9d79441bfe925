"""The greeting: which version is spoken, and what each side can do."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from callgate.protocol.acp.reading import Received, Sent

VERSION = 1
"""The highest that we speak."""

Able = dict[str, Any]
"""A capability is there if its object is, whatever is in it."""


def agreed(requested: int) -> int:
    """The version that both speak."""
    return min(requested, VERSION)


class _Forgiving(Received, frozen=True, kw_only=True):
    forgives = True


class Implementation(_Forgiving, frozen=True, kw_only=True):
    name: str
    version: str
    title: str | None = None


class FileSystem(_Forgiving, frozen=True, kw_only=True):
    read_text_file: bool | None = None
    write_text_file: bool | None = None


class ConfigOptions(_Forgiving, frozen=True, kw_only=True):
    boolean: Able | None = None


class ClientSession(_Forgiving, frozen=True, kw_only=True):
    compaction: Able | None = None
    config_options: ConfigOptions | None = None
    notices: Able | None = None


class ClientAuth(_Forgiving, frozen=True, kw_only=True):
    terminal: bool | None = None


class Elicitation(_Forgiving, frozen=True, kw_only=True):
    """Empty, it can do neither."""

    form: Able | None = None
    url: Able | None = None


class ClientCapabilities(_Forgiving, frozen=True, kw_only=True):
    """What is not there cannot be done."""

    fs: FileSystem | None = None
    terminal: bool | None = None
    session: ClientSession | None = None
    auth: ClientAuth | None = None
    elicitation: Elicitation | None = None

    @property
    def reads_files(self) -> bool:
        return self.fs is not None and bool(self.fs.read_text_file)

    @property
    def writes_files(self) -> bool:
        return self.fs is not None and bool(self.fs.write_text_file)

    @property
    def has_terminals(self) -> bool:
        return bool(self.terminal)

    @property
    def signs_in_at_a_terminal(self) -> bool:
        return self.auth is not None and bool(self.auth.terminal)

    @property
    def shows_notices(self) -> bool:
        return self.session is not None and self.session.notices is not None

    @property
    def shows_compaction(self) -> bool:
        return self.session is not None and self.session.compaction is not None

    @property
    def shows_forms(self) -> bool:
        return self.elicitation is not None and self.elicitation.form is not None

    @property
    def shows_output(self) -> bool:
        """Output of commands that we run ourselves, by a convention in `_meta`."""
        return isinstance(self.meta, dict) and self.meta.get("terminal_output") is True


class Initialize(_Forgiving, frozen=True, kw_only=True):
    protocol_version: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    client_capabilities: ClientCapabilities | None = None
    client_info: Implementation | None = None

    @property
    def capabilities(self) -> ClientCapabilities:
        return self.client_capabilities or ClientCapabilities()


# The answer. Whatever it says is written, also what it denies.


class AgentInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    version: str


class PromptCapabilities(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    image: bool
    audio: bool
    embedded_context: bool


class McpCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Which servers we can use beside programs, which everyone can."""

    http: bool
    sse: bool


class SessionCapabilities(Sent, frozen=True, kw_only=True):
    list: Able | None = None
    resume: Able | None = None
    close: Able | None = None
    delete: Able | None = None
    additional_directories: Able | None = None
    fork: Able | None = None
    """Not in the stable protocol."""


class AgentAuth(Sent, frozen=True, kw_only=True):
    logout: Able | None = None


class AgentCapabilities(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    load_session: bool
    prompt_capabilities: PromptCapabilities
    mcp_capabilities: McpCapabilities
    session_capabilities: SessionCapabilities
    auth: AgentAuth


class AgentMethod(Sent, frozen=True, kw_only=True):
    """Signing in is ours to do, by `authenticate`."""

    id: str
    name: str
    description: str | None = None


class TerminalMethod(AgentMethod, frozen=True, kw_only=True):
    """Signing in is done in a terminal, in which the client runs us with `args` added."""

    args: list[str]
    type: Literal["terminal"]


class Initialized(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    protocol_version: int
    agent_capabilities: AgentCapabilities
    agent_info: AgentInfo
    auth_methods: list[AgentMethod | TerminalMethod]
