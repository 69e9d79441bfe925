"""The `shell` tool: run a command line in the workspace, and leave no process behind."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from callgate.core.commands import GRACE_S, Command, Exit, Launcher, Running
from callgate.core.content import TextBlock
from callgate.core.effects import Capability, SideEffects
from callgate.core.errors import (
    ToolCancelled,
    ToolExecutionError,
    ToolTimeout,
    ToolValidationError,
    WorkspaceEscapeError,
)
from callgate.core.local.environment import Environment
from callgate.core.tools import ToolContext, ToolDefinition, ToolOutput
from callgate.sandbox.plans import child_environment

if TYPE_CHECKING:
    from callgate.tools.shell_results import CommandOutput

LONGEST_COMMAND = 128 * 1024 - 1
"""Maximum bytes of one argument on Linux."""

_BASH = "/bin/bash"

_DEFINITION = ToolDefinition(
    name="shell",
    description=(
        "Run a shell command in the workspace and return its output and exit code. It can write "
        "in the workspace and /tmp only, and has no network unless it requests it. "
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
            "discard_changes": {
                "type": "boolean",
                "description": "True to revert all its changes of files after its end.",
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
    """One command line. `launcher` and `environment` replace the context's launcher, and the
    inherited variables."""

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
        """Return the command as it will run, for the approver."""
        directory, command = input.get("cwd", "."), str(input["command"])
        if input.get("discard_changes"):
            command = f"{command}\n[its changes of files are reverted after its end]"
        return command if directory == "." else f"in {directory}:\n{command}"

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        command, limit = _prepare(input, context, self._environment), _limit(input)
        if context.cancel_event.is_set():
            raise ToolCancelled()
        from callgate.tools.shell_results import CommandOutput  # lazy: with the first command  # noqa: PLC0415

        launcher = self._launcher or context.launcher
        if command.discards_changes and not getattr(launcher, "records_changes", False):
            raise ToolExecutionError(
                "discard_changes: callgate does not store the changes of this command, so it was"
                " not started. It needs the sandbox; see `callgate doctor`.",
                reason="not_recorded",
            )
        output = await CommandOutput.begin(context, launcher)
        try:
            async with await _start(launcher, command, output) as self._running:
                if context.cancel_event.is_set():  # cancelled during the start
                    await self.cancel()
                ended, late = await self._wait(self._running, limit)
            result = await output.result(input["command"], ended)
        finally:
            output.close()
        if late:
            raise _timeout(limit or 0, result)
        return result

    async def cancel(self) -> bool:
        """Begin to stop it; `execute` returns the output after the last process has ended."""
        self._cancelled = True
        return self._running is not None and self._running.stop(self._grace)

    async def _wait(self, running: Running, limit: float | None) -> tuple[Exit, bool]:
        """Wait for the end. Returns it, and whether the time limit caused it."""
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
            f"command: is {size} bytes long, the maximum is {LONGEST_COMMAND}; "
            "write it to a file and run that"
        )
    return Command(
        argv=_argv(text),
        cwd=_directory(input.get("cwd", "."), context.workspace_path),
        env=child_environment(os.environ) if environment is None else dict(environment),
        call=context.tool_use_id,
        discards_changes=bool(input.get("discard_changes")),
    )


def _argv(text: str) -> tuple[str, ...]:
    """Build the arguments of a shell that reads no startup file and no options from the text."""
    if os.access(_BASH, os.X_OK):
        return (_BASH, "--noprofile", "--norc", "-c", "--", text)
    return ("/bin/sh", "-c", "--", text)


def _directory(cwd: str, workspace: str) -> str:
    """Return the working directory. The dispatcher has checked it; this check is independent."""
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
    """Return the seconds after which to end the command."""
    seconds, milliseconds = input.get("timeout_seconds"), input.get("timeout")
    if seconds is not None and milliseconds is not None:
        raise ToolValidationError("timeout_seconds and timeout are alternatives: give one of them")
    limit: float | None = seconds if milliseconds is None else milliseconds / 1000
    return limit


def _timeout(limit: float, partial: ToolOutput) -> ToolTimeout:
    text = "".join(block.text for block in partial.content if isinstance(block, TextBlock))
    return ToolTimeout(
        f"The command was ended after its limit of {limit:g} s.",
        details={"partial_output": text, "timeout_seconds": limit},
    )
