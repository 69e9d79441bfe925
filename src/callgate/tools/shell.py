"""The `shell` tool: run a command line in the workspace, and leave nothing of it behind."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

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
from callgate.sandbox.dry_runs.manifests import Observed, observe, sendable
from callgate.sandbox.launch import child_environment
from callgate.tools import deferred_effects
from callgate.tools.streams import SHOWN, Streams

_MOST_ENTRIES, _MOST_SECONDS = 20_000, 0.5
"""How much of a workspace is looked at, before and after a command, for what it changed."""
_MATCHES_NAMED = 10
_NAMED = 1_000
"""Files that a result names; it counts all."""
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
        output = _Output(context)
        before = await observe(context.workspace_path, most=_MOST_ENTRIES, seconds=_MOST_SECONDS)
        try:
            launcher = self._launcher or context.launcher
            async with await _start(launcher, command, output) as self._running:
                if context.cancel_event.is_set():  # it came while the launcher was at work
                    await self.cancel()
                ended, late = await self._wait(self._running, limit)
            observed = await before.changes()
            left = await _in_thread(deferred_effects.remarks, observed, context.workspace_path)
            result = output.result(input["command"], ended, observed, left)
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


async def _in_thread(
    look: Callable[[Observed, str], list[str]], observed: Observed, workspace: str
) -> list[str]:
    """Not in this context: what is opened there is not opened by the tool that runs."""
    return await asyncio.get_running_loop().run_in_executor(None, look, observed, workspace)


async def _start(launcher: Launcher, command: Command, output: _Output) -> Running:
    try:
        return await launcher.start(command, output.add)
    except OSError as error:
        raise ToolExecutionError(
            f"The command could not be started: {error.strerror}.", underlying=error
        ) from error


class _Output(Streams):
    def result(self, command: str, ended: Exit, observed: Observed, left: list[str]) -> ToolOutput:
        out, err = self._captures["stdout"], self._captures["stderr"]
        # Errors may take what the output leaves, and a quarter in any case.
        err_limit = min(err.total, max(SHOWN // 4, SHOWN - out.total))
        out_limit = SHOWN - err_limit
        stdout, stderr = out.show(out_limit), err.show(err_limit)
        truncated = out.total > out_limit or err.total > err_limit
        sections = [stdout, f"[stderr]\n{stderr}" if stderr else "", *_remarks(ended), *left]
        return ToolOutput(
            content=[TextBlock(_lines(sections))],
            success=ended.code == 0 and not ended.stopped,
            command_executed=command,
            files_modified=observed.files[:_NAMED] or None,
            metadata={
                **({"observed": observed.as_metadata()} if observed else {}),
                **_network(ended),
            },
            truncated=truncated,
            value={
                "stdout": stdout,
                "stderr": stderr,
                "exit_code": ended.code,
                "signal": _signal_name(ended.signal),
                "truncated": truncated,
                "stdout_path": out.path,
                "stderr_path": err.path,
                "background_ended": 0 if ended.stopped else ended.ended,
            },
        )


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


def _remarks(ended: Exit) -> list[str]:
    remarks = []
    if ended.stopped:
        remarks.append("[stopped before it ended]")
    elif ended.signal is not None:
        remarks.append(f"[ended by {_signal_name(ended.signal)}]")
    elif ended.code is None:
        remarks.append("[exit code unknown]")
    elif ended.code != 0:
        remarks.append(f"[exit code {ended.code}]")
    if ended.ended and not ended.stopped:
        remarks.append(f"[processes left in the background were ended: {ended.ended}]")
    if ended.survivors:
        remarks.append(f"[processes that could not be ended: {ended.survivors}]")
    if ended.limit is not None:
        remarks.append(f"[ended: more than `{ended.limit}` of `[sandbox.limits]` allows]")
    if ended.unseen:
        named = ", ".join(map(sendable, ended.unseen))
        remarks.append(f"[not visible in the sandbox: {named}; `[sandbox] readable` can show it]")
    if ended.git_settings:
        named = ", ".join(map(sendable, ended.git_settings))
        remarks.append(
            f"[not changed: {named}; commands may not, because it says which programs git runs: "
            "run what changes it (git submodule add, git remote add, git config) yourself, "
            "outside the sandbox]"
        )
    if ended.blocked:
        remarks.append(f"[blocked: {', '.join(ended.blocked)}]")
    for decision, effect in _MATCHES.items():
        paths = [sendable(each.path) for each in ended.rule_matches if each.decision == decision]
        if paths:
            remarks.append(f"[matches a rule that {effect}: {_few(paths)}]")
    if ended.unsearched:
        remarks.append(f"[what matches a rule now is not known: {ended.unsearched}]")
    return remarks


_MATCHES = {"deny": "denies it", "ask": "asks about it"}


def _few(paths: list[str]) -> str:
    more = len(paths) - _MATCHES_NAMED
    return ", ".join(paths[:_MATCHES_NAMED]) + (f" and {more} more" if more > 0 else "")


def _network(ended: Exit) -> dict[str, Any]:
    """What a command did with a network of named hosts, if it had one and used it."""
    if not ended.blocked and not ended.reached:
        return {}
    return {"network": {"blocked": list(ended.blocked), "reached": ended.reached}}


def _signal_name(number: int | None) -> str | None:
    if number is None:
        return None
    try:
        return signal.Signals(number).name
    except ValueError:  # the real-time signals between the first and the last have no name
        return f"signal {number}"


def _lines(sections: list[str]) -> str:
    """Parts one under the other, each beginning a line of its own."""
    text = ""
    for part in filter(None, sections):
        text += part if not text or text.endswith("\n") else "\n" + part
    return text
