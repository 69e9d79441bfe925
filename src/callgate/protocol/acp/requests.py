"""Requests and notifications of a client, and our answers (except `initialize`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from callgate.protocol.acp.initialize import Initialize, Received, Sent
from callgate.protocol.acp.updates import Block, ConfigOption, Modes, StopReason


class EnvVariable(Received, frozen=True, kw_only=True):
    name: str
    value: str


class HttpHeader(Received, frozen=True, kw_only=True):
    name: str
    value: str


class McpServer(Received, frozen=True, kw_only=True):
    """A server that the client wants us to use: a program, or an address."""

    name: str
    type: str = "stdio"
    """`stdio`, `http` or `sse`. Other values are unknown."""
    command: str | None = None
    args: list[str] | None = None
    env: list[EnvVariable] | None = None
    url: str | None = None
    headers: list[HttpHeader] | None = None

    def __post_init__(self) -> None:
        name = {"stdio": "command", "http": "url", "sse": "url"}.get(self.type)
        if name is not None and getattr(self, name) is None:
            raise ValueError(f"A server of type {self.type} needs a {name}")


class Authenticate(Received, frozen=True, kw_only=True):
    method_id: str


class Logout(Received, frozen=True, kw_only=True):
    pass


class NewSession(Received, frozen=True, kw_only=True):
    cwd: str
    mcp_servers: list[McpServer] | None
    """None means an empty list, here and below: some clients cannot omit the field."""
    additional_directories: list[str] | None = None


class LoadSession(Received, frozen=True, kw_only=True):
    session_id: str
    cwd: str
    mcp_servers: list[McpServer] | None
    additional_directories: list[str] | None = None


class ResumeSession(Received, frozen=True, kw_only=True):
    session_id: str
    cwd: str
    mcp_servers: list[McpServer] | None = None
    additional_directories: list[str] | None = None


class ForkSession(Received, frozen=True, kw_only=True):
    """Not in the stable protocol."""

    session_id: str
    cwd: str
    mcp_servers: list[McpServer] | None = None
    additional_directories: list[str] | None = None


class ListSessions(Received, frozen=True, kw_only=True):
    cwd: str | None = None
    cursor: str | None = None


class DeleteSession(Received, frozen=True, kw_only=True):
    session_id: str


class CloseSession(Received, frozen=True, kw_only=True):
    session_id: str


class Prompt(Received, frozen=True, kw_only=True):
    session_id: str
    prompt: list[Block]


class SetMode(Received, frozen=True, kw_only=True):
    session_id: str
    mode_id: str


class SetConfigOption(Received, frozen=True, kw_only=True):
    session_id: str
    config_id: str
    value: str | bool
    type: str | None = None
    """`boolean`; other values have no effect."""

    def __post_init__(self) -> None:
        if isinstance(self.value, bool) != (self.type == "boolean"):
            raise ValueError("A value is a text, or true or false with the type boolean")


class Cancel(Received, frozen=True, kw_only=True):
    session_id: str


class Method(NamedTuple):
    """A method that a client may use."""

    params: type[Received]
    capability: str | None = None
    """Capability in our answer to `initialize` that offers the method; None: every agent has it."""
    is_stable: bool = True
    is_notification: bool = False


METHODS: Mapping[str, Method] = {
    "initialize": Method(Initialize),
    "authenticate": Method(Authenticate),
    "logout": Method(Logout, "auth.logout"),
    "session/new": Method(NewSession),
    "session/load": Method(LoadSession, "loadSession"),
    "session/resume": Method(ResumeSession, "sessionCapabilities.resume"),
    "session/list": Method(ListSessions, "sessionCapabilities.list"),
    "session/delete": Method(DeleteSession, "sessionCapabilities.delete"),
    "session/close": Method(CloseSession, "sessionCapabilities.close"),
    "session/prompt": Method(Prompt),
    "session/set_mode": Method(SetMode),
    "session/set_config_option": Method(SetConfigOption),
    "session/fork": Method(ForkSession, "sessionCapabilities.fork", is_stable=False),
    "session/cancel": Method(Cancel, is_notification=True),
}
"""All methods, with the type of their parameters, and the capability that offers them."""


def find_request(method: str, *, unstable: bool) -> type[Received] | None:
    """Return the type of a request; None if it is not supported."""
    found = METHODS.get(method)
    if found is None or found.is_notification or not (found.is_stable or unstable):
        return None
    return found.params


def find_notification(method: str) -> type[Received] | None:
    """Return the type of a notification; None if it is ignored."""
    found = METHODS.get(method)
    return found.params if found is not None and found.is_notification else None


# Answers. Answers to other requests are empty objects.


class SessionOpened(Sent, frozen=True, kw_only=True):
    """The answer to load and resume."""

    modes: Modes | None = None
    config_options: list[ConfigOption] | None = None


class SessionMade(SessionOpened, frozen=True, kw_only=True):
    """The answer to new and fork."""

    session_id: str


class SessionInfo(Sent, frozen=True, kw_only=True):
    session_id: str
    cwd: str
    additional_directories: list[str] = []
    title: str | None = None
    updated_at: str | None = None
    """ISO 8601."""


class SessionList(Sent, frozen=True, kw_only=True):
    sessions: list[SessionInfo]
    next_cursor: str | None = None


class ConfigOptionSet(Sent, frozen=True, kw_only=True):
    config_options: list[ConfigOption]
    """All options."""


class Usage(Sent, frozen=True, kw_only=True):
    total_tokens: int
    input_tokens: int
    output_tokens: int
    thought_tokens: int | None = None
    cached_read_tokens: int | None = None
    cached_write_tokens: int | None = None


class Prompted(Sent, frozen=True, kw_only=True):
    stop_reason: StopReason
    usage: Usage | msgspec.UnsetType = msgspec.UNSET
    """Not in the stable protocol."""
