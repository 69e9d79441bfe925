"""Tools behind `callgate preview`: run a command over an overlay, and apply its changes.

The command registers them itself, so models cannot call them. Running is a call of class execute,
applying one of class write. Each is decided and recorded like other calls.
"""

from __future__ import annotations

import contextvars
import os
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from callgate.core.commands import Command, Exit, Running
from callgate.core.content import TextBlock
from callgate.core.effects import Capability, SideEffects
from callgate.core.errors import (
    ToolCancelled,
    ToolExecutionError,
    ToolValidationError,
)
from callgate.core.local.environment import Environment, WorkspaceFiles
from callgate.core.tools import ToolContext, ToolDefinition, ToolOutput
from callgate.sandbox import machines
from callgate.sandbox.dry_runs import overlays
from callgate.sandbox.dry_runs import overlays as differences
from callgate.sandbox.dry_runs.overlays import Stage
from callgate.sandbox.plans import Backend, Bubblewrap, child_environment
from callgate.sandbox.processes.broker_client import BrokerProcess
from callgate.sandbox.profiles import SandboxPaths
from callgate.tools.previews import Preview, apply, described
from callgate.tools.shell_results import SHOWN, Streams
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.paths import sayable

_TEMPORARY = frozenset({"TMPDIR", "TMP", "TEMP"})
"""The command has a private /tmp."""

_PREVIEW = ToolDefinition(
    name="preview",
    description=(
        "Run a command over an overlay of the workspace, without network, and show its output"
        " and the changes that it would make. Nothing is changed."
    ),
    input_schema={
        "type": "object",
        "properties": {"command": {"type": "string", "minLength": 1}},
        "required": ["command"],
        "additionalProperties": False,
    },
    side_effects=SideEffects.EXECUTE,
    capabilities=frozenset({Capability.STARTS_PROCESS}),
    path_params=(),
    kind="execute",
    source="builtin",
)
_APPLY = ToolDefinition(
    name="apply_preview",
    description="Make the changes that a preview showed; refused as a whole if a file changed.",
    input_schema={
        "type": "object",
        "properties": {
            "paths": {"type": "array", "items": {"type": "string"}},
            "changes": {"type": "string", "description": "Their hash."},
        },
        "required": ["paths", "changes"],
        "additionalProperties": False,
    },
    side_effects=SideEffects.WRITE,
    capabilities=frozenset({Capability.WRITES_FILES}),
    path_params=("paths",),
    kind="edit",
    source="builtin",
)


class PreviewCommand:
    """One command. `keep` receives the preview, and must discard it."""

    definition = _PREVIEW

    def __init__(
        self,
        paths: SandboxPaths,
        keep: Callable[[Preview], None],
        *,
        parents: Sequence[str],
        hidden: Callable[[str], tuple[str, ...]] = lambda command: (),
    ) -> None:
        """`parents`: directories outside the workspace; the first usable one stores the changes.
        Commands must be able to see the last one. `hidden`: returns, in a thread, the paths that
        rules hide from a command, when it starts."""
        self._hidden = hidden
        self._paths = paths
        self._keep = keep
        self._parents = parents
        self._running: Running | None = None
        self._cancelled = False

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        files = _workspace_files(context.workspace_files)
        command = _command(input["command"], context.workspace_path)
        output = _Output(context)
        process = BrokerProcess()
        handed_over, stage = False, None
        try:
            backends = await machines.look(process)
            parents = self._parents if _has_namespaces(backends) else self._parents[-1:]
            stage = await overlays.prepare(context.workspace_path, parents)
            hidden = await overlays.in_thread(self._hidden, input["command"])
            stage, ended = await self._run(stage, process, backends, command, output, hidden)
            if ended.stopped:
                raise ToolCancelled()
            changes = await overlays.in_thread(differences.find, stage)
            preview = Preview(stage, ended, changes)
            result = await overlays.in_thread(output.result, preview, files)
            self._keep(preview)
            handed_over = True
            return result
        finally:
            output.close()
            process.close()
            if stage is not None and not handed_over:
                await overlays.in_thread(overlays.remove, stage)

    async def cancel(self) -> bool:
        self._cancelled = True
        return self._running is not None and self._running.stop()

    async def _run(
        self,
        stage: Stage,
        process: BrokerProcess,
        backends: Sequence[Backend],
        command: Command,
        output: _Output,
        hidden: tuple[str, ...],
    ) -> tuple[Stage, Exit]:
        paths = msgspec.structs.replace(self._paths, hidden=(*self._paths.hidden, *hidden))
        bwrap = next((each.path for each in backends if isinstance(each, Bubblewrap)), None)
        try:
            stage, running = await overlays.start(
                stage, process, backends, command, paths, output.add, bwrap=bwrap
            )
        except OSError as error:
            raise ToolExecutionError(
                f"The command could not be started: {error.strerror}.", underlying=error
            ) from error
        async with running as self._running:
            if self._cancelled:  # before the command was running
                self._running.stop()
            return stage, await self._running.wait()


class ApplyPreview:
    definition = _APPLY

    def __init__(self, preview: Preview) -> None:
        self._preview = preview

    def preview(self, input: dict[str, Any], environment: Environment) -> str:
        """Return the changes that an approval would make."""
        return described(self._preview, _workspace_files(environment.files))

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        if input != arguments(self._preview):
            raise ToolValidationError("changes: not the changes of this preview")
        files = _workspace_files(context.workspace_files)
        # It reads files that the command wrote, which are outside the workspace.
        done = contextvars.Context().run(apply, self._preview, files)
        return ToolOutput(
            content=[TextBlock(f"Changed: {_counted(self._preview)}")], files_modified=done
        )

    async def cancel(self) -> bool:
        return False


def arguments(preview: Preview) -> dict[str, Any]:
    """Return the arguments of `apply_preview`: an answer is bound to exactly these changes."""
    return {"paths": preview.paths, "changes": preview.digest()}


class _Output(Streams):
    def result(self, preview: Preview, files: WorkspaceFileAPI) -> ToolOutput:
        ended = preview.exit
        stdout, stderr = (self._captures[each].show(SHOWN) for each in ("stdout", "stderr"))
        lines = [stdout.rstrip("\n"), f"[stderr]\n{stderr}".rstrip("\n") if stderr else ""]
        if ended.code:
            lines.append(f"[exit code {ended.code}]")
        if ended.signal is not None:
            lines.append(f"[ended by signal {ended.signal}]")
        changes = described(preview, files)
        named: dict[str, list[str]] = {"created": [], "changed": [], "deleted": []}
        for each in preview.changes:
            named[each.kind].append(sayable(each.path))
        return ToolOutput(
            content=[TextBlock("\n".join(filter(None, [*lines, changes, _summary(preview)])))],
            success=ended.code == 0,
            metadata={"way": preview.stage.way},
            value={
                "stdout": stdout,
                "stderr": stderr,
                "exit_code": ended.code,
                "signal": ended.signal,
                **named,
                "diff": changes,
            },
        )


def _summary(preview: Preview) -> str:
    return f"Would change: {_counted(preview)}" if preview.changes else ""


def _counted(preview: Preview) -> str:
    counts = differences.counts(preview.changes)
    return ", ".join(f"{count} {kind}" for kind, count in counts.items() if count) or "nothing"


def _command(text: str, workspace: str) -> Command:
    if "\0" in text:
        raise ToolValidationError("command: must not contain a NUL character")
    bash = ("/bin/bash", "--noprofile", "--norc")
    shell = bash if os.access(bash[0], os.X_OK) else ("/bin/sh",)
    env = child_environment(os.environ)
    return Command(
        argv=(*shell, "-c", "--", text),
        cwd=os.path.realpath(workspace),
        env={name: value for name, value in env.items() if name not in _TEMPORARY},
    )


def _has_namespaces(backends: Sequence[Backend]) -> bool:
    """Whether the overlay can appear at the workspace's path; else the command runs at the
    overlay's path."""
    return any(each.name == "namespaces" and each.problem is None for each in backends)


def _workspace_files(files: WorkspaceFiles) -> WorkspaceFileAPI:
    if not isinstance(files, WorkspaceFileAPI):
        raise ToolExecutionError("These files cannot be previewed", reason="no_history")
    return files
