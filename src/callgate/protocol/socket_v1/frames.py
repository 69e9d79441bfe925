"""Every message of the socket, as a struct named like its `type`.

Unknown keys are ignored, so that either side may be newer than the other; names and types must have
the exact spelling. An optional text or number may be null, which means absent; `protocol`, a
request id and an object may not.

Each request has one final answer (`ANSWERS`), except `cancel_tool_call`, which has none.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from callgate.core.sessions import SettingsState

VERSION: Literal[1] = 1
MAX_TIMEOUT_MS = 86_400_000

REQUEST_ID = r"^[ -~]{1,128}\Z"

RequestId = Annotated[str, Meta(pattern=REQUEST_ID)]
Name = Annotated[str, Meta(min_length=1, max_length=128)]
Hint = Annotated[str, Meta(max_length=4_096)]
Text = Annotated[str, Meta(max_length=65_536)]
TimeoutMs = Annotated[int, Meta(ge=1, le=MAX_TIMEOUT_MS)]

Decision = Literal["allow", "deny", "always-allow-this-tool"]
Scope = Literal["once", "run", "destination", "session", "always"]


class Code(StrEnum):
    """The eight error codes; `details.errorClass` has a finer class."""

    UNKNOWN_TOOL = "UNKNOWN_TOOL"
    VALIDATION_ERROR = "VALIDATION_ERROR"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    TIMEOUT = "TIMEOUT"
    TOOL_FAILED = "TOOL_FAILED"
    RUNTIME_SHUTTING_DOWN = "RUNTIME_SHUTTING_DOWN"
    CANCELLED = "CANCELLED"
    PROTOCOL_ERROR = "PROTOCOL_ERROR"


# Defaults from such a factory are encoded; other defaults are omitted.


def _version() -> Literal[1]:
    return VERSION


def _nothing() -> dict[str, Any]:
    return {}


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A value inside a frame."""


class _Frame(_Part, frozen=True, kw_only=True, tag_field="type"):
    protocol: Literal[1] = msgspec.field(default_factory=_version)


# Client to server.


class ClientInfo(_Part, frozen=True, kw_only=True):
    """Information that a client sends about itself: hints, which grant no rights."""

    caller: Hint | None = None
    cwd: Hint | None = None
    session_id: Hint | None = None
    """Ignored: the server assigns an id to each connection."""
    space_id: Hint | None = None
    tab_id: Hint | None = None
    traceparent: Hint | None = None
    """The span of the caller, in W3C Trace Context format."""


class ToolCall(_Frame, frozen=True, kw_only=True, tag="tool_call"):
    request_id: RequestId
    tool_name: Name
    arguments: dict[str, Any] = msgspec.field(default_factory=_nothing)
    client_info: ClientInfo = ClientInfo()
    timeout_ms: TimeoutMs | None = None
    whole: bool = False
    """Whether to return the complete result, in `ToolResult.whole`."""


class ListTools(_Frame, frozen=True, kw_only=True, tag="list_tools"):
    request_id: RequestId | UnsetType = UNSET
    client_info: ClientInfo = ClientInfo()
    names: Annotated[list[Name], Meta(max_length=256)] | None = None
    """Restrict the list to these tools, by name or alias, in this order."""
    whole: bool = False
    """Whether to describe every tool, in `ToolsList.whole`."""
    settings: bool = False
    """Whether to include the settings that decide about calls, in `ToolsList.settings`."""


class CancelToolCall(_Frame, frozen=True, kw_only=True, tag="cancel_tool_call"):
    request_id: RequestId


class Subscribe(_Frame, frozen=True, kw_only=True, tag="subscribe"):
    request_id: RequestId
    session: Name = "own"
    """`own`, `all` visible to this peer, or the id of one session."""
    types: Annotated[list[Name], Meta(max_length=256)] | None = None
    since: Text | None = None
    """A cursor: start after it instead of now."""
    confirmer: bool = False
    """Whether a user can answer questions here."""


class Unsubscribe(_Frame, frozen=True, kw_only=True, tag="unsubscribe"):
    request_id: RequestId
    subscription_id: Name


class ListConfirmations(_Frame, frozen=True, kw_only=True, tag="list_confirmations"):
    request_id: RequestId | UnsetType = UNSET
    confirmation_id: Name | None = None
    """Restrict the list to this confirmation."""


class AnswerConfirmation(_Frame, frozen=True, kw_only=True, tag="answer_confirmation"):
    request_id: RequestId
    confirmation_id: Name
    decision: Decision
    scope: Scope = "once"
    arguments: dict[str, Any] | UnsetType = UNSET
    """Arguments to run instead; they pass every check again."""
    arguments_sha256: Name | None = msgspec.field(default=None, name="argumentsSha256")
    """Hash of the shown arguments; an answer for other arguments is refused."""
    pattern: Text | None = None
    """With scope `always`: the pattern to save."""
    reason: Text | None = None


class CheckAlive(_Frame, frozen=True, kw_only=True, tag="check_alive"):
    request_id: RequestId | UnsetType = UNSET


class ListHosts(_Frame, frozen=True, kw_only=True, tag="list_hosts"):
    request_id: RequestId | UnsetType = UNSET


class RenewHost(_Frame, frozen=True, kw_only=True, tag="renew_host"):
    """Accept the present pins of a host, and restart it with its next call."""

    request_id: RequestId
    name: Name
    forget: bool = False
    """Whether to forget its crashes, and end its process with its running calls."""


# Server to client.


class Descriptor(_Part, frozen=True, kw_only=True):
    name: str
    description: str
    input_schema: dict[str, Any]
    capabilities: list[str]
    side_effects: str | None = None
    timeout_ms: int | None = None
    tags: list[str] = []
    annotations: dict[str, bool] = {}


class ToolsList(_Frame, frozen=True, kw_only=True, tag="tools_list"):
    request_id: str | UnsetType = UNSET
    tools: list[Descriptor]
    workspace: str | UnsetType | None = UNSET
    """Working directory of the peer's calls; null if it is not served."""
    mode: str | None = None
    """The mode there."""
    whole: Any = UNSET
    """On request: every tool, visible or not, with all the facts of `callgate tools`."""
    settings: SettingsState | UnsetType = UNSET
    """On request: the policy in force there, and the errors in its files."""


class Progress(_Part, frozen=True, kw_only=True, tag_field="kind", tag="progress"):
    message: str | None = None
    fraction: float | None = None
    """From 0 to 1."""


class Log(_Part, frozen=True, kw_only=True, tag_field="kind", tag="log"):
    level: str = msgspec.field(default_factory=lambda: "info")
    """debug, info, warn or error."""
    message: str


class PartialText(_Part, frozen=True, kw_only=True, tag_field="kind", tag="partial_text"):
    text: str
    stream: str | None = None
    """stdout, stderr or text."""


class Artifact(_Part, frozen=True, kw_only=True, tag_field="kind", tag="artifact"):
    mime_type: str
    name: str | None = None
    data_base64: str | None = msgspec.field(default=None, name="dataBase64")
    path: str | None = None


class Part(_Part, frozen=True, kw_only=True, tag_field="kind", tag="part"):
    part: Any
    """A piece of a host's result, as the host sent it."""


Happening = Progress | Log | PartialText | Artifact | Part


class ToolEvent(_Frame, frozen=True, kw_only=True, tag="tool_event"):
    request_id: str
    event: Happening


class Diagnostic(_Part, frozen=True, kw_only=True):
    level: str
    """info, warn or error."""
    message: str


class Failure(_Part, frozen=True, kw_only=True):
    code: str
    """A `Code`."""
    message: str
    details: Any = UNSET


class Envelope(_Part, frozen=True, kw_only=True):
    """`ToolResult` on the wire: the tool's content, or the reason why there is none."""

    ok: bool
    content: Any = UNSET
    """Null is a content, absent is none."""
    meta: dict[str, Any] = {}
    diagnostics: list[Diagnostic] = []
    error: Failure | None = None


class ToolResult(_Frame, frozen=True, kw_only=True, tag="tool_result"):
    request_id: str
    result: Envelope
    whole: Any = UNSET
    """On request: the complete result, with the names of `core.calls`; `result` then has no
    content."""


class Error(_Frame, frozen=True, kw_only=True, tag="error"):
    """The request violates the protocol, or is impossible; a tool's failure is a result."""

    request_id: str | UnsetType = UNSET
    code: str = msgspec.field(default_factory=lambda: Code.PROTOCOL_ERROR)
    message: str


class Subscribed(_Frame, frozen=True, kw_only=True, tag="subscribed"):
    request_id: str
    subscription_id: str
    cursor: str | None = None
    """Cursor before the first event."""


class Unsubscribed(_Frame, frozen=True, kw_only=True, tag="unsubscribed"):
    """No further event of the subscription follows."""

    request_id: str
    subscription_id: str


class Happened(_Part, frozen=True, kw_only=True):
    """An event of the runtime; its payload retains its own spelling."""

    id: str
    timestamp: float
    session_id: str
    turn_id: str | None = None
    parent_event_id: str | None = None
    type: str
    actor: str
    payload: dict[str, Any]
    sensitivity: str | None = None


class Event(_Frame, frozen=True, kw_only=True, tag="event"):
    subscription_id: str
    event: Happened | None = None
    cursor: str | None = None
    """Cursor after this event: subscribe with it to continue."""
    missed: int = 0
    """Number of earlier events that were dropped because the peer did not read."""


class Requester(_Part, frozen=True, kw_only=True):
    """The client whose call a question is about."""

    process: int | None = None
    program: str | None = None
    directory: str | None = None
    address: str | None = None
    name: str | None = None
    """Name that the program reports, unverified."""


class Question(_Part, frozen=True, kw_only=True):
    """A confirmation that waits for an answer. Its texts are untrusted: show them escaped."""

    id: str
    call_id: str
    tool_use_id: str
    session_id: str
    turn_id: str | None = None
    tool: str
    side_effects: str
    destructive: bool
    arguments: dict[str, Any]
    arguments_sha256: str = msgspec.field(name="argumentsSha256")
    workspace: str
    why: str
    input_summary: str
    preview: str | None = None
    projected_modifications: list[str] = []
    command_summary: str | None = None
    sandbox: str | None = None
    """The sandbox of its commands."""
    caller: str | None = None
    client: Requester | None = None
    """The client, as the instance identified it."""
    preview_is_ours: bool = False
    """False: the tool itself supplied the preview of its effect."""
    always_ask: bool = False
    """Whether only an explicit answer counts: a flag of the peer that allows calls does not."""
    expires_at: float


class ConfirmationsList(_Frame, frozen=True, kw_only=True, tag="confirmations_list"):
    request_id: str | UnsetType = UNSET
    confirmations: list[Question]


class ConfirmationResult(_Frame, frozen=True, kw_only=True, tag="confirmation_result"):
    request_id: str
    confirmation_id: str
    applied: bool
    """False: another client was first, and the other fields describe its answer."""
    decision: str | None = None
    """allow, deny, timeout or cancelled."""
    scope: str | None = None
    by: str | None = None


class Alive(_Frame, frozen=True, kw_only=True, tag="alive"):
    request_id: str | UnsetType = UNSET


class HostTool(_Part, frozen=True, kw_only=True):
    name: str
    effect: str
    changed: bool = False
    """Whether the host's definition differs from the pin, so that calls are refused."""


class HostEntry(_Part, frozen=True, kw_only=True):
    """A host, as the instance sees it. Its texts are untrusted: show them escaped."""

    name: str
    health: str
    """new, resting, starting, running, waiting or quarantined."""
    command: list[str]
    tools: list[HostTool]
    problem: str | None = None
    """The last problem."""
    ui_elements: list[dict[str, Any]] = []
    """Descriptions of the host's user interface elements."""


class HostsList(_Frame, frozen=True, kw_only=True, tag="hosts_list"):
    request_id: str | UnsetType = UNSET
    hosts: list[HostEntry]


class HostRenewed(_Frame, frozen=True, kw_only=True, tag="host_renewed"):
    request_id: str
    host: HostEntry


class Closing(_Frame, frozen=True, kw_only=True, tag="closing"):
    """The last frame of a connection that the server ends."""

    reason: str
    """shutting_down, slow_reader, protocol, overloaded, idle or replaced."""
    message: str | None = None


Request = (
    ToolCall
    | ListTools
    | CancelToolCall
    | Subscribe
    | Unsubscribe
    | ListConfirmations
    | AnswerConfirmation
    | CheckAlive
    | ListHosts
    | RenewHost
)
Answer = (
    ToolResult
    | ToolsList
    | Subscribed
    | Unsubscribed
    | ConfirmationsList
    | ConfirmationResult
    | Alive
    | HostsList
    | HostRenewed
)
Reply = Answer | ToolEvent | Error | Event | Closing

ANSWERS: dict[type, type] = {
    ToolCall: ToolResult,
    ListTools: ToolsList,
    Subscribe: Subscribed,
    Unsubscribe: Unsubscribed,
    ListConfirmations: ConfirmationsList,
    AnswerConfirmation: ConfirmationResult,
    CheckAlive: Alive,
    ListHosts: HostsList,
    RenewHost: HostRenewed,
}
"""The final answer to each request that has one; an `error` may replace it."""
