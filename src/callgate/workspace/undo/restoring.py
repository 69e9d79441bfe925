"""Revert changes: plan which states to restore, and restore them through the workspace boundary.

A plan changes nothing. It goes through the changes of each path from the newest to the oldest,
beginning with the current state. If the state is the result of a change, it becomes the state
before that change; if it is already the earlier state, the change was not made or was reverted; any
other state was written by another program since, and stays.

A path in the history was real when it was recorded. Restoring walks it again name by name, and
refuses it if a link is on the way now, because the link would lead elsewhere.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

import msgspec

from callgate.core.errors import ToolError, WorkspaceEscapeError
from callgate.workspace import refusals
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.noting import Changed, Standing, change, look
from callgate.workspace.opening import READ
from callgate.workspace.paths import sayable
from callgate.workspace.protected import runs_here
from callgate.workspace.replace import made_directories, sync_names
from callgate.workspace.undo.history import History
from callgate.workspace.undo.records import PIPE, Change, State, digest_of, is_same, node_of
from callgate.workspace.undo.tracks import Track, removed_nodes, traced
from callgate.workspace.walk import Spot

_PERMISSIONS = 0o777
_SET_ID = stat.S_ISUID | stat.S_ISGID


def state_of(files: WorkspaceFileAPI, real: str, *, hashed: bool = True) -> State | None:
    """Return the present state of a real path, checked for reading; None if it does not exist.
    `hashed`: with the hash of a file's content."""
    path = sayable(real)
    with files.wall.spot_of(real) as spot, refusals.answering(path):
        if spot.remaining and spot.status is None:
            return None
        if len(spot.remaining) > 1:
            raise refusals.changed(path)  # a parent is no directory any more
        files.judge(files.wall.real(spot, path), "read", spot.root, path)
        if not spot.remaining:
            facts = os.fstat(spot.fd)
            return State(
                "directory",
                stat.S_IMODE(facts.st_mode),
                node=node_of("directory", facts.st_dev, facts.st_ino),
            )
        return _state(files, spot, hashed=hashed)


def _state(files: WorkspaceFileAPI, spot: Spot, *, hashed: bool = True) -> State | None:
    found = look(files.wall.opener, spot.fd, spot.remaining[0], limit=0)
    if found is None:
        return None
    digest = None
    if found.kind == "link" and found.content is not None:
        digest = sha256(found.content).hexdigest()
    elif found.kind == "file" and hashed:
        fd = files.wall.opener.step(spot.fd, spot.remaining[0], READ)
        try:
            digest = digest_of(fd)
        finally:
            os.close(fd)
    node, mtime = None, 0
    if found.version is not None:
        device, number, _, mtime = found.version
        node = node_of(found.kind, device, number)
    target = None
    if found.kind == "other":
        facts = os.stat(spot.remaining[0], dir_fd=spot.fd, follow_symlinks=False)
        target = PIPE if stat.S_ISFIFO(facts.st_mode) else None
    return State(
        found.kind, found.mode, found.size, digest, node=node, mtime_ns=mtime, target=target
    )


def content_of(files: WorkspaceFileAPI, real: str, limit: int) -> bytes | None:
    """Return the content of a file or the target of a link; None if it is neither, or larger."""
    path = sayable(real)
    with files.wall.spot_of(real) as spot, refusals.answering(path):
        if len(spot.remaining) != 1 or spot.status is None:
            return None
        files.judge(files.wall.real(spot, path), "read", spot.root, path)
        found = look(files.wall.opener, spot.fd, spot.remaining[0], limit)
        return None if found is None else found.content


def judge_change(files: WorkspaceFileAPI, real: str) -> None:
    """Raise the refusal of a change to a real path, if there is one."""
    with files.wall.spot_of(real) as spot, refusals.answering(sayable(real)):
        files.judge_change(spot, sayable(real))


def put_file(
    files: WorkspaceFileAPI, real: str, content: bytes, mode: int, now: State | None
) -> None:
    """Put a file in place of the state `now`, and of no other state."""
    path = sayable(real)
    with files.wall.spot_of(real) as spot:
        files.replace(spot, path, content, _settled(files, spot, path, now), mode)


def _settled(
    files: WorkspaceFileAPI, spot: Spot, path: str, now: State | None
) -> os.stat_result | None:
    """Return the status of a spot's target, if its state is the expected one."""
    with refusals.answering(path):
        there = len(spot.remaining) == 1 and spot.status is not None
        if not is_same(_state(files, spot) if there else None, now):
            raise refusals.changed(path)
    return spot.status


def put_link(files: WorkspaceFileAPI, real: str, target: bytes) -> None:
    """Create a link at a free name. Its target is checked at each use."""

    def make(fd: int, name: bytes) -> None:
        os.symlink(target, name, dir_fd=fd)

    _make(files, real, make, Standing("link", 0o777, len(target), target))


def put_directory(files: WorkspaceFileAPI, real: str, mode: int) -> None:
    """Create a directory at a free name."""

    def make(fd: int, name: bytes) -> None:
        os.mkdir(name, mode & _PERMISSIONS, dir_fd=fd)

    _make(files, real, make, Standing("directory", mode & _PERMISSIONS, 0))


def _make(
    files: WorkspaceFileAPI,
    real: str,
    make: Callable[[int, bytes], None],
    after: Standing,
) -> None:
    path, opener = sayable(real), files.wall.opener
    with files.wall.spot_of(real) as spot, refusals.answering(path):
        if spot.status is not None or not spot.remaining:
            raise refusals.changed(path)
        _, note = files.judge_change(spot, path)
        *parents, name = spot.remaining
        with made_directories(opener, spot.fd, parents, note, synced=files.synced) as fd:
            _change(
                path,
                lambda: change(opener, fd, name, lambda: make(fd, name), after=after, note=note),
            )
            if files.synced:
                sync_names(opener, fd)


def remove(files: WorkspaceFileAPI, real: str, now: State) -> None:
    """Remove the file or link with the state `now`, and no other state."""
    path = sayable(real)
    with files.wall.spot_of(real) as spot, refusals.answering(path):
        files.remove(spot, path, _settled(files, spot, path, now))


def remove_directory(files: WorkspaceFileAPI, real: str) -> bool:
    """Remove a directory if it is empty. Returns whether it was."""
    path, opener = sayable(real), files.wall.opener
    parent, _, last = real.rpartition("/")
    with files.wall.spot_of(parent) as spot, refusals.answering(path):
        if spot.remaining:
            raise refusals.missing(path)
        name = os.fsencode(last)
        if not _is_empty(files, spot, name):
            return False
        with files.wall.spot_of(real) as inner:
            _, note = files.judge_change(inner, path)

        def rmdir() -> None:
            os.rmdir(name, dir_fd=spot.fd)

        _change(path, lambda: change(opener, spot.fd, name, rmdir, after=None, note=note))
        if files.synced:
            sync_names(opener, spot.fd)
        return True


def _is_empty(files: WorkspaceFileAPI, spot: Spot, name: bytes) -> bool:
    fd = files.wall.opener.step(spot.fd, name, READ | os.O_DIRECTORY)
    try:
        return not os.listdir(fd)
    finally:
        os.close(fd)


def _change(path: str, act: Callable[[], None]) -> None:
    try:
        act()
    except Changed:
        raise refusals.changed(path) from None


class Step(NamedTuple):
    """One path from its present state to its target state."""

    real: str
    now: State | None
    then: State | None
    mode: int = 0
    """Permission bits of the target state."""
    first: str | None = None
    """Path of the target state, if it differs because a directory moves."""
    by_command: bool = False
    """Whether a command changed the path."""

    @property
    def target(self) -> str:
        return self.first or self.real


class Conflict(NamedTuple):
    real: str
    left: State | None
    """State after the recorded changes."""
    now: State | None


class Plan(NamedTuple):
    steps: list[Step]
    """In executable order."""
    conflicts: list[Conflict]
    lost: list[str]
    """Paths whose content was not stored, or is no longer stored."""
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
    plan = Plan([], [], [], [], [])
    chosen = list(changes)
    tracks = relevant(traced(chosen), chosen)
    shared = _shared(chosen)
    planned = [(_plan_track(files, track, plan, shared), track) for track in tracks]
    steps = [(step, track) for step, track in planned if step is not None]
    plan.steps.extend(identified(steps, tracks))
    _find_lost(history, chosen, plan)
    if not only_look:
        for step in plan.steps:
            _judge_step(files, step)
        _judge_moved(files, plan.steps)
    plan.steps.sort(key=_order)
    return plan


def relevant(tracks: Iterable[Track], changes: Sequence[Change]) -> list[Track]:
    """Return the tracks with own changes, and of files that changed under another name."""
    changed = {each.before.node for each in changes if each.before and not each.is_source}
    found = []
    for track in tracks:
        direct = [each for each in track.changes if not each.is_source]
        source = track.changes[0].before
        if direct:
            track.changes = direct
        elif source is None or source.node not in changed:
            continue
        found.append(track)
    return found


def _plan_track(files: WorkspaceFileAPI, track: Track, plan: Plan, shared: _Shared) -> Step | None:
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
    if isinstance(found, Change):
        plan.conflicts.append(Conflict(real, found.after, now))
        return None
    step = _step(real, now, found, changes, shared)
    first = None if track.first in (None, real) else track.first
    return None if step is None else step._replace(first=first)


def identified(steps: Sequence[tuple[Step, Track]], tracks: Sequence[Track]) -> list[Step]:
    """Complete target states with the files that other changes stored or moved.

    A file that a group moved is at the path of its other name, even if it was restored there since
    with another inode. Its earlier content may be stored by a newer group."""
    now_at = {track: step.now for step, track in steps}
    present = {now.node for now in now_at.values() if now is not None}
    moved_to: dict[tuple[int, str], Track] = {}
    earlier: dict[str, list[State]] = {}
    newest_first = sorted(
        ((each, track) for track in tracks for each in track.changes),
        key=lambda each: each[0].at,
        reverse=True,
    )
    for each, track in newest_first:
        if each.after is not None and each.after.node is not None and each.group:
            moved_to[each.group, each.after.node] = track
        for state in (each.before, _on_arrival(each.after)):
            if state is not None and state.node is not None:
                earlier.setdefault(state.node, []).append(state)
    found = []
    for step, track in steps:
        then = step.then
        if then is not None and then.node is not None:
            known = earlier.get(then.node, ())
            if known and step.mode == then.mode:
                step = step._replace(mode=known[-1].mode)  # through any of its names
            then = _with_earlier(then, known)
            group = track.changes[-1].group
            other = moved_to.get((group, then.node or ""))
            is_moved = other is not None and other is not track
            is_latest = is_moved and other is not None and other.changes[0].group == group
            there = now_at.get(other) if is_latest and other is not None else None
            if then.node not in present and there is not None and there.kind == then.kind:
                then = msgspec.structs.replace(then, node=there.node)
        now = step.now
        if now is not None and now.node is not None and now.first_mode is not None:
            first = _with_earlier(now, earlier.get(now.node, ()))
            now = msgspec.structs.replace(now, body=first.body, attributes=first.attributes)
        found.append(step._replace(now=now, then=then))
    return found


def _on_arrival(after: State | None) -> State | None:
    """Return the state of an existing file before a group that gave it its first recorded name;
    None: the group did not."""
    if after is None or after.first_mode is None:
        return None
    return msgspec.structs.replace(after, mode=after.first_mode, sha256=None)


def _with_earlier(then: State, others: Sequence[State]) -> State:
    """Return a state with the stored files of other states of its inode, the oldest first."""
    attributes: dict[bytes, bytes | None] = {}
    for other in others:  # newest first, so that the oldest value counts
        attributes.update(other.attributes)
    first = next((each for each in reversed(others) if each.body is not None), then)
    stored = next((each.stored for each in others if each.stored is not None), None)
    return msgspec.structs.replace(
        then,
        attributes=tuple(attributes.items()),
        body=first.body,
        size=first.size,
        sha256=first.sha256,
        stored=then.stored or stored,
    )


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
                plan.lost.append(step.real)
        elif not history.has(then):
            plan.lost.append(step.real)


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


def reverted(
    now: State | None, newest_first: Sequence[Change], rewritten: Mapping[str, int] = {}
) -> State | Change | None:
    """Return the state before the oldest change, or the change before another program's.

    `rewritten`: the newest group that changed the content of a file in place, by its node. The
    file may have several names, of which only one was used."""
    oldest = newest_first[-1].before
    if is_same(now, oldest):
        return oldest
    state = now
    for each in newest_first:
        if is_same(state, each.after) or _is_rewritten(state, each, rewritten):
            state = each.before
        elif not is_same(state, each.before):
            return each
    return state


def _is_rewritten(state: State | None, change: Change, rewritten: Mapping[str, int]) -> bool:
    """Whether a file has the content of a newer group, which another name of it has, too."""
    after = change.after
    if state is None or after is None or state.node is None or state.node != after.node:
        return False
    return state.kind == "file" and rewritten.get(state.node, 0) > change.group


class _Shared(NamedTuple):
    """Changes by node: a change through one name of a file changes all its names."""

    rewritten: dict[str, int]
    """The newest group that changed the content in place."""
    modes: dict[str, tuple[int, int | None]]
    """The newest group that used the file, and the mode after it; None: unknown."""
    attributed: set[str]
    """Files whose attributes changed."""


def _shared(changes: Iterable[Change]) -> _Shared:
    found = _Shared({}, {}, set())
    for each in sorted(changes, key=lambda each: each.group):
        for state in (each.before, each.after):
            if state is None or state.node is None:
                continue
            if state.body is not None:
                found.rewritten[state.node] = each.group
            if state.attributes:
                found.attributed.add(state.node)
            if state is each.after:
                found.modes[state.node] = each.group, state.mode
            elif found.modes.get(state.node, (0, None))[0] < each.group:
                found.modes[state.node] = each.group, None
    return found


def _step(
    real: str, now: State | None, then: State | None, changes: list[Change], shared: _Shared
) -> Step | None:
    by_command = any(change.group for change in changes)
    now = now and _loses(now, changes)
    if then is None:
        return None if now is None else Step(real, now, None, by_command=by_command)
    left = _left_mode(now, changes[0], shared)
    # A mode that another program set since is preserved; ours is reverted with the content.
    theirs = now is not None and left is not None and now.mode != left
    wanted = then.mode if by_command else then.mode & 0o777
    if then.kind == "file" and then.sha256 is None:
        wanted &= ~_SET_ID  # the content is compared by size and time, which a command can choose
    mode = now.mode if now is not None and theirs else wanted
    same_mode = now is None or now.mode == mode
    if not by_command:
        same_mode = same_mode or then.kind != "file"
    # Another directory in the place of a moved one has to go.
    same_node = not by_command or now is None or then.node is None or now.node == then.node
    same_attributes = not then.attributes and then.node not in shared.attributed
    if is_same(now, then) and same_mode and same_node and same_attributes:
        return None
    return Step(real, now, then, mode, by_command=by_command)


def _left_mode(now: State | None, newest: Change, shared: _Shared) -> int | None:
    """Return the mode of a file after the recorded changes; None if it is unknown. After the
    newest change of this name, a group may have changed the mode through another name."""
    group, mode = shared.modes.get((now and now.node) or "", (0, None))
    if group > newest.at:
        return mode
    return None if newest.after is None else newest.after.mode


def _loses(now: State, changes: list[Change]) -> State:
    """Return the present state of a name. If a group changed its file under this name, and the file
    existed before under another name, the state has its earlier content, mode and attributes."""
    for each in reversed(changes):
        after = each.after
        if after is not None and after.node == now.node and after.first_mode is not None:
            return msgspec.structs.replace(
                now, body=after.body, first_mode=after.first_mode, attributes=after.attributes
            )
    return now


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
