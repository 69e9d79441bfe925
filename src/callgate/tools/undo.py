"""The tool `undo`: restore files to their state before a call, or after a turn.

The command `callgate undo` registers it, so models cannot call it. All or nothing: if another
program changed a file since, or a content is no longer stored, nothing is changed. Its changes are
recorded like all others, so that an undo can be undone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from msgspec import structs

from callgate.core.content import TextBlock
from callgate.core.effects import Capability, SideEffects
from callgate.core.errors import (
    ToolCancelled,
    ToolError,
    ToolExecutionError,
    ToolPermissionDenied,
    ToolValidationError,
)
from callgate.core.local.environment import Environment, WorkspaceFiles, off_loop
from callgate.core.local.preimages import Recorder
from callgate.core.tools import CannotSucceed, ToolContext, ToolDefinition, ToolOutput
from callgate.workspace.excerpts import diff
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.paths import readable, sayable, shown
from callgate.workspace.undo import restoring
from callgate.workspace.undo.history import SHOWN, CallHistory, History
from callgate.workspace.undo.planning import Conflict, Plan, plan, take
from callgate.workspace.undo.records import Change, Recorded, State, after_turn
from callgate.workspace.undo.reverting import Reverter
from callgate.workspace.undo.steps import Step
from callgate.workspace.undo.timelines import from_call

_MOST_SHOWN = 50
"""Maximum files with a diff; others are listed."""
_DEFINITION = ToolDefinition(
    name="undo",
    description=(
        "Restore files to their state before a call (call_id), before a call and all later ones of"
        " its session (from_call), before a turn (turn), before a session (session), at the end of"
        " a turn of a session (session, to_turn), or at a time (since). Refused as a whole if a"
        " file was changed since, unless others is true."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "call_id": {"type": "string", "minLength": 1},
            "session": {"type": "string", "minLength": 1},
            "to_turn": {"type": "string", "minLength": 1},
            "turn": {"type": "string", "minLength": 1},
            "from_call": {
                "type": "string",
                "minLength": 1,
                "description": "A call: its changes, and all later ones of its session.",
            },
            "since": {"type": "number", "description": "Seconds since 1970."},
            "others": {
                "type": "boolean",
                "description": "Leave files that changed since, and restore the others.",
            },
            "dry_run": {"type": "boolean", "description": "Report the changes, make none."},
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
"""A tool without possible changes needs no approval."""


class Undo:
    """Register it with a history: `runtime.tools.register(lambda: Undo(history))`."""

    def __init__(self, history: History, *, only_look: bool = False) -> None:
        self.definition = _LOOK if only_look else _DEFINITION
        self._history = history
        self._only_look = only_look

    def preview(self, input: dict[str, Any], environment: Environment) -> str:
        """Preview the changes of the call. Raises `CannotSucceed` if there are none, so that no
        approval is requested."""
        try:
            files = _workspace_files(environment.files)
            restoration = self._plan(files, self._chosen(input, files).changes, input)
        except ToolError as error:
            shown = error.detail_fields.get("partial_output")
            raise CannotSucceed(error, shown if isinstance(shown, str) else None) from error
        if not restoration.steps:
            raise CannotSucceed(ToolExecutionError(_NOTHING, reason="nothing_to_undo"))
        count = len(restoration.steps)
        counted = "1 file" if count == 1 else f"{count:,} files"
        return f"Restores {counted}:\n{self._described(files, restoration)}"

    async def execute(self, input: dict[str, Any], context: ToolContext) -> ToolOutput:
        if context.cancel_event.is_set():
            raise ToolCancelled
        files = _workspace_files(context.workspace_files)
        changes, damaged = self._chosen(input, files)
        restoration = self._plan(files, changes, input)
        lines: list[str] = []
        touched: list[str] = []
        if self._only_look or input.get("dry_run"):
            lines.append(self._described(files, restoration))
        elif not restoration.steps:
            lines.append(_NOTHING)
        else:
            by_command = any(step.by_command for step in restoration.steps)
            carry_out = self._revert if by_command else self._carry_out
            await off_loop(carry_out, files, restoration, lines, touched)
        if damaged:
            lines.append(f"[{damaged} damaged lines of the history were ignored]")
        return ToolOutput(
            content=[TextBlock("\n".join(lines))],
            files_modified=touched,
            metadata={"restored": len(touched), "damaged": damaged},
        )

    async def cancel(self) -> bool:
        return False

    def _chosen(self, input: dict[str, Any], files: WorkspaceFileAPI) -> Recorded:
        """Return the changes to revert."""
        call, session, turn = input.get("call_id"), input.get("session"), input.get("to_turn")
        turn_id, since, begin = input.get("turn"), input.get("since"), input.get("from_call")
        if sum(each is not None for each in (call, session, turn_id, since, begin)) != 1 or (
            turn is not None and session is None
        ):
            raise ToolValidationError(
                "undo takes call_id, from_call, turn, since, or session with an optional to_turn"
            )
        if begin is not None:
            found = from_call(self._history, str(begin))
            if not found.changes:
                raise _unknown(f"No changes of call {shown(str(begin))} are stored")
            return found
        if turn_id is not None or since is not None:
            history = self._history
            found = (
                history.of_turn(str(turn_id))
                if since is None
                else history.since(float(since), files.workspace_root)
            )
            if not found.changes:
                raise _unknown("No changes of that time are stored")
            return found
        if call is not None:
            found = self._history.of_call(call)
            if not found.changes:
                raise _unknown(f"No changes of call {shown(call)} are stored")
            return found
        found = self._history.of_session(str(session))
        if not found.changes:
            raise _unknown(f"No changes of session {shown(str(session))} are stored")
        if turn is None:
            return found
        later = after_turn(found.changes, str(turn))
        if later is None:
            raise _unknown(f"No changes of turn {shown(str(turn))} are stored: its end is unknown")
        return found._replace(changes=later)

    def _plan(self, files: WorkspaceFileAPI, changes: list[Change], input: dict[str, Any]) -> Plan:
        restoration = plan(files, self._history, changes, only_look=self._only_look)
        if input.get("others"):
            lost = {*restoration.lost, *self._used_by_running(restoration)}
            left = [each for each in restoration.steps if each.real not in lost]
            return restoration._replace(steps=left)
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
        self._refuse_running(files, restoration)
        if restoration.lost:
            why = "; ".join(dict.fromkeys(restoration.lost.values()))
            raise ToolExecutionError(
                f"{_listed(files, list(restoration.lost))} not stored ({why}); nothing was undone",
                reason="not_kept",
                details={"files": [_name(files, each) for each in restoration.lost]},
            )
        return restoration

    def _refuse_running(self, files: WorkspaceFileAPI, restoration: Plan) -> None:
        used = self._used_by_running(restoration)
        if used:
            names = _listed(files, list(used))
            calls = ", ".join(dict.fromkeys(used.values()))
            raise ToolExecutionError(
                f"{names} being changed by the running call {calls}; nothing was undone. Wait until"
                " it ends, or stop it",
                reason="in_use",
                details={"files": [_name(files, each) for each in used]},
            )

    def _used_by_running(self, restoration: Plan) -> dict[str, str]:
        """Return the paths that a running command changed, each with its call."""
        found: dict[str, str] = {}
        for origin, paths in self._history.running() if restoration.steps else ():
            for step in restoration.steps:
                if any(each in paths for real in {step.real, step.target} for each in _above(real)):
                    found.setdefault(step.real, origin.call)
        return found

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

    def _revert(
        self, files: WorkspaceFileAPI, restoration: Plan, lines: list[str], touched: list[str]
    ) -> None:
        """Execute steps with changes of commands, and record them as changes of one command."""
        changes = files.changes
        if not isinstance(changes, CallHistory):
            raise ToolExecutionError("These files have no history", reason="no_history")
        recorder = reverter = None
        try:
            with changes.recording(["/"]) as recorder:
                reverter = Reverter(files, self._history, restoration.steps, recorder)
                reverter.run()
        except (ToolError, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else None
            reason = f"The undo failed ({why})" if why else str(error)
            if self._is_taken_back(files, changes, recorder):
                raise ToolExecutionError(
                    f"{reason}; nothing was undone", reason="undo_failed"
                ) from error
            finished = [] if reverter is None else reverter.done
            names = [_name(files, step.target) for step, _ in finished]
            raise ToolExecutionError(
                f"{reason} (undone before that: {', '.join(map(shown, names)) or 'nothing'})",
                reason="undo_incomplete",
                details={"files": names},
            ) from error
        for step, is_done in reverter.done:
            name = _name(files, step.target)
            lines.append(_describe_step(step, name, done=is_done))
            if is_done:
                touched.append(name)

    def _is_taken_back(
        self, files: WorkspaceFileAPI, changes: CallHistory, recorder: Recorder | None
    ) -> bool:
        """Revert the changes of a failed undo. Returns whether all of them were reverted."""
        if recorder is None or not recorder.has_changes:
            return True
        reverted = changes.recorded()
        if not reverted:  # they cannot be listed before the disk has space again
            return False
        try:
            back = plan(files, self._history, reverted, only_look=True)
            if back.conflicts or back.lost or back.outside or back.swapped:
                return False
            with changes.recording(["/"]) as recorder:
                Reverter(files, self._history, back.steps, recorder).run()
        except (ToolError, OSError):
            return False
        return True

    def _described(self, files: WorkspaceFileAPI, restoration: Plan) -> str:
        """Describe the changes of the steps, as diffs."""
        if not restoration.steps:
            return _NOTHING
        diffs = []
        for step in restoration.steps[:_MOST_SHOWN]:
            now, then = self._now(files, step.real, step.now), self._stored_content(step.then)
            diffs.append(_shown_change(_name(files, step.real), step, now, then))
        return _cut(diffs, len(restoration.steps))

    def _against(self, files: WorkspaceFileAPI, restoration: Plan) -> str:
        """Compare the restored files with the present ones, as diffs."""
        diffs = [
            f"{readable(_name(files, each))}: its path leads to another place now"
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


def _above(real: str) -> Iterator[str]:
    """Yield a path, and the directories above it."""
    while len(real) > 1:
        yield real
        real = os.path.dirname(real)


_NOTHING = "Nothing to undo: every file is already as it was before"


def _workspace_files(files: WorkspaceFiles) -> WorkspaceFileAPI:
    if not isinstance(files, WorkspaceFileAPI):
        raise ToolExecutionError("These files have no history", reason="no_history")
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
    """Describe one executed step."""
    was_directory = step.now is not None and step.now.kind == "directory"
    if not done:
        return f"Left {shown(name)}: it is not empty"
    if step.then is None:
        return f"Removed {'directory ' * was_directory}{shown(name)}"
    return f"{'Made directory' if step.then.kind == 'directory' else 'Restored'} {shown(name)}"


def _shown_change(name: str, step: Step, old: bytes | None, new: bytes | None) -> str:
    """Describe a change from one content to another: a diff of text, else metadata."""
    was, becomes = _text(step.now, old), _text(step.then, new)
    comparable = was is not None and becomes is not None and not _is_special(step)
    if comparable and (changed := diff(was or "", becomes or "", readable(name))):
        return changed if step.then is not None else f"{changed}\n[{shown(name)} goes]"
    return f"{readable(name)}: {_words(step.now)} -> {_words(step.then)}"


def _is_special(step: Step) -> bool:
    return any(state is not None and state.kind != "file" for state in (step.now, step.then))


def _text(state: State | None, content: bytes | None) -> str | None:
    """Return the content as text, empty if there is no file; None if it has no diff."""
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
