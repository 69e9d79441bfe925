"""The changes of each path through moved directories, from the newest to the oldest.

    group of changes:   d/x changed;  d moved to e;  e/x changed
    track of one file:  e/x now       e/x            d/x before all of them

A change names paths before and after its group. The paths of older groups are the paths before the
newer ones, so a track follows a name back through every move. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import msgspec

from callgate.workspace.undo.records import Change, State


class Track:
    """The changes of one name in one directory, newest first."""

    __slots__ = ("changes", "first", "place", "real")

    def __init__(self, real: str, place: str | None) -> None:
        self.real = real
        """The present path, else the former one."""
        self.place = place
        """The present path; None if its directory no longer exists."""
        self.first: str | None = None
        """The path before the oldest change; None if its directory did not exist then."""
        self.changes: list[Change] = []


class _Moves:
    """The directories that one group moved or removed."""

    def __init__(self, changes: Iterable[Change]) -> None:
        sources: dict[str, str] = {}
        targets: dict[str, str] = {}
        self._removed: set[str] = set()
        for each in changes:
            before, after = each.before, each.after
            if before is not None and before.kind == "directory" and each.first_place is not None:
                self._removed.add(each.first_place)
                if before.node is not None:
                    sources[before.node] = each.first_place
            if after is not None and after.kind == "directory" and after.node and each.place:
                targets[after.node] = each.place
        self._forward = {sources[node]: targets[node] for node in sources.keys() & targets.keys()}
        kept = {path for path, target in self._forward.items() if path == target}
        self._removed -= self._forward.keys()
        for path in kept:
            del self._forward[path]
        self._back = {target: source for source, target in self._forward.items()}

    def __bool__(self) -> bool:
        return bool(self._forward or self._removed)

    def forward(self, path: str) -> str | None:
        """Return a path after the group; None if its directory no longer exists."""
        for above in _above(path):
            if above in self._forward:
                return self._forward[above] + path[len(above) :]
            if above in self._removed:
                return None
        return path

    def back(self, path: str) -> str:
        """Return a path before the group."""
        for above in _above(path):
            if above in self._back:
                return self._back[above] + path[len(above) :]
        return path


def traced(changes: Iterable[Change]) -> list[Track]:
    """Return the tracks of all changed names."""
    newest_first = sorted(changes, key=lambda each: each.at, reverse=True)
    tracks: list[Track] = []
    by_first: dict[str, Track] = {}
    passed: list[_Moves] = []
    for _, members in groupby(newest_first, key=lambda each: each.group or -each.at):
        group = list(members)
        moves = _Moves(group) if group[0].group else None
        touched: list[tuple[Track, str | None]] = []
        for change in group:
            place = change.place
            track = None if place is None else by_first.pop(place, None)
            if track is None:
                present = None if place is None else _present(place, passed)
                track = Track(present or change.real, present)
                tracks.append(track)
            track.changes.append(change)
            touched.append((track, change.first_place))
        if moves:
            by_first = {moves.back(path): track for path, track in by_first.items()}
            for path, track in by_first.items():
                track.first = path
            passed.append(moves)
        for track, first in touched:
            track.first = first
            if first is not None:
                by_first[first] = track
    return tracks


def with_devices(changes: Iterable[Change], numbers: Mapping[str, str]) -> list[Change]:
    """Return changes whose nodes have other device numbers."""

    def renumbered(state: State | None) -> State | None:
        if state is None or state.node is None:
            return state
        device, _, inode = state.node[1:].partition(":")
        node = f"{state.node[0]}{numbers[device]}:{inode}"
        return msgspec.structs.replace(state, node=node)

    return [
        msgspec.structs.replace(each, before=renumbered(each.before), after=renumbered(each.after))
        for each in changes
    ]


def distinguished(changes: Sequence[Change]) -> list[Change]:
    """Return changes whose nodes are unambiguous: a file that ended has another node than a later
    one with its inode."""
    if not any(each.before is not None and each.before.ended for each in changes):
        return list(changes)
    ended: Counter[str] = Counter()
    found: list[Change] = []
    newest_first = sorted(changes, key=lambda each: each.at, reverse=True)
    for _, members in groupby(newest_first, key=lambda each: each.group or -each.at):
        group = list(members)
        afters = [_distinguished(each.after, ended) for each in group]
        befores = (each.before for each in group)
        ended.update({s.node for s in befores if s is not None and s.ended and s.node is not None})
        for each, after in zip(group, afters, strict=True):
            before = _distinguished(each.before, ended)
            found.append(msgspec.structs.replace(each, before=before, after=after))
    return found


def _distinguished(state: State | None, ended: Counter[str]) -> State | None:
    if state is None or state.node is None or not ended[state.node]:
        return state
    return msgspec.structs.replace(state, node=f"{state.node}#{ended[state.node]}")


def simultaneous(changes: Iterable[Change]) -> set[str]:
    """Return the paths and nodes that two commands changed in overlapping times, so that the order
    of their changes is unknown."""
    spans: dict[str, set[tuple[int, int]]] = {}
    for each in changes:
        if not each.group or not each.began or each.is_source:
            continue
        states = (each.before, each.after)
        nodes = {state.node for state in states if state is not None and state.kind == "file"}
        for key in {each.real, each.first_place, *nodes} - {None}:
            spans.setdefault(key or "", set()).add((each.began, each.group))
    found = set()
    for key, times in spans.items():
        latest = 0
        for began, ended in sorted(times):
            if began < latest:
                found.add(key)
            latest = max(latest, ended)
    return found


def removed_nodes(changes: Iterable[Change]) -> set[str]:
    """Return the directories that a group removed, and did not only move."""
    removed: set[str] = set()
    in_order = sorted(changes, key=lambda each: each.group)
    for _, members in groupby(in_order, key=lambda each: each.group):
        group = list(members)
        left = {each.after.node for each in group if each.after is not None}
        removed |= {
            each.before.node
            for each in group
            if each.before is not None and each.before.node and each.before.node not in left
        }
    return removed


def _present(path: str, passed: list[_Moves]) -> str | None:
    found: str | None = path
    for moves in reversed(passed):
        if found is None:
            return None
        found = moves.forward(found)
    return found


def _above(path: str) -> Iterator[str]:
    """Yield the directories above a path, innermost first."""
    while (cut := path.rfind("/")) > 0:
        path = path[:cut]
        yield path
