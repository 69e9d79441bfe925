"""What does the work of a call that an agent behind the proxy made; each serves one call.

ExactRead    read_file   the whole text, not what a model is shown of it
TerminalRun  shell       a command of ours, with a terminal that holds its output
AgentWork    any tool    the agent does it itself; the call ends when the agent says so
TurnReport   agent_turn  what changed in the workspace although nobody asked for it
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

from callgate.core.commands import GRACE_S, Command, Exit, Launcher, OnOutput, Running, Stream
from callgate.core.content import TextBlock
from callgate.core.effects import SideEffects
from callgate.core.environment import off_loop, off_loop_surely
from callgate.core.errors import ToolError
from callgate.core.tools import ToolContext, ToolDefinition, ToolOutput
from callgate.surfaces.acp_proxy.judging import AGENT_ACTION
from callgate.surfaces.acp_proxy.terminals import Terminal
from callgate.tools.files import ReadFile
from callgate.tools.shell import Shell
from callgate.workspace.edits import replace_once
from callgate.workspace.files import WorkspaceFileAPI

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
    """A launcher whose commands write into a terminal, too."""

    def __init__(self, launcher: Launcher, terminal: Terminal) -> None:
        self._launcher, self._terminal = launcher, terminal

    async def start(self, command: Command, on_output: OnOutput) -> Running:
        def hear(stream: Stream, data: bytes) -> None:
            self._terminal.add(data)
            on_output(stream, data)

        running = await self._launcher.start(command, hear)
        self._terminal.started.set()
        return _Watched(running, self._terminal)


class _Watched:
    """A command whose end its terminal hears of."""

    def __init__(self, running: Running, terminal: Terminal) -> None:
        self._running, self._terminal = running, terminal

    async def __aenter__(self) -> Self:
        await self._running.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._running.__aexit__(kind, error, traceback)

    async def wait(self) -> Exit:
        ended = await self._running.wait()
        self._terminal.end(ended)
        return ended

    def stop(self, grace: float = GRACE_S) -> bool:
        return self._running.stop(grace)


class AgentWork:
    """Started means: it may. Whatever the agent then does, it does inside its own sandbox. What a
    file was before a change that it was allowed is kept, so that it can be undone."""

    def __init__(self, definition: ToolDefinition) -> None:
        self.definition = definition
        self.started = asyncio.Event()
        self.becomes: str | None = None
        """The whole text that a file is to have, where the work is a change of one file."""
        self._ended: asyncio.Future[_End] = asyncio.get_running_loop().create_future()

    def end(self, *, success: bool, how: str, by_agent: bool = True) -> None:
        """The agent said how it went, or nobody waits for that any more. Idempotent. `by_agent`:
        it did it itself, if anybody did."""
        if not self._ended.done():
            self._ended.set_result(_End(success, how, by_agent))

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        self.becomes = await _text_after(self.definition.name, input, context)
        withdraw = await _expect(self.becomes, input, context)
        self.started.set()
        ended = _End(False, "Stopped.", True)
        try:
            ended = await self._ended
        finally:
            if not ended.success or not ended.by_agent:
                await off_loop_surely(withdraw)
        command, path = input.get("command"), input.get("path")
        writes = self.definition.effect is SideEffects.WRITE and ended.success and ended.by_agent
        return ToolOutput(
            content=[TextBlock(ended.how)],
            success=ended.success,
            command_executed=command if isinstance(command, str) else None,
            files_modified=[_named(path, context)] if writes and path else None,
        )

    async def cancel(self) -> bool:
        self.end(success=False, how="Stopped.")
        return True


class _End(NamedTuple):
    success: bool
    how: str
    by_agent: bool


async def _expect(
    becomes: str | None, input: dict[str, Any], context: ToolContext
) -> Callable[[], None]:
    """Have the file kept as it is now; what is returned takes that back."""
    files = context.workspace_files
    if becomes is None or not isinstance(files, WorkspaceFileAPI):
        return lambda: None
    return await off_loop(files.expect, input["path"], becomes.encode("utf-8", "replace"))


def _named(path: str, context: ToolContext) -> str:
    """From the workspace, or absolute where it lies in another root."""
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
        return None  # what the agent will do instead is judged when it does it


class AgentAction:
    """What an agent wants to do and we cannot tell what it is: a person is asked each time."""

    definition = ToolDefinition(
        name=AGENT_ACTION,
        description="Something that an agent behind the proxy wants to do by itself.",
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
    """Reports a turn of an agent behind the proxy; by itself it does nothing."""

    definition = ToolDefinition(
        name=AGENT_TURN,
        description="What an agent behind the proxy changed by itself in one turn.",
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
