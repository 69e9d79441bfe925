"""One request to run one tool once, and who makes it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from callgate.core.clients import Client
from callgate.core.ids import call_id
from callgate.core.sessions import Session

if TYPE_CHECKING:  # whoever runs a call has it loaded
    from callgate.core.pacing.backpressure import Backpressure
    from callgate.core.text.traces import TraceContext
    from callgate.core.tools import ToolFactory


class CallerKind(StrEnum):
    """Who stands behind a surface. A surface states it; a message never does."""

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
        """In-process user interface and our own code: what would be asked runs."""
        return self is CallerKind.INTERNAL or self is CallerKind.RENDERER


class Runner(msgspec.Struct, frozen=True):
    """Who does the work of a call in place of its tool. All else stays the tool's: schema, places,
    policy, question, record."""

    factory: ToolFactory
    place: str | None = None
    """Where the work is done, if not here: then nothing of ours is around its commands."""
    takes_slot: bool = True
    """Whether it counts among the calls of its session that run at once. Work that others wait
    for, and that may wait for them, must not."""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    tool: str
    arguments: Any
    session: Session
    caller: CallerKind = CallerKind.LIBRARY
    id: str = msgspec.field(default_factory=call_id)
    external_id: str | None = None
    """The caller's own id for the call, meaningful on its connection only."""
    tool_use_id: str | None = None
    """The id by which an agent's blocks and the events know the call; None: our own."""
    turn_id: str | None = None
    """None for a direct call. A question of a turn waits for someone to attach."""
    timeout_s: float | None = None
    answer_s: float | None = None
    """How long a question about it waits for its answer, at most; None: as the settings say."""
    parent_event_id: str | None = None
    repaired: bool = False
    """It was read from a text that had to be mended: if it has effects, a person is asked."""
    scope: Mapping[str, str] | None = None
    """Opaque hints of the surface, such as a tab; they reach the audit record."""
    principal: str = "local"
    """Who makes it, a person or service; `local` is the user of this home."""
    client: Client | None = None
    """Who makes it, as the surface found it; None: the client of the session."""
    trace: TraceContext | None = None
    """The span of its caller, where telemetry is on."""
    runner: Runner | None = None
    """Only a surface of this process gives one; no message does."""
    backpressure: Backpressure | None = None
    """Of the connection that the call's output goes to; None: nobody is waited for."""

    @property
    def requested_tool(self) -> str:
        """Name of the requested tool as text; a caller in Python may pass any object."""
        return self.tool if isinstance(self.tool, str) else f"<{type(self.tool).__name__}>"

    @property
    def shown_id(self) -> str:
        return self.tool_use_id or self.id
