"""The tool `undo`: put files back to what they were before a call, or as a turn left them.

It is no tool for models: only the command `callgate undo` registers it. All or nothing: if a
file was changed by someone else since, or a content is no longer kept, nothing is touched.
What it does is noted like any other change, so an undo can be undone.
"""

from __future__ import annotations

from typing import Any

from msgspec import structs

from callgate.core.content import TextBlock
from callgate.core.effects import Capability, SideEffects
from callgate.core.environment import Environment, WorkspaceFiles, off_loop
from callgate.core.errors import (
    ToolCancelled,
    ToolError,
    ToolExecutionError,
    ToolPermissionDenied,
    ToolValidationError,
)
from callgate.core.tools import ToolContext, ToolDefinition, ToolOutput
from callgate.workspace.edits import diff
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.paths import readable, sayable, shown
from callgate.workspace.undo import restoring
from callgate.workspace.undo.history import SHOWN, History
from callgate.workspace.undo.records import Change, Recorded, State, after_turn
from callgate.workspace.undo.reverts import Conflict, Plan, Step, plan, take

_MOST_SHOWN = 50
"""Files whose changes are shown; the others are named."""
_DEFINITION = ToolDefinition(
    name="undo",
    description=(
        "Put files back to what they were before a call (call_id), or as they were when a turn"
        " of a session ended (session, to_turn). Refused as a whole if a file was changed since."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "call_id": {"type": "string", "minLength": 1},
            "session": {"type": "string", "minLength": 1},
            "to_turn": {"type": "string", "minLength": 1},
            "dry_run": {"type": "boolean", "description": "Only say what would change."},
        },
    },
    side_effects=SideEffects.WRITE,
    capabilities=frozenset({Capability.WRITES_FILES}),
    path_params=(),
    kind="edit",
    source="builtin",
)


_LOOK = structs.replace(
    _DEFINITION,
    side_effects=SideEffects.READ,
    capabilities=frozenset({Capability.READ_ONLY}),
    kind="read",
)
"""A tool that cannot change anything needs nobody's permission to."""


class Undo:
    """Register it with a history: `runtime.register(lambda: Undo(history))`."""

    def __init__(self, history: History, *, only_look: bool = False) -> None:
        self.definition = _LOOK if only_look else _DEFINITION
        self._history = history
        self._only_look = only_look

    def preview(self, input: dict[str, Any], environment: Environment) -> str:
        """The changes that allowing the call would make."""
        try:
            files = _workspace_files(environment.files)
            restoration = self._plan(files, self._chosen(input).changes)
        except ToolError as error:
            return f"Nothing would change: {error}"
        return self._described(files, restoration)

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        if context.cancel_event.is_set():
            raise ToolCancelled
        files = _workspace_files(context.workspace_files)
        changes, damaged = self._chosen(input)
        restoration = self._plan(files, changes)
        lines: list[str] = []
        touched: list[str] = []
        if self._only_look or input.get("dry_run"):
            lines.append(self._described(files, restoration))
        elif not restoration.steps:
            lines.append(_NOTHING)
        else:
            await off_loop(self._carry_out, files, restoration, lines, touched)
        if damaged:
            lines.append(f"[{damaged} damaged lines of the history were left out]")
        return ToolOutput(
            content=[TextBlock("\n".join(lines))],
            files_modified=touched,
            metadata={"restored": len(touched), "damaged": damaged},
        )

    async def cancel(self) -> bool:
        return False

    def _chosen(self, input: dict[str, Any]) -> Recorded:
        """The changes to take back."""
        call, session, turn = input.get("call_id"), input.get("session"), input.get("to_turn")
        if (call is None) == (session is None) or (session is None) != (turn is None):
            raise ToolValidationError("undo takes call_id, or session and to_turn")
        if call is not None:
            found = self._history.of_call(call)
            if not found.changes:
                raise _unknown(f"No changes of call {shown(call)} are kept")
            return found
        found = self._history.of_session(str(session))
        if not found.changes:
            raise _unknown(f"No changes of session {shown(str(session))} are kept")
        later = after_turn(found.changes, str(turn))
        if later is None:
            raise _unknown(f"No changes of turn {shown(str(turn))} are kept, so its end is unknown")
        return found._replace(changes=later)

    def _plan(self, files: WorkspaceFileAPI, changes: list[Change]) -> Plan:
        restoration = plan(files, self._history, changes, only_look=self._only_look)
        if restoration.outside:
            raise ToolPermissionDenied(
                f"{_listed(files, restoration.outside)} outside the workspace; nothing was undone",
                reason="workspace_escape",
            )
        if restoration.conflicts or restoration.swapped:
            names = [*(each.real for each in restoration.conflicts), *restoration.swapped]
            raise ToolExecutionError(
                f"{_listed(files, names)} changed since; nothing was undone",
                reason="changed_since",
                details={
                    "files": [_name(files, each) for each in names],
                    "partial_output": self._against(files, restoration),
                },
            )
        if restoration.lost:
            raise ToolExecutionError(
                f"{_listed(files, restoration.lost)} not kept (too large or too old);"
                " nothing was undone",
                reason="not_kept",
                details={"files": [_name(files, each) for each in restoration.lost]},
            )
        return restoration

    def _carry_out(
        self, files: WorkspaceFileAPI, restoration: Plan, lines: list[str], touched: list[str]
    ) -> None:
        for step in restoration.steps:
            name = _name(files, step.real)
            try:
                done = take(files, self._history, step)
            except ToolError as error:
                raise ToolExecutionError(
                    f"{error} (undone before that: {', '.join(map(shown, touched)) or 'nothing'})",
                    reason="undo_incomplete",
                    details={"files": touched},
                ) from error
            lines.append(_describe_step(step, name, done=done))
            if done:
                touched.append(name)

    def _described(self, files: WorkspaceFileAPI, restoration: Plan) -> str:
        """What the steps would change, as diffs."""
        if not restoration.steps:
            return _NOTHING
        diffs = []
        for step in restoration.steps[:_MOST_SHOWN]:
            now, then = self._now(files, step.real, step.now), self._stored_content(step.then)
            diffs.append(_shown_change(_name(files, step.real), step, now, then))
        return _cut(diffs, len(restoration.steps))

    def _against(self, files: WorkspaceFileAPI, restoration: Plan) -> str:
        """What was left against what is there now, as diffs."""
        diffs = [
            f"{readable(_name(files, each))}: something else stands on the way to it now"
            for each in restoration.swapped
        ]
        for conflict in restoration.conflicts[:_MOST_SHOWN]:
            diffs.append(self._conflict(files, conflict))
        return _cut(diffs, len(restoration.swapped) + len(restoration.conflicts))

    def _conflict(self, files: WorkspaceFileAPI, conflict: Conflict) -> str:
        name = _name(files, conflict.real)
        step = Step(conflict.real, conflict.left, conflict.now)
        left, now = (
            self._stored_content(conflict.left),
            self._now(files, conflict.real, conflict.now),
        )
        return _shown_change(name, step, left, now)

    def _stored_content(self, state: State | None) -> bytes | None:
        return None if state is None or state.size > SHOWN else self._history.content(state)

    def _now(self, files: WorkspaceFileAPI, real: str, state: State | None) -> bytes | None:
        if state is None or state.size > SHOWN:
            return None
        return restoring.content_of(files, real, SHOWN)


_NOTHING = "Nothing to do: already undone, every file is as it was before"


def _workspace_files(files: WorkspaceFiles) -> WorkspaceFileAPI:
    if not isinstance(files, WorkspaceFileAPI):
        raise ToolExecutionError("These files keep no history", reason="no_history")
    return files


def _unknown(message: str) -> ToolError:
    return ToolExecutionError(message, reason="no_changes")


def _name(files: WorkspaceFileAPI, real: str) -> str:
    try:
        return files.called(files.resolved(real))
    except ToolError:
        return sayable(real)


def _listed(files: WorkspaceFileAPI, reals: list[str]) -> str:
    names = [shown(_name(files, real)) for real in reals[:_MOST_SHOWN]]
    more = f" and {len(reals) - len(names)} more" if len(reals) > len(names) else ""
    return f"{', '.join(names)}{more} {'is' if len(reals) == 1 else 'are'}"


def _describe_step(step: Step, name: str, *, done: bool) -> str:
    """One step that was taken, in words."""
    was_directory = step.now is not None and step.now.kind == "directory"
    if not done:
        return f"Left {shown(name)}: something lies in it"
    if step.then is None:
        return f"Removed {'directory ' * was_directory}{shown(name)}"
    return f"{'Made directory' if step.then.kind == 'directory' else 'Restored'} {shown(name)}"


def _shown_change(name: str, step: Step, old: bytes | None, new: bytes | None) -> str:
    """A change from one content to another: a diff of text, else words."""
    was, becomes = _text(step.now, old), _text(step.then, new)
    comparable = was is not None and becomes is not None and not _is_special(step)
    if comparable and (changed := diff(was or "", becomes or "", readable(name))):
        return changed if step.then is not None else f"{changed}\n[{shown(name)} goes]"
    return f"{readable(name)}: {_words(step.now)} -> {_words(step.then)}"


def _is_special(step: Step) -> bool:
    return any(state is not None and state.kind != "file" for state in (step.now, step.then))


def _text(state: State | None, content: bytes | None) -> str | None:
    """The content as text; of nothing, an empty one. None if it cannot be shown."""
    if state is None:
        return ""
    try:
        text = None if content is None else content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if text is None or "\0" in text else text


def _words(state: State | None) -> str:
    if state is None:
        return "nothing"
    if state.kind == "directory":
        return "a directory"
    digest = "" if state.sha256 is None else f", sha256 {state.sha256[:12]}"
    return f"{state.kind}, {state.size:,} bytes, mode {state.mode:o}{digest}"


def _cut(diffs: list[str], total: int) -> str:
    if total > _MOST_SHOWN:
        diffs = [*diffs[:_MOST_SHOWN], f"[{total - _MOST_SHOWN} more files are not shown]"]
    return "\n".join(diffs)
