"""One line a change: what stood under a path, what stands there now, and who changed it.

Pure: values, and their spelling in the files of the history.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec

from callgate.workspace.noting import Kind


class State(msgspec.Struct, frozen=True, omit_defaults=True):
    """What stood, or stands, under a path."""

    kind: Kind
    mode: int
    """Permission bits."""
    size: int = 0
    sha256: str | None = None
    """Of a file its content, of a link its target; None where it is not known."""
    kept: bool = False
    """The content can be had again, until it is too old."""


def is_same(one: State | None, other: State | None) -> bool:
    """Whether two states have the same content; the mode does not count."""
    if one is None or other is None:
        return one is other
    if one.kind != other.kind or one.kind == "other":
        return False
    return one.kind == "directory" or (one.sha256 is not None and one.sha256 == other.sha256)


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Who makes changes."""

    session: str
    call: str
    tool: str
    workspace: bytes
    turn: str | None = None

    @property
    def directory(self) -> str:
        """The workspace as a path."""
        return self.workspace.decode("utf-8", "surrogatepass")


class Change(msgspec.Struct, frozen=True, kw_only=True, tag_field="line", tag="change"):
    origin: Origin
    path: bytes
    """Absolute, links resolved. Bytes, because a name need not be text."""
    before: State | None
    """None: nothing stood there."""
    after: State | None
    at: int
    """Nanoseconds since 1970; in one process greater than that of the change before it."""

    @property
    def kind(self) -> Literal["created", "changed", "deleted", "directory made"]:
        if self.after is None:
            return "deleted"
        if self.before is not None:
            return "changed"
        return "directory made" if self.after.kind == "directory" else "created"

    @property
    def real(self) -> str:
        return os.fsdecode(self.path)


class Withdrawn(msgspec.Struct, frozen=True, tag_field="line", tag="withdrawn"):
    """The change of that moment was not made."""

    at: int


Line = Change | Withdrawn


class Recorded(NamedTuple):
    changes: list[Change]
    """Oldest first."""
    damaged: int = 0
    """Lines that could not be read, such as one that a crash cut short."""


_decode = msgspec.json.Decoder(Line).decode
encode = msgspec.json.Encoder().encode


def read(content: bytes) -> Recorded:
    """The changes in a file of the history, without those that were not made."""
    changes: dict[int, Change] = {}
    damaged = 0
    for text in content.split(b"\n"):
        if not text:
            continue
        try:
            line = _decode(text)
        except (ValueError, RecursionError):
            damaged += 1
            continue
        if isinstance(line, Change):
            changes[line.at] = line
        else:
            changes.pop(line.at, None)
    return Recorded(list(changes.values()), damaged)


_ULID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}\Z")


def after_turn(changes: Sequence[Change], turn: str) -> list[Change] | None:
    """What was changed after the end of a turn; None if nobody knows when that was.

    A turn that changed nothing is placed by its id, which sorts by the moment of its making.
    """
    positions = [change.at for change in changes if change.origin.turn == turn]
    if positions:
        return [change for change in changes if change.at > max(positions)]
    if not (placed := _ULID.search(turn)):
        return None
    return [
        change
        for change in changes
        if (found := _ULID.search(change.origin.turn or change.origin.call))
        and found[0] > placed[0]
    ]


def merged(records: Iterable[Recorded]) -> Recorded:
    found = list(records)
    changes = sorted((change for part in found for change in part.changes), key=lambda c: c.at)
    return Recorded(changes, sum(part.damaged for part in found))
