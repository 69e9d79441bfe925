"""A call and its result: one request to run one tool once, its caller, and its outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from callgate.core.content import ContentBlock, FileDiff, NativeResult, TextBlock, ToolResultBlock
from callgate.core.errors import ToolError, ToolErrorClass, safe_message
from callgate.core.ids import call_id
from callgate.core.sessions import Client, Session

if TYPE_CHECKING:
    from callgate.core.ids import TraceContext
    from callgate.core.tasks import Backpressure
    from callgate.core.tools import Tool, ToolFactory


class CallerKind(StrEnum):
    """The kind of caller behind a surface. The surface sets it, never a message."""

    CLI = "cli"
    PLUGIN = "plugin"
    AGENT = "agent"
    LLM = "llm"
    ACP = "acp"
    HTTP = "http"
    MCP = "mcp"
    LIBRARY = "library"
    RENDERER = "renderer"
    INTERNAL = "internal"

    @property
    def trusted(self) -> bool:
        """In-process user interface and callgate's own code: calls run instead of asking for
        approval.
        """
        return self is CallerKind.INTERNAL or self is CallerKind.RENDERER


class Handover(msgspec.Struct, frozen=True):
    """Work that another process or object does instead of the call's tool.

    Only a surface of this process attaches a handover; no message carries one. Schema, paths,
    policy,
    question and record are those of the tool.
    """

    work: Callable[[ToolFactory], Tool]
    """Creates the replacement. It receives the tool's own factory, for work that wraps the tool."""
    place: str | None = None
    """Label of the location outside callgate's sandbox that does the work; None: here, inside the
    sandbox of the tool.
    """
    takes_slot: bool = True
    """Whether the work counts among the concurrent calls of its session. Work that other calls
    wait for, or that may never report its end, does not."""
    is_understood: bool = True
    """Whether the input was fully understood. If not, the call needs approval in every mode."""
    is_containable: bool = False
    """Whether the work would run in callgate's sandbox if the settings allowed read-only commands.
    """
    previews: bool = False
    """Whether the replacement has its own preview; otherwise the tool's preview appears."""
    purpose: str = ""
    """The occasion of the call, in a sentence for the approver."""


AGENTS_PROCESS = "the agent's own process, outside the sandbox"


def no_work(factory: ToolFactory) -> Tool:
    """Refuse to run: the process that the call was handed to does the work."""
    raise ValueError("only the process that the call was handed to can do its work")


BY_ITS_AGENT = Handover(no_work, place=AGENTS_PROCESS, takes_slot=False)
"""For calls that callgate only examines: a third-party agent would do the work."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    tool: str
    arguments: Any
    session: Session
    caller: CallerKind = CallerKind.LIBRARY
    id: str = msgspec.field(default_factory=call_id)
    external_id: str | None = None
    """The caller's own id for the call, meaningful on its connection only."""
    tool_use_id: str | None = None
    """The id of the call in events and an agent's blocks; None: `id`."""
    turn_id: str | None = None
    """None for a direct call. A question of a turn waits for an approver to attach."""
    timeout_s: float | None = None
    answer_s: float | None = None
    """Maximum wait for an answer to its question; None: as in the settings."""
    parent_event_id: str | None = None
    repaired: bool = False
    """The call was parsed from repaired text: if it has effects, it needs approval."""
    scope: Mapping[str, str] | None = None
    """Opaque hints of the surface, such as a tab; the audit record contains them."""
    principal: str = "local"
    """The person or service that makes the call; `local` is the user of this home."""
    client: Client | None = None
    """The client, as the surface identified it; None: the client of the session."""
    trace: TraceContext | None = None
    """The span of its caller, if telemetry is on."""
    handover: Handover | None = None
    """The replacement for the tool's work; None: the tool does it."""
    backpressure: Backpressure | None = None
    """Backpressure of the connection that receives the call's output; None: output never waits."""

    @property
    def requested_tool(self) -> str:
        """Name of the requested tool as text; a caller in Python may pass any object."""
        return self.tool if isinstance(self.tool, str) else f"<{type(self.tool).__name__}>"

    @property
    def shown_id(self) -> str:
        return self.tool_use_id or self.id


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    error_class: ToolErrorClass = msgspec.field(name="class")
    message: str
    reason: str | None = None
    details: Any = None
    """Any JSON value, for programs."""
    user_visible: bool = True
    correlation_id: str | None = None
    """Id of the traceback in the log, if the message hides the details."""

    @classmethod
    def of(cls, error: ToolError, tool: str, correlation_id: str | None = None) -> ErrorInfo:
        return cls(
            error_class=error.error_class,
            message=error.message if error.is_user_visible else safe_message(error, tool),
            reason=error.reason,
            details=error.details,
            user_visible=error.is_user_visible,
            correlation_id=None if error.is_user_visible else correlation_id,
        )

    @property
    def detail_fields(self) -> Mapping[str, Any]:
        """The details if they are an object, otherwise an empty one."""
        return self.details if isinstance(self.details, Mapping) else {}


class Diagnostic(msgspec.Struct, frozen=True):
    """A warning or error about a result."""

    message: str
    level: Literal["warn", "error"] = "warn"

    def __str__(self) -> str:
        return f"{self.level}: {self.message}"


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a call. `ok`: no error, and the tool did not report failure."""

    call_id: str
    tool: str
    ok: bool
    content: list[ContentBlock]
    """Never empty: the message of an error, or an empty text for a success without output."""
    value: Any = None
    error: ErrorInfo | None = None
    diagnostics: tuple[str | Diagnostic, ...] = ()
    """Remarks about the result; a plain text is for information."""
    meta: Mapping[str, Any] = {}
    files_modified: list[str] | None = None
    command_executed: str | None = None
    partial: bool = False
    """The work was stopped; the content is the output up to then."""
    truncated: bool = False
    duration_ms: float = 0.0
    diffs: tuple[FileDiff, ...] = ()
    native: NativeResult | None = None
    """The content in the format of one provider, for its models."""

    @property
    def text(self) -> str:
        """All text blocks, joined."""
        return "\n".join(block.text for block in self.content if isinstance(block, TextBlock))

    def block(self, tool_use_id: str) -> ToolResultBlock:
        """Return the result as a content block, for an agent loop."""
        return ToolResultBlock(
            tool_use_id=tool_use_id,
            content=self.content,
            is_error=not self.ok,
            duration_ms=self.duration_ms or msgspec.UNSET,
            diffs=self.diffs,
            native=self.native,
        )
