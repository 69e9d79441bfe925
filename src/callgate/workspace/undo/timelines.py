"""The recorded changes of calls in order: of one call, of a session, and between two calls."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from callgate.core.errors import ToolExecutionError
from callgate.workspace.undo.comparing import ChangeSet, Difference, describe, named, net
from callgate.workspace.undo.history import History
from callgate.workspace.undo.records import Change, Recorded

_NAMED = 50
"""Maximum number of named files per call of a timeline."""


class ChangedFile(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    kind: str


class ChangedCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call that changed files."""

    call: str
    tool: str
    turn: str | None
    at: float
    """Time of its last change, in seconds since 1970."""
    count: int
    files: list[ChangedFile]
    """The first changed files."""


def of_call(history: History, call: str) -> ChangeSet | None:
    """Describe the changes of one call; None if none are stored."""
    return _described(history, history.of_call(call))


def of_session(history: History, session: str) -> list[ChangedCall]:
    """Return the calls of a session that changed files, oldest first."""
    by_call: dict[str, list[Change]] = {}
    for each in history.of_session(session).changes:
        by_call.setdefault(each.origin.call, []).append(each)
    return [_changed_call(changes) for changes in by_call.values()]


def between(
    history: History, session: str, after: str | None, upto: str | None
) -> ChangeSet | None:
    """Describe the changes of a session after one call, or from its beginning, to the end of
    another call, or to its end. None if no such changes are stored."""
    found = history.of_session(session)
    first = 0 if after is None else _end(found.changes, after) + 1
    last = found.changes[-1].at if upto is None and found.changes else _end(found.changes, upto)
    chosen = [each for each in found.changes if first <= each.at <= last]
    return _described(history, found._replace(changes=chosen))


def from_call(history: History, call: str) -> Recorded:
    """Return the changes of a call, and all later ones of its session."""
    found = history.of_call(call)
    if not found.changes:
        return found
    start, session = found.changes[0].at, found.changes[0].origin.session
    recorded = history.of_session(session)
    return recorded._replace(changes=[each for each in recorded.changes if each.at >= start])


def later_than(history: History, changes: Sequence[Change]) -> list[Change]:
    """Return all changes in the workspace of a call after its end, of every session."""
    end, origin = changes[-1].at, changes[-1].origin
    later = history.since(end / 1e9, origin.directory).changes
    return [each for each in later if each.at > end and each.origin.call != origin.call]


def _end(changes: Sequence[Change], call: str | None) -> int:
    moments = [each.at for each in changes if each.origin.call == call]
    if not moments:
        raise ToolExecutionError("This session has no changes of that call", reason="no_changes")
    return max(moments)


def _described(history: History, found: Recorded) -> ChangeSet | None:
    if not found.changes:
        return None
    known = later_than(history, found.changes)
    shown = describe(history, found.changes, found.changes[-1].origin.directory, known=known)
    return msgspec.structs.replace(shown, damaged=found.damaged)


def _changed_call(changes: list[Change]) -> ChangedCall:
    origin, found = changes[-1].origin, net(changes)
    root = os.path.realpath(origin.directory).rstrip("/") + "/"

    def file(each: Difference) -> ChangedFile:
        return ChangedFile(path=named(each.path, root), kind=each.kind)

    return ChangedCall(
        call=origin.call,
        tool=origin.tool,
        turn=origin.turn,
        at=changes[-1].at / 1e9,
        count=len(found),
        files=[file(each) for each in found[:_NAMED]],
    )
