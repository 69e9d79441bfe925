"""The `shell` tool: run a command line in the workspace, and leave nothing of it behind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from callgate.core.commands import GRACE_S, Command, Exit, Launcher, Running
from callgate.core.content import TextBlock
from callgate.core.effects import Capability, SideEffects
from callgate.core.environment import Environment
from callgate.core.errors import (
    ToolCancelled,
    ToolExecutionError,
    ToolTimeout,
    ToolValidationError,
    WorkspaceEscapeError,
)
from callgate.core.tools import ToolContext, ToolDefinition, ToolOutput
from callgate.sandbox.launch import child_environment

if TYPE_CHECKING:
    from callgate.tools.shell_results import CommandOutput

LONGEST_COMMAND = 128 * 1024 - 1
"""Bytes that Linux takes as one argument."""

_BASH = "/bin/bash"

_DEFINITION = ToolDefinition(
    name="shell",
    description=(
        "Run a shell command in the workspace and return its output and exit code. It can write "
        "in the workspace and /tmp only, and has no network unless it is asked for. "
        "Standard input is empty and there is no terminal. When the command ends, processes "
        "it left in the background are ended too."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "command": {
                "type": "string",
                "minLength": 1,
                "description": "The command line, read by bash (by sh where bash is missing).",
            },
            "timeout_seconds": {
                "type": "integer",
                "minimum": 1,
                "maximum": 600,
                "description": "End the command after this time.",
            },
            "timeout": {
                "type": "integer",
                "minimum": 1,
                "maximum": 600_000,
                "description": "The same in milliseconds.",
            },
            "cwd": {
                "type": "string",
                "default": ".",
                "description": "Directory to run in, relative to the workspace.",
            },
            "network": {
                "type": "boolean",
                "description": "True if the command needs the network, to install or fetch.",
            },
        },
        "required": ["command"],
        "additionalProperties": False,
    },
    side_effects=SideEffects.EXECUTE,
    capabilities=frozenset({Capability.STARTS_PROCESS}),
    path_params=("cwd",),
    kind="execute",
    aliases=("execute_command", "terminal_execute"),
    source="builtin",
    sandboxed=True,
)


class Shell:
    """One command line. `launcher` and `environment` replace what the context gives, and what
    is passed on of our own environment."""

    definition = _DEFINITION

    def __init__(
        self,
        launcher: Launcher | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        grace: float = GRACE_S,
    ) -> None:
        self._launcher = launcher
        self._environment = environment
        self._grace = grace
        self._running: Running | None = None
        self._cancelled = False

    def preview(self, input: dict[str, Any], environment: Environment) -> str:
        """The command as it will be run, for the person who is asked."""
        directory, command = input.get("cwd", "."), str(input["command"])
        return command if directory == "." else f"in {directory}:\n{command}"

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        command, limit = _prepare(input, context, self._environment), _limit(input)
        if context.cancel_event.is_set():
            raise ToolCancelled()
        from callgate.tools.shell_results import CommandOutput  # lazy: with the first command  # noqa: PLC0415

        output = await CommandOutput.begin(context)
        try:
            launcher = self._launcher or context.launcher
            async with await _start(launcher, command, output) as self._running:
                if context.cancel_event.is_set():  # it came while the launcher was at work
                    await self.cancel()
                ended, late = await self._wait(self._running, limit)
            result = await output.result(input["command"], ended)
        finally:
            output.close()
        if late:
            raise _timeout(limit or 0, result)
        return result

    async def cancel(self) -> bool:
        """Begin to stop it; `execute` returns what there is once the last process has ended."""
        self._cancelled = True
        return self._running is not None and self._running.stop(self._grace)

    async def _wait(self, running: Running, limit: float | None) -> tuple[Exit, bool]:
        """How it ended, and whether that was because its time was up."""
        try:
            async with asyncio.timeout(limit):
                return await running.wait(), False
        except TimeoutError:
            running.stop(self._grace)
        ended = await running.wait()
        return ended, ended.stopped and not self._cancelled


async def _start(launcher: Launcher, command: Command, output: CommandOutput) -> Running:
    try:
        return await launcher.start(command, output.add)
    except OSError as error:
        raise ToolExecutionError(
            f"The command could not be started: {error.strerror}.", underlying=error
        ) from error


def _prepare(
    input: dict[str, Any], context: ToolContext, environment: Mapping[str, str] | None
) -> Command:
    text = input["command"]
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ToolValidationError("command: is not valid Unicode text") from None
    if "\0" in text:
        raise ToolValidationError("command: must not contain a NUL character")
    if size > LONGEST_COMMAND:
        raise ToolValidationError(
            f"command: is {size} bytes long, {LONGEST_COMMAND} are possible; "
            "write it to a file and run that"
        )
    return Command(
        argv=_argv(text),
        cwd=_directory(input.get("cwd", "."), context.workspace_path),
        env=child_environment(os.environ) if environment is None else dict(environment),
        call=context.tool_use_id,
    )


def _argv(text: str) -> tuple[str, ...]:
    """A shell that reads no file of its own first, and takes no part of the text as an option."""
    if os.access(_BASH, os.X_OK):
        return (_BASH, "--noprofile", "--norc", "-c", "--", text)
    return ("/bin/sh", "-c", "--", text)


def _directory(cwd: str, workspace: str) -> str:
    """Where to start. The dispatcher has confined it already; this holds without one too."""
    try:
        root = os.path.realpath(workspace)
        directory = os.path.realpath(os.path.join(root, cwd))
    except (OSError, ValueError):
        raise ToolValidationError("cwd: is not a usable path") from None
    if os.path.commonpath([root, directory]) != root:
        raise WorkspaceEscapeError(f"cwd: {cwd} is outside the workspace")
    if not os.path.isdir(directory):
        raise ToolExecutionError(f"There is no directory {cwd} in the workspace.")
    return directory


def _limit(input: dict[str, Any]) -> float | None:
    """Seconds after which to end the command."""
    seconds, milliseconds = input.get("timeout_seconds"), input.get("timeout")
    if seconds is not None and milliseconds is not None:
        raise ToolValidationError("timeout_seconds and timeout say the same: give one of them")
    limit: float | None = seconds if milliseconds is None else milliseconds / 1000
    return limit


def _timeout(limit: float, partial: ToolOutput) -> ToolTimeout:
    text = "".join(block.text for block in partial.content if isinstance(block, TextBlock))
    return ToolTimeout(
        f"The command was ended after its limit of {limit:g} s.",
        details={"partial_output": text, "timeout_seconds": limit},
    )
