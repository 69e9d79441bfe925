"""What a command changed in the stand-in for a workspace, name by name.

An overlay keeps what was changed in a directory of its own: a changed file whole, a deleted
name as a device with no number, a replaced directory marked as opaque. What was only touched,
and has the content and mode that it had, is no change. What was renamed is a name that went
and one that came.
"""

from __future__ import annotations

import os
import stat
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from callgate.core.errors import ToolExecutionError
from callgate.sandbox.dry_runs.manifests import Facts, Manifest, compare, sendable, take
from callgate.sandbox.dry_runs.overlays import MOST_ENTRIES, MOST_SECONDS, Stage

_BLOCK = 1024 * 1024
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Change(msgspec.Struct, frozen=True):
    path: str
    """From the workspace; may have surrogates for bytes that are no text."""
    before: Facts | None
    """As it was before the command started; None: it was not there."""
    after: Facts | None

    @property
    def kind(self) -> Literal["created", "changed", "deleted"]:
        if self.before is None:
            return "created"
        return "deleted" if self.after is None else "changed"


def find(stage: Stage) -> tuple[Change, ...]:
    """Every change, sorted by path. The command must have ended.

    What cannot be looked at whole cannot be shown whole: `ToolExecutionError`.
    """
    left = take(stage.tree, most=MOST_ENTRIES, seconds=MOST_SECONDS)
    if left.unlisted:
        path, why = next(iter(left.unlisted.items()))
        raise ToolExecutionError(
            f"What the command left cannot be shown: {sendable(path) or '.'}: {why}.",
            reason="preview_unlisted",
        )
    touched = _in_copy(stage.copied, left) if stage.copied is not None else _in_overlay(stage, left)
    changes = (Change(path, stage.before.entries.get(path), at) for path, at in touched.items())
    return tuple(sorted(filter(lambda each: _is_real(each, stage), changes), key=lambda c: c.path))


def content(root: str, path: str, most: int) -> bytes | None:
    """A file's content or a link's target below a directory; None if it is more, or neither."""
    full = os.path.join(root, path)
    mode = os.lstat(full).st_mode
    if stat.S_ISLNK(mode):
        return os.fsencode(os.readlink(full))
    if not stat.S_ISREG(mode):
        return None
    with open(_open(full), "rb") as file:
        data = file.read(most + 1)
    return None if len(data) > most else data


def _in_copy(copied: Manifest, left: Manifest) -> dict[str, Facts | None]:
    seen = compare(copied, left)
    return {path: left.entries.get(path) for path in (*seen.created, *seen.changed, *seen.deleted)}


def _in_overlay(stage: Stage, left: Manifest) -> dict[str, Facts | None]:
    before = stage.before.entries
    known = sorted(before)
    touched: dict[str, Facts | None] = {}
    for path, at in left.entries.items():  # a directory comes before what is in it
        was_directory = path in before and before[path].is_directory
        deleted = stat.S_ISCHR(at.mode)  # a command cannot make devices
        touched[path] = None if deleted else at
        if was_directory and (not at.is_directory or _is_opaque(os.path.join(stage.tree, path))):
            touched |= dict.fromkeys(_below(path, known))
    return touched


def _below(path: str, known: list[str]) -> Iterator[str]:
    for index in range(bisect_left(known, path + "/"), len(known)):
        if not known[index].startswith(path + "/"):
            return
        yield known[index]


def _is_opaque(path: str) -> bool:
    try:
        return os.getxattr(path, "user.overlay.opaque", follow_symlinks=False) == b"y"
    except OSError:
        return False


def _is_real(change: Change, stage: Stage) -> bool:
    """Whether anything is different for who looks at modes and contents."""
    before, after = change.before, change.after
    if before is None or after is None:
        return before is not after
    if before.mode != after.mode or before.is_directory:
        return before.mode != after.mode
    if stat.S_ISREG(after.mode) and before.size != after.size:
        return True
    return not _same_content(stage.workspace, stage.tree, change.path)


def _same_content(one: str, other: str, path: str) -> bool:
    first, second = os.path.join(one, path), os.path.join(other, path)
    try:
        if stat.S_ISLNK(os.lstat(second).st_mode):
            return os.readlink(first) == os.readlink(second)
        if not stat.S_ISREG(os.lstat(second).st_mode):
            return True
        with open(os.open(first, _READ), "rb") as was, open(_open(second), "rb") as becomes:
            while piece := was.read(_BLOCK):
                if piece != becomes.read(_BLOCK):
                    return False
            return not becomes.read(1)
    except OSError:  # the original went or changed meanwhile, or is closed to us
        return False


def _open(path: str) -> int:
    """Open what a command left, even if it took the right to read it from its owner."""
    try:
        return os.open(path, _READ)
    except PermissionError:
        os.chmod(path, 0o600)
        return os.open(path, _READ)


def counts(changes: tuple[Change, ...]) -> Mapping[str, int]:
    found = {"created": 0, "changed": 0, "deleted": 0}
    for each in changes:
        found[each.kind] += 1
    return found
