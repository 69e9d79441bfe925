"""What must be done to take changes back, and what stands in the way. Changes nothing.

For each path the changes are gone through from the newest to the oldest, beginning with what
stands there now. Where the state is the one a change left, it becomes the one before it; where
it is already that one, the change was not made or was taken back; anything else was put there
by someone else since, and is theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from callgate.core.errors import ToolError, WorkspaceEscapeError
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.undo import restoring
from callgate.workspace.undo.history import History
from callgate.workspace.undo.records import Change, State, is_same


class Step(NamedTuple):
    """One path from what stands there now to what shall stand there."""

    real: str
    now: State | None
    then: State | None
    mode: int = 0
    """Permission bits of what shall stand there."""


class Conflict(NamedTuple):
    real: str
    left: State | None
    """What the changes left there."""
    now: State | None


class Plan(NamedTuple):
    steps: list[Step]
    """In the order in which they can be taken."""
    conflicts: list[Conflict]
    lost: list[str]
    """Paths whose content was not kept, or not kept until now."""
    outside: list[str]
    """Paths that this session does not reach."""
    swapped: list[str]
    """Paths on whose way something else stands now, such as a link."""


def plan(
    files: WorkspaceFileAPI,
    history: History,
    changes: Iterable[Change],
    *,
    only_look: bool = False,
) -> Plan:
    """How to take changes back. Raises the refusal of a path that may not be read or, unless
    it is only looked at, changed."""
    by_path: dict[str, list[Change]] = {}
    for change in sorted(changes, key=lambda change: change.at, reverse=True):
        by_path.setdefault(change.real, []).append(change)
    plan = Plan([], [], [], [], [])
    for real, newest_first in by_path.items():
        _plan_path(files, history, real, newest_first, plan)
    if not only_look:
        for step in plan.steps:
            restoring.judge_change(files, step.real)
    plan.steps.sort(key=_order)
    return plan


def _plan_path(
    files: WorkspaceFileAPI, history: History, real: str, changes: list[Change], plan: Plan
) -> None:
    try:
        now = restoring.state_of(files, real)
    except WorkspaceEscapeError as error:
        if error.reason != "workspace_escape":
            raise
        plan.outside.append(real)
        return
    except ToolError as error:
        if error.reason != "changed":
            raise
        plan.swapped.append(real)
        return
    found = reverted(now, changes)
    if isinstance(found, Change):
        plan.conflicts.append(Conflict(real, found.after, now))
        return
    step = _step(real, now, found, changes)
    if step is None:
        return
    plan.steps.append(step)
    if needs_content(step) and (found is None or history.content(found) is None):
        plan.lost.append(real)


def reverted(now: State | None, newest_first: Sequence[Change]) -> State | Change | None:
    """The state before the oldest of the changes, or the change that someone else's followed."""
    oldest = newest_first[-1].before
    if is_same(now, oldest):
        return oldest
    state = now
    for change in newest_first:
        if is_same(state, change.after):
            state = change.before
        elif not is_same(state, change.before):
            return change
    return state


def _step(real: str, now: State | None, then: State | None, changes: list[Change]) -> Step | None:
    if then is None:
        return None if now is None else Step(real, now, None)
    left = changes[0].after
    # A mode that someone chose since is theirs; one that we left goes back with the content.
    theirs = now is not None and left is not None and now.mode != left.mode
    mode = now.mode if now is not None and theirs else then.mode & 0o777
    same_mode = now is None or now.mode == mode or then.kind != "file"
    if is_same(now, then) and same_mode:
        return None
    return Step(real, now, then, mode)


def needs_content(step: Step) -> bool:
    return step.then is not None and step.then.kind != "directory"


def _order(step: Step) -> tuple[int, int]:
    """Directories first, outer before inner; then files; then the directories to remove."""
    depth = step.real.count("/")
    if step.then is not None and step.then.kind == "directory":
        return 0, depth
    if step.now is not None and step.now.kind == "directory" and step.then is None:
        return 2, -depth
    return 1, 0


def take(files: WorkspaceFileAPI, history: History, step: Step) -> bool:
    """Take one step; False if a directory was left because something lies in it."""
    now, then = step.now, step.then
    if now is not None and now.kind == "directory" and (then is None or then.kind != "directory"):
        if not restoring.remove_directory(files, step.real):
            return False
        now = None
    elif now is not None and (then is None or then.kind != now.kind or then.kind == "link"):
        restoring.remove(files, step.real, now)
        now = None
    if then is None:
        return True
    if then.kind == "directory":
        restoring.put_directory(files, step.real, step.mode)
        return True
    content = history.content(then)
    assert content is not None, "a plan with lost contents is not carried out"
    if then.kind == "link":
        restoring.put_link(files, step.real, content)
    else:
        restoring.put_file(files, step.real, content, step.mode, now)
    return True
