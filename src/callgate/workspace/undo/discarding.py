"""Discard the changes of a command after its end: an undo of everything that can be undone."""

from __future__ import annotations

from collections.abc import Sequence

from callgate.core.errors import ToolError
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.undo.history import CallHistory, History
from callgate.workspace.undo.planning import plan
from callgate.workspace.undo.records import Change
from callgate.workspace.undo.reverting import Reverter


def discard(files: WorkspaceFileAPI, history: History, changes: Sequence[Change]) -> list[str]:
    """Revert changes. Returns the paths that remain changed, because their content is not stored
    or another program changed them since. Blocks."""
    assert isinstance(files.changes, CallHistory)
    found = plan(files, history, changes, only_look=True)
    steps = [step for step in found.steps if step.real not in found.lost]
    remaining = [*(each.real for each in found.conflicts), *found.lost]
    remaining += [*found.swapped, *found.outside]
    if not steps:
        return remaining
    with files.changes.recording(["/"]) as recorder:
        reverter = Reverter(files, history, steps, recorder)
        try:
            reverter.run()
        except (ToolError, OSError):
            done = {step for step, is_done in reverter.done if is_done}
            return [*remaining, *(step.real for step in steps if step not in done)]
    return remaining
