"""Runners for the calls of an agent behind the proxy, and its terminals.

Each runner serves one call. A terminal is a command that callgate runs. Its output is stored until
the agent releases it.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, NamedTuple

from callgate.core.commands import Command, Exit, Launcher, OnOutput, Running, Stream
from callgate.core.content import TextBlock
from callgate.core.effects import SideEffects
from callgate.core.errors import ToolError
from callgate.core.tools import ToolContext, ToolDefinition, ToolOutput
from callgate.dispatch.commands.launchers import WrappedRunning
from callgate.features.agents.hooks.inputs import SHELLS, command_text
from callgate.features.agents.proxy.messages import AGENT_ACTION, absolute
from callgate.protocol.acp.client_requests import CreateTerminal, TerminalExit, TerminalState
from callgate.sandbox.plans import child_environment
from callgate.tools.files import ReadFile
from callgate.tools.shell import Shell
from callgate.workspace.excerpts import replace_once
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.preserving import Preserved, preserving

MOST_TERMINALS = 64
"""Maximum number of open terminals in a session."""
MOST_OUTPUT = 1024 * 1024
"""Maximum stored output of a terminal in bytes; the agent may set a lower limit."""

_HARMLESS = frozenset(
    (
        "TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI", "TZ",
        "LANG", "LANGUAGE", "COLUMNS", "LINES", "GIT_TERMINAL_PROMPT", "CLAUDECODE", "GEMINI_CLI",
    )
)  # fmt: skip
"""Variables that select neither programs nor files, with any value."""
_PAGERS = frozenset({"PAGER", "GIT_PAGER", "MANPAGER", "GH_PAGER"})
_MOVE = re.compile(r"cd ('[^'\n]+'|[\w./-]+) && (.+)\Z", re.DOTALL)
"""A command line that first changes the directory."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class Terminal:
    def __init__(self, id: str, limit: int | None) -> None:
        self.id = id
        self.call_id = ""
        self.started = asyncio.Event()
        self.ended = asyncio.Event()
        self.tool_call_id: str | None = None
        """The agent's card that shows the terminal."""
        self._limit = MOST_OUTPUT if limit is None else min(limit, MOST_OUTPUT)
        self._output = bytearray()
        self._truncated = False
        self._exit: TerminalExit | None = None

    def add(self, data: bytes) -> None:
        """Append output, and drop the oldest bytes beyond the limit."""
        self._output += data
        excess = len(self._output) - self._limit
        if excess > 0:
            del self._output[:excess]
            self._truncated = True

    def end(self, ended: Exit | None) -> None:
        """Record the end of the command. Idempotent: the first end counts."""
        if self._exit is None:
            code = None if ended is None else ended.code
            name = None if ended is None else _signal_name(ended.signal)
            if code is None and name is None:
                name = signal.Signals.SIGKILL.name  # it never started, or its end is unknown
            self._exit = TerminalExit(exit_code=code, signal=name)
        self.ended.set()

    def state(self) -> TerminalState:
        return TerminalState(output=self.text, truncated=self._truncated, exit_status=self._exit)

    @property
    def text(self) -> str:
        """The stored output, truncated at a character boundary."""
        start = 0
        while self._truncated and start < 4 and self._output[start : start + 1] > b"\x7f":
            if self._output[start] >= 0xC0:
                break
            start += 1
        return bytes(self._output[start:]).decode("utf-8", "replace")

    @property
    def exit(self) -> TerminalExit:
        assert self._exit is not None
        return self._exit


def _signal_name(number: int | None) -> str | None:
    if number is None:
        return None
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def shell_arguments(request: CreateTerminal, workspace: str) -> dict[str, str]:
    """Return the arguments of the `shell` call for a terminal.

    The command contains everything that runs, so that policy and approver see all of it.
    """
    words = [request.command, *request.args]
    line = command_text(words if request.args else request.command) or ""
    exports = [
        f"export {each.name}={shlex.quote(each.value)}"
        for each in request.env
        if not _is_harmless(each.name, each.value)
    ]
    cwd = absolute(request.cwd or workspace, workspace)
    moved = _MOVE.match(line)
    if moved is not None:  # so that rules match the command without `cd`
        cwd, line = absolute(shlex.split(moved[1])[0], cwd), moved[2]
    arguments = {"command": "\n".join([*exports, line])}
    return arguments if cwd == workspace else {**arguments, "cwd": cwd}


def bad_variable(request: CreateTerminal) -> str | None:
    """Return the first invalid variable name, or None."""
    return next((each.name for each in request.env if not _NAME.match(each.name)), None)


def environment(request: CreateTerminal) -> Mapping[str, str]:
    """Return the usual environment of commands, with the agent's harmless variables."""
    wanted = {each.name: each.value for each in request.env if _is_harmless(each.name, each.value)}
    return {**child_environment(os.environ), **wanted}


def _is_harmless(name: str, value: str) -> bool:
    if name == "SHELL":
        return value in SHELLS
    return name in _HARMLESS or name.startswith("LC_") or (name in _PAGERS and value == "cat")


AGENT_TURN = "agent_turn"
_MOST_NAMED = 1_000


class ExactRead:
    definition = ReadFile.definition

    def __init__(self, line: int | None, limit: int | None) -> None:
        self._line, self._limit = line, limit
        self.text = ""

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        self.text = await context.environment.read_text(
            input["path"], line=self._line, limit=self._limit
        )
        summary = f"{len(self.text):,} characters, as they are"
        return ToolOutput(content=[TextBlock(summary)], metadata={"characters": len(self.text)})

    async def cancel(self) -> bool:
        return False


class TerminalRun:
    definition = Shell.definition

    def __init__(self, terminal: Terminal, environment: Mapping[str, str]) -> None:
        self._terminal = terminal
        self._environment = environment
        self._shell: Shell | None = None

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        launcher = _Recorded(context.launcher, self._terminal)
        self._shell = Shell(launcher, environment=self._environment)
        return await self._shell.execute(input, context)

    async def cancel(self) -> bool:
        return self._shell is not None and await self._shell.cancel()


class _Recorded:
    """A launcher whose commands also write to a terminal."""

    def __init__(self, launcher: Launcher, terminal: Terminal) -> None:
        self._launcher, self._terminal = launcher, terminal
        self.records_changes = getattr(launcher, "records_changes", False)

    async def start(self, command: Command, on_output: OnOutput) -> Running:
        def hear(stream: Stream, data: bytes) -> None:
            self._terminal.add(data)
            on_output(stream, data)

        running = await self._launcher.start(command, hear)
        self._terminal.started.set()
        return _Watched(running, self._terminal)


class _Watched(WrappedRunning):
    """A command that reports its end to a terminal."""

    def __init__(self, running: Running, terminal: Terminal) -> None:
        super().__init__(running)
        self._terminal = terminal

    async def wait(self) -> Exit:
        ended = await self._running.wait()
        self._terminal.end(ended)
        return ended


class AgentWork:
    """Work that the agent does itself, in its own sandbox.

    `started` is set once the work is allowed. The contents of a file before an allowed change are
    preserved for undo.
    """

    def __init__(self, definition: ToolDefinition) -> None:
        self.definition = definition
        self.started = asyncio.Event()
        self.becomes: str | None = None
        """The file's complete new text, if the work changes one file."""
        self._ended: asyncio.Future[_End] = asyncio.get_running_loop().create_future()

    def end(self, *, success: bool, how: str, is_done_by_agent: bool = True) -> None:
        """End the work with its outcome. Idempotent. `is_done_by_agent`: the agent did the work."""
        if not self._ended.done():
            self._ended.set_result(_End(success, how, is_done_by_agent))

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        self.becomes = await _text_after(self.definition.name, input, context)
        async with self._preserving(input, context) as preserved:
            self.started.set()
            ended = await self._ended
            if preserved is not None and not ended.is_done_by_agent:
                preserved.discard()
        command, path = input.get("command"), input.get("path")
        writes = (
            self.definition.effect is SideEffects.WRITE and ended.success and ended.is_done_by_agent
        )
        return ToolOutput(
            content=[TextBlock(ended.how)],
            success=ended.success,
            command_executed=command if isinstance(command, str) else None,
            files_modified=[_named(path, context)] if writes and path else None,
        )

    def _preserving(
        self, input: dict[str, Any], context: ToolContext
    ) -> AbstractAsyncContextManager[Preserved | None]:
        files = context.workspace_files
        if self.becomes is None or not isinstance(files, WorkspaceFileAPI):
            return nullcontext()
        return preserving(files, [input["path"]])

    async def cancel(self) -> bool:
        self.end(success=False, how="Stopped.")
        return True


class _End(NamedTuple):
    success: bool
    how: str
    is_done_by_agent: bool


def _named(path: str, context: ToolContext) -> str:
    """Return a path relative to the workspace, or absolute outside it."""
    named = os.path.relpath(path, context.workspace_path)
    return path if named.startswith("..") else named


async def _text_after(tool: str, input: dict[str, Any], context: ToolContext) -> str | None:
    if tool == "write_file":
        return str(input["content"])
    if tool != "patch_file":
        return None
    try:
        text = await context.environment.read_text(input["path"])
        return replace_once(text, input["old"], input["new"])
    except ToolError:
        return None  # a different change of the agent is checked separately


class AgentAction:
    """An action of an agent that callgate cannot identify. It needs approval each time."""

    definition = ToolDefinition(
        name=AGENT_ACTION,
        description="An action of an agent behind the proxy, which the agent performs itself.",
        input_schema={
            "type": "object",
            "properties": {"title": {"type": "string"}, "details": {"type": "object"}},
            "required": ["title"],
        },
        side_effects=SideEffects.EXECUTE,
        path_params=(),
        always_ask=True,
        source="builtin",
    )

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        return ToolOutput(content=[TextBlock("Nothing was done.")], success=False)

    async def cancel(self) -> bool:
        return False


class AgentTurn:
    """Report on a turn of an agent behind the proxy, without any effect."""

    definition = ToolDefinition(
        name=AGENT_TURN,
        description="Report on the changes that an agent behind the proxy made in one turn.",
        input_schema={
            "type": "object",
            "properties": {"agent": {"type": "string"}, "changes": {"type": "integer"}},
            "required": ["agent", "changes"],
        },
        side_effects=SideEffects.NONE,
        path_params=(),
        source="builtin",
    )

    def __init__(
        self,
        files: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        remarks: list[str] | None = None,
    ) -> None:
        self._files, self._metadata, self._remarks = files or [], metadata or {}, remarks or []

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        changed = len(self._files)
        summary = f"The agent changed {changed:,} files by itself." if changed else "No changes."
        return ToolOutput(
            content=[TextBlock("\n".join([summary, *self._remarks]))],
            files_modified=self._files[:_MOST_NAMED] or None,
            metadata=self._metadata,
        )

    async def cancel(self) -> bool:
        return False
