"""The changes of each path through moved directories, from the newest to the oldest.

    group of changes:   d/x changed;  d moved to e;  e/x changed
    track of one file:  e/x now       e/x            d/x before all of them

A change names paths before and after its group. The paths of older groups are the paths before the
newer ones, so a track follows a name back through every move. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from callgate.workspace.undo.records import Change


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
