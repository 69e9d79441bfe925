"""In the place of a tool, while an agent runs the call itself.

    allowed -> `started` (the hook answers) -> the agent works -> `report` -> result, diffs, history

What stood in the files that the call names is kept before the agent may touch them, so that its
edits can be undone like ours.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from callgate.core.content import FileDiff, TextBlock
from callgate.core.effects import SideEffects
from callgate.core.environment import Environment, off_loop
from callgate.core.errors import ToolCancelled, ToolError, ToolPermissionDenied
from callgate.core.tools import Preview, ToolContext, ToolDefinition, ToolFactory, ToolOutput
from callgate.protocol.hooks.agent_tools import Edit
from callgate.workspace.edits import diff
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.noting import Standing
from callgate.workspace.paths import readable

NO_REPORT = "The agent did not report how it ended."


class Report(msgspec.Struct, frozen=True):
    """What an agent says of the end of a call."""

    failed: bool = False
    text: str | None = None


class PerformedCall:
    """One call that an agent runs itself: what its hook and its tool tell each other."""

    def __init__(
        self, arguments: dict[str, Any], edits: tuple[Edit, ...] = (), *, amendable: bool = False
    ) -> None:
        """`amendable`: the agent runs the command that the answer of the hook names."""
        loop = asyncio.get_running_loop()
        self.started: asyncio.Future[dict[str, Any]] = loop.create_future()
        """The arguments with which it may run."""
        self.report: asyncio.Future[Report] = loop.create_future()
        self.edits = edits
        self._arguments = arguments
        self._amendable = amendable

    def wrap(self, factory: ToolFactory) -> ToolFactory:
        return lambda: PerformedTool(self, factory)

    def start(self, arguments: dict[str, Any], schema: Mapping[str, Any], workspace: str) -> None:
        """`schema`: of the tool, which fills in what the agent did not name."""
        changed = _changed(self._arguments, arguments, schema, workspace)
        if changed - ({"command"} if self._amendable else set()):
            raise ToolPermissionDenied(
                "The answer changed the arguments, and this agent cannot be told to run others.",
                reason="not_amendable",
            )
        if not self.started.done():
            self.started.set_result(arguments)

    def end(self, report: Report) -> None:
        """Idempotent."""
        if not self.report.done():
            self.report.set_result(report)


class PerformedTool:
    def __init__(self, call: PerformedCall, factory: ToolFactory) -> None:
        self._call = call
        self._inner = factory()

    @property
    def definition(self) -> ToolDefinition:
        return self._inner.definition

    async def preview(
        self, input: dict[str, Any], environment: Environment
    ) -> Preview | str | None:
        if self._call.edits:
            return await _preview_edits(self._call.edits, input, environment)
        preview = getattr(self._inner, "preview", None)
        result: Any = None if preview is None else preview(input, environment)
        if inspect.isawaitable(result):
            result = await result
        shown: Preview | str | None = result
        return shown

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        paths = list(_written_paths(self.definition, input))
        files = context.workspace_files if paths else None
        assert files is None or isinstance(files, WorkspaceFileAPI)
        stood: dict[str, Standing | None] = {}
        if files is not None:
            stood = await off_loop(lambda: {path: files.standing(path) for path in paths})
        self._call.start(input, self.definition.input_schema, context.workspace_path)
        report = await self._call.report
        diffs: tuple[FileDiff, ...] = ()
        if files is not None:
            diffs = await off_loop(_note_changes, files, stood)
        return ToolOutput(
            content=[TextBlock(report.text or "The agent ran it.")],
            success=not report.failed,
            files_modified=[each.path for each in diffs] or None,
            diffs=diffs,
        )

    async def cancel(self) -> bool:
        """The agent is told nothing: it may run on, and the record says that it was not waited
        for."""
        if not self._call.report.done():
            self._call.report.set_exception(ToolCancelled(NO_REPORT, reason="no_report"))
        return True


def _changed(
    given: dict[str, Any], arguments: dict[str, Any], schema: Mapping[str, Any], workspace: str
) -> set[str]:
    """The arguments that are others than the agent gave, defaults aside."""
    properties = schema.get("properties", {})
    expected = {key: each["default"] for key, each in properties.items() if "default" in each}
    expected |= given
    changed = {key for key in given if key not in arguments}
    for key, value in arguments.items():
        known = expected.get(key)
        if key == "cwd" and isinstance(known, str):
            known, value = (
                os.path.realpath(os.path.join(workspace, each)) for each in (known, value)
            )
        if key not in expected or value != known:
            changed.add(key)
    return changed


def _written_paths(definition: ToolDefinition, input: dict[str, Any]) -> Iterator[str]:
    if definition.effect is not SideEffects.WRITE:
        return
    for name in definition.path_params or ():
        value = input.get(name)
        yield from [value] if isinstance(value, str) else value or ()


def _note_changes(
    files: WorkspaceFileAPI, stood: dict[str, Standing | None]
) -> tuple[FileDiff, ...]:
    diffs: list[FileDiff] = []
    for path, before in stood.items():
        try:
            after = files.note_made(path, before)
        except ToolError:
            continue  # what the agent put there is no file that is undone
        old, new = _text(before), _text(after)
        if new is not None and (old is not None or before is None):
            diffs += FileDiff.of(files.absolute(files.locate(path)), old, new)
    return tuple(diffs)


def _text(standing: Standing | None) -> str | None:
    if standing is None or standing.kind != "file" or standing.content is None:
        return None
    try:
        return standing.content.decode()
    except UnicodeDecodeError:
        return None


async def _preview_edits(
    edits: tuple[Edit, ...], input: dict[str, Any], environment: Environment
) -> Preview:
    path = input["path"]
    try:
        old = await environment.read_text(path)
    except ToolError as error:
        return Preview(f"Nothing would change: {error}")
    return await off_loop(_preview_of, edits, old, readable(path))


def _preview_of(edits: tuple[Edit, ...], old: str, path: str) -> Preview:
    new = old
    for edit in edits:
        if edit.old and edit.old not in new:
            return Preview("Nothing would change: a text to replace is not there.")
        new = new.replace(edit.old, edit.new, -1 if edit.everywhere else 1)
    return Preview(diff(old, new, path) or "Nothing would change.")
