"""Find the changes that a command made in the substitute for a workspace, by name.

An overlay stores changes in a separate directory: a changed file as a whole, a deleted name as a
device with number 0, a replaced directory with an opaque mark. A file that was written without a
change of its content or mode does not count. A rename counts as a deletion and a creation.
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
    """Relative to the workspace; may have surrogates for bytes that are not UTF-8."""
    before: Facts | None
    """State before the command; None: it did not exist."""
    after: Facts | None

    @property
    def kind(self) -> Literal["created", "changed", "deleted"]:
        if self.before is None:
            return "created"
        return "deleted" if self.after is None else "changed"


def find(stage: Stage) -> tuple[Change, ...]:
    """Return every change, sorted by path. The command must have ended.

    Raises `ToolExecutionError` if a directory cannot be searched completely.
    """
    left = take(stage.tree, most=MOST_ENTRIES, seconds=MOST_SECONDS)
    if left.unlisted:
        path, why = next(iter(left.unlisted.items()))
        raise ToolExecutionError(
            f"The changes of the command are incomplete: {sendable(path) or '.'}: {why}.",
            reason="preview_unlisted",
        )
    touched = _in_copy(stage.copied, left) if stage.copied is not None else _in_overlay(stage, left)
    changes = (Change(path, stage.before.entries.get(path), at) for path, at in touched.items())
    return tuple(sorted(filter(lambda each: _is_real(each, stage), changes), key=lambda c: c.path))


def content(root: str, path: str, most: int) -> bytes | None:
    """Return the content of a file or the target of a link; None if it is larger, or neither."""
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
    for path, at in left.entries.items():  # a directory comes before its content
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
    """Whether mode or content differ."""
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
    except OSError:  # the original changed during the comparison, or is unreadable
        return False


def _open(path: str) -> int:
    """Open a file of the command, even if the command removed the read permission."""
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
