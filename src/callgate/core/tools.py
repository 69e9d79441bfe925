"""What a tool is: its definition, the port it implements, what it is given and gives back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import msgspec

from callgate.core.commands import Launcher
from callgate.core.content import ContentBlock, FileDiff, Label, NativeResult
from callgate.core.effects import Capability, SideEffects, derive
from callgate.core.environment import Environment, LocalEnvironment, WorkspaceFiles
from callgate.core.errors import ToolPermissionDenied

if TYPE_CHECKING:
    from callgate.core.text.traces import TraceContext

_log = logging.getLogger("callgate.tool")

ToolKind = Literal["read", "edit", "delete", "move", "search", "execute", "think", "fetch", "other"]
ToolOrigin = Literal["python", "builtin", "host", "mcp", "client", "framework"]


class ToolDefinition(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """snake_case, unique after NFKC and case folding."""
    description: str
    input_schema: dict[str, Any]
    side_effects: SideEffects | None = None
    """The highest class the tool can reach. One of this and `capabilities` must be given."""
    requires_workspace: bool = True
    capabilities: frozenset[Capability] = frozenset()
    path_params: tuple[str, ...] | None = None
    """Arguments that name files in the workspace; None means: found by their names."""
    destination_params: tuple[str, ...] | None = None
    """Arguments that say where an effect goes: recipients, hosts, accounts, ids; None means: found
    by their names. None of them, `()`: it goes to the one service that the settings name."""
    output_labels: frozenset[Label] | None = None
    """What its output is; None means: as its source and capabilities suggest."""
    timeout_s: float | None = None
    """None means the default of the class: 60, or 600 for execute and network."""
    max_concurrent: int | None = None
    """Calls of this tool at once in one session, beside the session's own cap."""
    kind: ToolKind = "other"
    tags: frozenset[str] = frozenset()
    required_tags: frozenset[str] = frozenset()
    """The tool is visible only in a session that has all of these."""
    hidden_from_workers: bool = False
    aliases: tuple[str, ...] = ()
    argument_aliases: Mapping[str, str] = {}
    """Other spellings of arguments, to the name in the schema; a policy sees that one alone."""
    source: ToolOrigin = "python"
    sandboxed: bool = False
    """All that it does is done by commands that it gives to the launcher of its context."""
    always_ask: bool = False
    """It runs only after a person said yes to this very call, whatever the mode, a rule or an
    earlier answer says."""
    output_schema: dict[str, Any] | None = None
    """What its results are like as data, where a stranger says so: who runs it checks that."""
    input: Literal["object", "text"] = "object"
    """`text`: the model writes free text, which arrives as the only argument `text`."""

    @property
    def effect(self) -> SideEffects:
        """What it declares; at worst, what a tool can do that declares nothing."""
        return self.side_effects or derive(self.capabilities) or SideEffects.EXECUTE


class ToolOutput(msgspec.Struct, kw_only=True):
    content: list[ContentBlock]
    success: bool = True
    """False for an error the tool handled itself, such as a command's exit code."""
    metadata: dict[str, Any] = {}
    files_modified: list[str] | None = None
    command_executed: str | None = None
    value: Any = msgspec.UNSET
    """The result as data, where the tool has one."""
    truncated: bool = False
    diffs: tuple[FileDiff, ...] = ()
    """What changed in text files, for people to look at."""
    native: NativeResult | None = None
    """The content in the words of one provider, for its models."""


class Preview(msgspec.Struct, frozen=True):
    """What allowing a call would do, as its tool says: `preview(input, environment)` returns
    this, a text, or None; it may be async."""

    text: str
    diffs: tuple[FileDiff, ...] = ()


OutputStream = Literal["stdout", "stderr", "text"]


class CancelEvent(asyncio.Event):
    """Set when a call should stop. It remembers whether the tool has looked at it since."""

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
    """What one execution of a tool may use. Made by the execute stage, one per call."""

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
        """What the caller says of where it is, such as a tab of an editor: a hint, no proof."""
        self.turn_id = turn_id
        self.tool_use_id = tool_use_id
        self.trace: TraceContext | None = None
        """The span of this execution, where telemetry is on."""
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

    # Made when first asked for: most calls use few of these.

    @property
    def cancel_event(self) -> asyncio.Event:
        """Set when the call is to stop. A long tool looks at it between its steps."""
        if self._cancel_event is None:
            self._cancel_event = CancelEvent()
        return self._cancel_event

    @property
    def noticed_cancel(self) -> bool:
        """Whether the tool has looked at `cancel_event` since it was set."""
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
        """Text files as the session's client sees them: its editor's, or those on the disk."""
        if self._environment is None:
            self._environment = self._open_environment()
        return self._environment

    @property
    def launcher(self) -> Launcher:
        """The one way to start a command, with around it what is to be around this call's."""
        if self._launcher is None:
            raise ToolPermissionDenied(
                "Nothing here may start a command.", reason="sandbox_unavailable"
            )
        return self._launcher

    @property
    def traceparent(self) -> str | None:
        """For whatever the tool asks or starts; None where telemetry is off."""
        return None if self.trace is None else self.trace.traceparent

    @property
    def may_write(self) -> bool:
        """Whether the call may change files: the mode of its session and what its tool declares
        decide."""
        return True

    def progress(self, message: str | None = None, fraction: float | None = None) -> None:
        """Say how far the work is; `fraction` runs from 0 to 1."""
        self._publish("tool.progress", {"message": message, "fraction": fraction})

    def output(self, text: str, stream: OutputStream = "text") -> None:
        """Stream a piece of output while the work goes on."""
        self._publish("tool.output_delta", {"stream": stream, "text": text})

    def publish(self, event_type: str, payload: Mapping[str, Any]) -> None:
        """Say something else while the work goes on."""
        self._publish(event_type, payload)

    def backpressure(self) -> asyncio.Future[None] | None:
        """A future to wait for before more output is produced; None: the caller reads."""
        return None

    def artifact(self, name: str) -> str | None:
        """A file of this call's own for output too large to show; None where none is kept."""
        return self._artifact(name)


@runtime_checkable
class Tool(Protocol):
    """Implemented by every tool, whatever runs behind it. One instance serves one call."""

    @property
    def definition(self) -> ToolDefinition: ...

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        """Run with validated input. Raise a `ToolError` to fail with words for the agent."""
        ...

    async def cancel(self) -> bool:
        """Abort. True if the tool ends its work itself; False if there is nothing to end."""
        ...


ToolFactory = Callable[[], Tool]
