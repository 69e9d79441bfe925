"""The values of the HTTP contract, and their conversion from callgate's values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from callgate.core.calls import Diagnostic, ErrorInfo, ToolResult
from callgate.core.content import ContentBlock
from callgate.core.sessions import Mode
from callgate.core.stored import StoredSession
from callgate.dispatch.permission.confirmations import Confirmation
from callgate.protocol.provider_shapes import MCP_CONTENT
from callgate.protocol.socket_v1.values import TOLD_ELSEWHERE
from callgate.runtime import Registered

_TOLD_ELSEWHERE = (*TOLD_ELSEWHERE, MCP_CONTENT)

Directory = Annotated[str, Meta(pattern=r"^/[^\x00]*$", max_length=4096)]
"""An absolute path."""
Limit = Annotated[int, Meta(ge=1, le=500)]
"""Maximum number of rows of a page."""
Moment = Annotated[float, Meta(ge=0, lt=1e11)]
"""Unix time in seconds."""


class Value(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Input(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Input of a request; unknown fields are refused."""


class Result(Value, frozen=True, kw_only=True):
    call_id: str
    tool: str
    ok: bool
    content: list[ContentBlock]
    value: Any = None
    error: ErrorInfo | None = None
    files_modified: list[str] | None = None
    command_executed: str | None = None
    truncated: bool
    partial: bool
    duration_ms: float
    diagnostics: list[str | Diagnostic]
    meta: Mapping[str, Any] = {}
    """Other output of the tool; `display` is its result for a screen."""


class Tool(Value, frozen=True, kw_only=True):
    name: str
    description: str
    input_schema: Mapping[str, Any]
    side_effects: str
    capabilities: list[str]
    source: str
    kind: str
    destructive: bool
    timeout_s: float
    hidden: str | UnsetType = UNSET
    """The reason why the session does not see it."""


class Session(Value, frozen=True, kw_only=True):
    id: str
    title: str | None
    workspace: str
    mode: Mode
    created_at: float
    updated_at: float
    last_seq: int
    messages: int
    turn_id: str | None
    labels: Mapping[str, str] = {}
    """Kinds of content that it has read (`private`, `untrusted`), with the first such call."""
    owned: bool
    """Whether a process owns it."""
    live: bool
    """Whether it is live in this instance."""
    server: str | None = None
    """The label of the server that owns it; None if no server does."""
    client: str | None = None
    """The client that opened it; None if unknown."""
    first_tool: str | None = None
    """The tool of its first call; None for a session with a title."""


class SessionDetail(Session, frozen=True, kw_only=True):
    attach_token: str
    """Valid once, for a minute."""
    confirmations: list[Confirmation]


CallState = Literal["asked", "running", "ok", "failed", "denied", "cancelled", "invalid"]


class CallRow(Value, frozen=True, kw_only=True):
    id: str
    session_id: str
    turn_id: str | None
    tool: str
    caller: str
    state: CallState
    side_effects: str | None
    summary: str
    """Redacted summary of the arguments."""
    at: float
    """Time of the end, or of the start if the call runs."""
    client: str | None = None
    """The program of the caller; None if unknown."""
    duration_ms: float | UnsetType = UNSET
    """Duration without the wait for approval."""
    waited_ms: float | UnsetType = UNSET
    """Wait for approval."""
    error_class: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    """The reason code of its error."""
    message: str | UnsetType = UNSET
    """The beginning of a failed or refused call's error message; redacted."""
    policy: str | UnsetType = UNSET


def result_of(result: ToolResult) -> Result:
    return Result(
        call_id=result.call_id,
        tool=result.tool,
        ok=result.ok,
        content=result.content,
        value=result.value,
        error=result.error,
        files_modified=result.files_modified,
        command_executed=result.command_executed,
        truncated=result.truncated,
        partial=result.partial,
        duration_ms=result.duration_ms,
        diagnostics=list(result.diagnostics),
        meta={key: value for key, value in result.meta.items() if key not in _TOLD_ELSEWHERE},
    )


def tool_of(tool: Registered, hidden: str | None) -> Tool:
    definition = tool.definition
    return Tool(
        name=tool.name,
        description=definition.description,
        input_schema=definition.input_schema,
        side_effects=tool.effect,
        capabilities=list(tool.capability_names),
        source=definition.source,
        kind=definition.kind,
        destructive=tool.destructive,
        timeout_s=tool.timeout_s,
        hidden=UNSET if hidden is None else hidden,
    )


def session_of(stored: StoredSession, *, live: bool, server: str | None = None) -> Session:
    return Session(**session_fields(stored, live=live, server=server))


def session_fields(
    stored: StoredSession, *, live: bool, server: str | None = None
) -> dict[str, Any]:
    return {
        "id": stored.id,
        "title": stored.title,
        "workspace": stored.workspace,
        "mode": stored.mode,
        "created_at": stored.created_at,
        "updated_at": stored.updated_at,
        "last_seq": stored.last_seq,
        "messages": stored.messages,
        "turn_id": stored.turn_id,
        "labels": stored.labels,
        "owned": stored.owner is not None,
        "live": live,
        "server": server,
    }
