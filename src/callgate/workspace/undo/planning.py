"""The plan of an undo: the steps, and the paths that prevent it. A plan changes nothing.

changes -> tracks (`tracks`) -> one step each (`steps`) -> contents available? -> changes allowed?
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec

from callgate.core.errors import ToolError, WorkspaceEscapeError
from callgate.workspace import refusals
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.paths import sayable
from callgate.workspace.protected import runs_here
from callgate.workspace.undo.history import History
from callgate.workspace.undo.records import Change, State, is_same
from callgate.workspace.undo.restoring import (
    judge_change,
    put_directory,
    put_file,
    put_link,
    remove,
    remove_directory,
    state_of,
)
from callgate.workspace.undo.steps import (
    Shared,
    Step,
    identified,
    relevant,
    reverted,
    shared_by_node,
    step_to,
)
from callgate.workspace.undo.tracks import (
    Track,
    distinguished,
    removed_nodes,
    simultaneous,
    traced,
    with_devices,
)


class Conflict(NamedTuple):
    real: str
    left: State | None
    """State after the recorded changes."""
    now: State | None


class Plan(NamedTuple):
    steps: list[Step]
    """In executable order."""
    conflicts: list[Conflict]
    lost: dict[str, str]
    """Paths whose content was not stored, or is no longer stored, each with the reason."""
    outside: list[str]
    """Paths outside the roots of this session."""
    swapped: list[str]
    """Paths in which a directory was replaced, for example by a link."""


def plan(
    files: WorkspaceFileAPI,
    history: History,
    changes: Iterable[Change],
    *,
    only_look: bool = False,
) -> Plan:
    """Plan the reversion of changes. Raises the refusal of a path that may not be read or, unless
    `only_look` is set, changed."""
    plan = Plan([], [], {}, [], [])
    chosen = distinguished(with_present_devices(list(changes)))
    tracks = relevant(traced(chosen), chosen)
    mixed = simultaneous(chosen)
    shared = shared_by_node(chosen)
    planned = [(_plan_track(files, track, plan, shared, mixed), track) for track in tracks]
    steps = [(step, track) for step, track in planned if step is not None]
    plan.steps.extend(identified(steps, tracks))
    _find_lost(history, chosen, plan)
    if not only_look:
        for step in plan.steps:
            _judge_step(files, step)
        _judge_moved(files, plan.steps)
    plan.steps.sort(key=_order)
    return plan


def with_present_devices(changes: list[Change]) -> list[Change]:
    """Return changes with the present number of each device. It may differ after a restart."""
    moved: dict[str, str] = {}
    for each in changes:
        for state in (each.before, each.after):
            if state is None or state.node is None:
                continue
            device = state.node[1:].partition(":")[0]
            if device not in moved:
                moved[device] = _device_at(each.real)
    if all(old == new for old, new in moved.items()) or len(set(moved.values())) < len(moved):
        return changes
    return with_devices(changes, moved)


def _device_at(path: str) -> str:
    while True:
        try:
            return str(os.lstat(path).st_dev)
        except OSError:
            path = os.path.dirname(path)


def _plan_track(
    files: WorkspaceFileAPI, track: Track, plan: Plan, shared: Shared, mixed: Collection[str]
) -> Step | None:
    real, changes = track.real, track.changes
    now = None
    if track.place is not None:
        hashed = any(state and state.sha256 for c in changes for state in (c.before, c.after))
        try:
            now = state_of(files, track.place, hashed=hashed)
        except WorkspaceEscapeError as error:
            if error.reason != "workspace_escape":
                raise
            plan.outside.append(real)
            return None
        except ToolError as error:
            if error.reason != "changed":
                raise
            plan.swapped.append(real)
            return None
    found = reverted(now, changes, shared.rewritten)
    if mixed and not _keys(changes).isdisjoint(mixed):
        found = changes[0]
    if isinstance(found, Change):
        plan.conflicts.append(Conflict(real, found.after, now))
        return None
    step = step_to(real, now, found, changes, shared)
    first = None if track.first in (None, real) else track.first
    return None if step is None else step._replace(first=first)


def _keys(changes: Sequence[Change]) -> set[str | None]:
    states = (state for each in changes for state in (each.before, each.after))
    nodes = {state.node for state in states if state is not None}
    return nodes | {each.real for each in changes} | {each.first_place for each in changes}


def _find_lost(history: History, changes: Sequence[Change], plan: Plan) -> None:
    """Add the paths whose content is not available, and moved directories that were replaced."""
    present = {step.now.node for step in plan.steps if step.now is not None}
    removed = removed_nodes(changes)
    wanted = {step.then.node for step in plan.steps if step.then is not None}
    for step in list(plan.steps):
        then = step.then
        if then is None:
            continue
        is_here = then.node is not None and then.node in present
        if then.kind == "directory":
            now = step.now
            if now is not None and now.kind == "directory" and not is_here:
                if now.mode == step.mode and now.node not in wanted:
                    plan.steps.remove(step)  # it is there, under another inode
            elif then.node is not None and not is_here and then.node not in removed:
                plan.conflicts.append(Conflict(step.real, then, step.now))
                plan.steps.remove(step)
        elif is_here and then.body is None:
            if then.why is not None:
                plan.lost[step.real] = then.why
        elif not history.has(then):
            now = step.now
            if now is not None and then.body is None and is_same(now, then):
                # Another file with the same content, since the earlier one was a copy.
                stays = msgspec.structs.replace(then, node=now.node)
                plan.steps[plan.steps.index(step)] = step._replace(then=stays)
                continue
            plan.lost[step.real] = then.why or "too large or too old"


def _judge_step(files: WorkspaceFileAPI, step: Step) -> None:
    """Raise the refusal of a change. Commands may change protected paths within limits, so
    that their changes may be reverted."""
    if not step.by_command:
        judge_change(files, step.real)
        return
    for real in {step.real, step.target}:
        try:
            files.judge(real, "write", files.wall.root_of(real), sayable(real))
        except ToolError as error:
            if error.reason != "protected_path":
                raise


def _judge_moved(files: WorkspaceFileAPI, steps: Sequence[Step]) -> None:
    """Refuse to move files to protected paths with their directory. A command that could not create
    such a file there could create it in the directory after another one moved that."""
    changed = {step.real for step in steps}
    sources = {
        step.now.node: step.real
        for step in steps
        if step.now is not None and step.now.kind == "directory" and step.now.node
    }
    for step in steps:
        then = step.then
        source = None if then is None or then.node is None else sources.get(then.node)
        if source is None or source == step.target:
            continue
        root = files.wall.root_of(source)
        for directory, directories, names in os.walk(source):
            for path in (os.path.join(directory, name) for name in (*directories, *names)):
                target = step.target + path[len(source) :]
                if path in changed or runs_here(root.relative(path)):
                    continue
                if runs_here(files.wall.root_of(target).relative(target)):
                    raise refusals.protected(sayable(target))


def _order(step: Step) -> tuple[int, int]:
    """Directories first, outer before inner; then files; then the directories to remove."""
    depth = step.real.count("/")
    if step.then is not None and step.then.kind == "directory":
        return 0, depth
    if step.now is not None and step.now.kind == "directory" and step.then is None:
        return 2, -depth
    return 1, 0


def take(files: WorkspaceFileAPI, history: History, step: Step) -> bool:
    """Execute one step; False if a directory remains because it is not empty."""
    now, then = step.now, step.then
    if now is not None and now.kind == "directory" and (then is None or then.kind != "directory"):
        if not remove_directory(files, step.real):
            return False
        now = None
    elif now is not None and (then is None or then.kind != now.kind or then.kind == "link"):
        remove(files, step.real, now)
        now = None
    if then is None:
        return True
    if then.kind == "directory":
        put_directory(files, step.real, step.mode)
        return True
    content = history.content(then)
    assert content is not None, "a plan with lost contents is not executed"
    if then.kind == "link":
        put_link(files, step.real, content)
    else:
        put_file(files, step.real, content, step.mode, now)
    return True
