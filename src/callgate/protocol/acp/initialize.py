"""The initialize exchange (protocol version, capabilities), and the reader of all ACP messages.

The reader converts parameters into typed values, or names the wrong field. An invalid
optional field counts as absent if the protocol allows it (`forgives`). An instance loads only
this module before it answers `initialize`.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

import msgspec

from callgate.protocol.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, RpcError, shown

T = TypeVar("T")

_SHOWN = 200


class Received(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    forgives: ClassVar[bool] = False
    meta: Any = msgspec.field(name="_meta", default=None)
    """The complete `_meta` of the message."""


class Sent(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


def read_params(wanted: type[T], params: Any) -> T:
    """Parse the parameters of a request or notification. Raises `RpcError` -32602."""
    try:
        return _converted({} if params is None else params, wanted)
    except msgspec.ValidationError as error:
        raise RpcError(INVALID_PARAMS, f"Invalid params: {_describe(error)}") from None


def read_result(wanted: type[T], result: Any) -> T:
    """Parse the result of a client. Raises `RpcError` -32603."""
    try:
        return _converted({} if result is None else result, wanted)
    except msgspec.ValidationError as error:
        raise RpcError(
            INTERNAL_ERROR, f"the client's answer is invalid: {_describe(error)}"
        ) from None


def _converted(value: Any, wanted: type[T]) -> T:
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError:
        return msgspec.convert(_forgiven(value, wanted), wanted)


def _forgiven(value: Any, wanted: Any) -> Any:
    """Return a value without its invalid optional fields."""
    if type(value) is list and get_origin(wanted) is list:
        return [_forgiven(each, *get_args(wanted)) for each in value]
    struct = _struct_of(value, wanted)
    if struct is None:
        return value
    fields = dict(value)
    for field in _fields(struct):
        name = field.encode_name
        if name in fields:
            fields[name] = _forgiven(fields[name], field.type)
            if _forgives(struct) and not field.required and not _fits(fields[name], field.type):
                del fields[name]
    return fields


def _struct_of(value: Any, wanted: Any) -> type[msgspec.Struct] | None:
    """Return the struct in a union that a value matches."""
    if type(value) is not dict:
        return None
    for each in get_args(wanted) or (wanted,):
        if isinstance(each, type) and issubclass(each, msgspec.Struct):
            config = each.__struct_config__
            if config.tag is None or value.get(str(config.tag_field)) == config.tag:
                return each
    return None


@cache
def _fields(struct: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    return msgspec.structs.fields(struct)


def _forgives(struct: type[msgspec.Struct]) -> bool:
    return bool(getattr(struct, "forgives", False))


def _fits(value: Any, wanted: Any) -> bool:
    try:
        msgspec.convert(value, wanted)
    except msgspec.ValidationError:
        return False
    return True


def _describe(error: msgspec.ValidationError) -> str:
    """Describe an error, such as `sessionId: expected str, got int`."""
    problem, _, location = str(error).replace("`", "").rpartition(" - at ")
    if not problem:
        problem, location = location, ""
    path = location.removeprefix("key in ").removeprefix("$").removeprefix(".") or "params"
    return shown(f"{path}: {problem[:1].lower()}{problem[1:]}", _SHOWN)


VERSION = 1
"""The highest supported version."""

Able = dict[str, Any]
"""A capability is present if its object is, with any content."""


def agreed(requested: int) -> int:
    """Return the lower one of the requested version and ours."""
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
    """Supported kinds of forms; empty: none."""

    form: Able | None = None
    url: Able | None = None


class ClientCapabilities(_Forgiving, frozen=True, kw_only=True):
    """Capabilities of a client; a missing one is unsupported."""

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
        """Whether the client displays output of our own commands, by a convention in `_meta`."""
        return isinstance(self.meta, dict) and self.meta.get("terminal_output") is True


class Initialize(_Forgiving, frozen=True, kw_only=True):
    protocol_version: Annotated[int, msgspec.Meta(ge=1, le=65_535)]
    client_capabilities: ClientCapabilities | None = None
    client_info: Implementation | None = None

    @property
    def capabilities(self) -> ClientCapabilities:
        return self.client_capabilities or ClientCapabilities()


# The answer. It lists every capability, also unsupported ones.


class AgentInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    version: str


class PromptCapabilities(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    image: bool
    audio: bool
    embedded_context: bool


class McpCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """Kinds of MCP servers that we support in addition to programs, which every agent supports."""

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
    """Login by the request `authenticate`."""

    id: str
    name: str
    description: str | None = None


class TerminalMethod(AgentMethod, frozen=True, kw_only=True):
    """Login in a terminal, in which the client runs us with `args` added."""

    args: list[str]
    type: Literal["terminal"]


class Initialized(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    protocol_version: int
    agent_capabilities: AgentCapabilities
    agent_info: AgentInfo
    auth_methods: list[AgentMethod | TerminalMethod]
