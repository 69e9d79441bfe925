"""Tools: definition, port, input context and output."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import msgspec

from callgate.core.commands import Launcher
from callgate.core.content import ContentBlock, FileDiff, Label, NativeResult, TextBlock
from callgate.core.effects import Capability, SideEffects, derive
from callgate.core.errors import ToolError, ToolPermissionDenied
from callgate.core.local.environment import Environment, LocalEnvironment, WorkspaceFiles

if TYPE_CHECKING:
    from callgate.core.ids import TraceContext

_log = logging.getLogger("callgate.tool")

ToolKind = Literal["read", "edit", "delete", "move", "search", "execute", "think", "fetch", "other"]
ToolOrigin = Literal["python", "builtin", "host", "mcp", "client", "framework"]


QUERY_PARAMETERS = frozenset({"query", "q", "search", "filter", "keywords", "search_query"})
"""Names of parameters with the words of a search: they reach the service that the tool asks."""


class ToolDefinition(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """snake_case, unique after NFKC and case folding."""
    description: str
    input_schema: dict[str, Any]
    side_effects: SideEffects | None = None
    """The highest class that the tool can reach. Either this or `capabilities` must be set."""
    requires_workspace: bool = True
    capabilities: frozenset[Capability] = frozenset()
    path_params: tuple[str, ...] | None = None
    """Arguments that name files in the workspace; None: determined by their names."""
    destination_params: tuple[str, ...] | None = None
    """Arguments with the destination of an effect: recipients, hosts, accounts, ids. None:
    determined by their names. `()`: the only destination is the service that the settings name.
    """
    output_labels: frozenset[Label] | None = None
    """Labels of its output; None: derived from its source and capabilities."""
    timeout_s: float | None = None
    """None: the default of the class: 60, or 600 for execute and network."""
    max_concurrent: int | None = None
    """Limit of concurrent calls of this tool in one session, in addition to the session's limit."""
    kind: ToolKind = "other"
    tags: frozenset[str] = frozenset()
    required_tags: frozenset[str] = frozenset()
    """The tool is visible only in a session that has all of these tags."""
    hidden_from_workers: bool = False
    aliases: tuple[str, ...] = ()
    argument_aliases: Mapping[str, str] = {}
    """Map from alternative spellings of arguments to the name in the schema. A policy sees only the
    latter.
    """
    source: ToolOrigin = "python"
    sandboxed: bool = False
    """The tool acts only through commands that it passes to the launcher of its context."""
    always_ask: bool = False
    """Every call needs approval by a person, regardless of mode, rules and earlier answers."""
    output_schema: dict[str, Any] | None = None
    """Third-party schema of its result data. The source of the tool validates results."""
    input: Literal["object", "text"] = "object"
    """`text`: the model writes free text, which arrives as the only argument `text`."""

    @property
    def effect(self) -> SideEffects:
        """The declared class; the highest one if nothing is declared."""
        return self.side_effects or derive(self.capabilities) or SideEffects.EXECUTE


class ToolOutput(msgspec.Struct, kw_only=True):
    content: list[ContentBlock]
    success: bool = True
    """False for an error that the tool handled, such as the exit code of a command."""
    metadata: dict[str, Any] = {}
    files_modified: list[str] | None = None
    command_executed: str | None = None
    value: Any = msgspec.UNSET
    """The result as data, if the tool provides it."""
    truncated: bool = False
    diffs: tuple[FileDiff, ...] = ()
    """Changes of text files, for display to people."""
    native: NativeResult | None = None
    """The content in the format of one provider, for its models."""


class Preview(msgspec.Struct, frozen=True):
    """A tool's preview of a call, for the approver.

    A tool's `preview(input, environment)`, sync or async, returns this, a text, or None.
    """

    text: str
    diffs: tuple[FileDiff, ...] = ()


OutputStream = Literal["stdout", "stderr", "text"]


class CancelEvent(asyncio.Event):
    """Set when a call should stop. Records whether the tool has checked it since then."""

    noticed = False

    def is_set(self) -> bool:
        if not super().is_set():
            return False
        self.noticed = True
        return True

    async def wait(self) -> Literal[True]:
        await super().wait()
        self.noticed = True
        return True


class ToolContext:
    """The resources of one execution of a tool. The execute stage creates one per call."""

    __slots__ = (
        "_cancel_event",
        "_environment",
        "_files",
        "_given",
        "_launcher",
        "_logger",
        "scope",
        "session_id",
        "tool_use_id",
        "trace",
        "turn_id",
        "workspace_path",
    )

    def __init__(
        self,
        *,
        session_id: str,
        turn_id: str | None,
        tool_use_id: str,
        workspace_path: str,
        open_files: Callable[[], WorkspaceFiles],
        publish: Callable[[str, Mapping[str, Any]], None],
        cancel_event: asyncio.Event | None = None,
        logger: logging.Logger | logging.LoggerAdapter[logging.Logger] | None = None,
        artifact: Callable[[str], str | None] = lambda name: None,
        launcher: Launcher | None = None,
        scope: Mapping[str, str] | None = None,
    ) -> None:
        self.session_id = session_id
        self.scope = scope
        """The caller's hint about its location, such as a tab of an editor. Not verified."""
        self.turn_id = turn_id
        self.tool_use_id = tool_use_id
        self.trace: TraceContext | None = None
        """The span of this execution, if telemetry is on."""
        self.workspace_path = workspace_path
        self._cancel_event = cancel_event
        self._logger = logger
        self._files: WorkspaceFiles | None = None
        self._environment: Environment | None = None
        self._launcher = launcher
        self._given = (open_files, publish, artifact)

    def _open_files(self) -> WorkspaceFiles:
        return self._given[0]()

    def _open_environment(self) -> Environment:
        return LocalEnvironment(self.workspace_files)

    def _publish(self, event_type: str, payload: Mapping[str, Any]) -> None:
        self._given[1](event_type, payload)

    def _artifact(self, name: str) -> str | None:
        return self._given[2](name)

    # Created on first use: most calls use few of these.

    @property
    def cancel_event(self) -> asyncio.Event:
        """Set when the call should stop. A long tool checks it between its steps."""
        if self._cancel_event is None:
            self._cancel_event = CancelEvent()
        return self._cancel_event

    @property
    def noticed_cancel(self) -> bool:
        """Whether the tool has checked `cancel_event` since it was set."""
        return getattr(self._cancel_event, "noticed", False)

    @property
    def logger(self) -> logging.Logger | logging.LoggerAdapter[logging.Logger]:
        if self._logger is None:
            self._logger = logging.LoggerAdapter(_log, {"tool_use_id": self.tool_use_id})
        return self._logger

    @property
    def workspace_files(self) -> WorkspaceFiles:
        if self._files is None:
            self._files = self._open_files()
        return self._files

    @property
    def environment(self) -> Environment:
        """Text files as the session's client sees them: from its editor, or from the disk."""
        if self._environment is None:
            self._environment = self._open_environment()
        return self._environment

    @property
    def launcher(self) -> Launcher:
        """The only way to start a command. It applies the sandbox of the call."""
        if self._launcher is None:
            raise ToolPermissionDenied(
                "No command can be started here.", reason="sandbox_unavailable"
            )
        return self._launcher

    @property
    def traceparent(self) -> str | None:
        """Trace context for requests and processes of the tool; None if telemetry is off."""
        return None if self.trace is None else self.trace.traceparent

    @property
    def may_write(self) -> bool:
        """Whether the call may change files, according to the mode of its session and its tool's
        declaration.
        """
        return True

    def progress(self, message: str | None = None, fraction: float | None = None) -> None:
        """Report progress; `fraction` runs from 0 to 1."""
        self._publish("tool.progress", {"message": message, "fraction": fraction})

    def output(self, text: str, stream: OutputStream = "text") -> None:
        """Stream a piece of output during the work."""
        self._publish("tool.output_delta", {"stream": stream, "text": text})

    def publish(self, event_type: str, payload: Mapping[str, Any]) -> None:
        """Publish another event during the work."""
        self._publish(event_type, payload)

    def backpressure(self) -> asyncio.Future[None] | None:
        """Return a future to wait for before more output; None: the caller keeps up."""
        return None

    def artifact(self, name: str) -> str | None:
        """Return the path of a file for large output; None if no artifacts are stored."""
        return self._artifact(name)


class CannotSucceed(Exception):
    """Raised by a preview: the call would end with `error`, so no approval is requested."""

    def __init__(self, error: ToolError, shown: str | None = None) -> None:
        """`shown`: the full reason, for the result."""
        super().__init__(str(error))
        self.error = error
        self.partial: ToolOutput | None = None
        if shown is not None:
            self.partial = ToolOutput(content=[TextBlock(shown)], success=False)


@runtime_checkable
class Tool(Protocol):
    """Implemented by every tool of any source. One instance serves one call."""

    @property
    def definition(self) -> ToolDefinition: ...

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        """Run with validated input. Raise a `ToolError` to fail with a message for the agent."""
        ...

    async def cancel(self) -> bool:
        """Abort. Return True if the tool ends its work itself; False if there is no work to end."""
        ...


ToolFactory = Callable[[], Tool]
