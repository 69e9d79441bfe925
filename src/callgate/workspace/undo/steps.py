"""The step that reverts one path: from its present state to the state before the changes. Pure.

It goes through the changes of the path from the newest to the oldest, beginning with the present
state. If the state is the result of a change, it becomes the state before that change; if it is
already the earlier state, the change was not made or was reverted; any other state was written by
another program since, and stays.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from callgate.workspace.undo.records import Change, State, is_same
from callgate.workspace.undo.tracks import Track

_SET_ID = stat.S_ISUID | stat.S_ISGID


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


class Shared(NamedTuple):
    """Changes by node: a change through one name of a file changes all its names."""

    rewritten: dict[str, int]
    """The newest group that changed the content in place."""
    modes: dict[str, tuple[int, int | None]]
    """The newest group that used the file, and the mode after it; None: unknown."""
    attributed: set[str]
    """Files whose attributes changed."""


def shared_by_node(changes: Iterable[Change]) -> Shared:
    found = Shared({}, {}, set())
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


def step_to(
    real: str, now: State | None, then: State | None, changes: list[Change], shared: Shared
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


def _left_mode(now: State | None, newest: Change, shared: Shared) -> int | None:
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
