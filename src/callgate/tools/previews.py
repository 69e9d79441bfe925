"""Changes that a command would make in the workspace: shown, then applied or discarded.

    check      nothing changed since the start, everything may be written      all or nothing
    apply      deletions, then new files, then changes                         one by one

Changes are applied through the file API like any write: the workspace boundary, the guard,
protected paths and the history apply to each file. A file is replaced only if it has not changed
since the command started. If the disk or another program causes a failure in between, the error
lists the applied changes, and `callgate undo` reverts them.
"""

from __future__ import annotations

import os
import stat
from hashlib import sha256

import msgspec

from callgate.core.commands import Exit
from callgate.core.errors import ToolError, ToolExecutionError
from callgate.sandbox.dry_runs import overlays
from callgate.sandbox.dry_runs.manifests import Facts, Manifest, take
from callgate.sandbox.dry_runs.overlays import Change, Stage, content
from callgate.workspace import refusals
from callgate.workspace.excerpts import diff
from callgate.workspace.files import MAX_BYTES, WorkspaceFileAPI
from callgate.workspace.paths import readable, sayable, shown
from callgate.workspace.undo import restoring
from callgate.workspace.undo.records import State

SHOWN = 256 * 1024
"""Maximum size in bytes of a text that is described by a diff."""
_MOST_SHOWN = 50
_NAMED = 10


class Preview(msgspec.Struct, frozen=True):
    stage: Stage
    exit: Exit
    changes: tuple[Change, ...]

    @property
    def paths(self) -> list[str]:
        """The paths that are text; other paths are checked when they are written."""
        return [each.path for each in self.changes if _is_text(each.path)]

    def digest(self) -> str:
        """A hash of everything that applying would write."""
        total = sha256()
        for each in self.changes:
            kinds = [None if at is None else at.mode for at in (each.before, each.after)]
            total.update(msgspec.json.encode([os.fsencode(each.path), kinds]))
            if each.after is not None:
                total.update(_digest(self.stage.tree, each.path))
        return total.hexdigest()


def discard(preview: Preview) -> None:
    """Discard a preview. The workspace was never changed."""
    overlays.remove(preview.stage)


def described(preview: Preview, files: WorkspaceFileAPI) -> str:
    """Describe every change, as a diff if it is text."""
    descriptions = [
        _shown_change(preview.stage, each, files) for each in preview.changes[:_MOST_SHOWN]
    ]
    if len(preview.changes) > _MOST_SHOWN:
        descriptions.append(f"[{len(preview.changes) - _MOST_SHOWN} more changes are not shown]")
    return "\n".join(descriptions) or "No file would change."


def check(preview: Preview, files: WorkspaceFileAPI) -> dict[str, State | None]:
    """Return the present state of each path. Raises if not all changes can be applied."""
    stage, changes = preview.stage, preview.changes
    if os.path.realpath(files.workspace_root) != stage.workspace:
        raise ValueError("a preview can only be applied in its own workspace")
    for each in changes:
        if why := _unfit(each):
            raise ToolExecutionError(
                f"{shown(sayable(each.path))} {why}; nothing was applied", reason="unfit_change"
            )
    states: dict[str, State | None] = {}
    for each in changes:
        real = _real(stage, each)
        try:
            restoring.judge_change(files, real)
            states[each.path] = None if each.before is None else restoring.state_of(files, real)
        except ToolExecutionError as error:  # a link or a missing directory in the path
            raise _changed([each.path]) from error
    # Last: a path that is still unchanged since the start was also unchanged in the checks above.
    now = take(stage.workspace, most=overlays.MOST_ENTRIES, seconds=overlays.MOST_SECONDS)
    if now.unlisted:
        raise _changed(list(now.unlisted))
    if moved := _moved(changes, now):
        raise _changed(moved)
    return states


def apply(preview: Preview, files: WorkspaceFileAPI) -> list[str]:
    """Make all changes or none; return the names of the changed files."""
    states = check(preview, files)
    done: list[str] = []
    try:
        for each in reversed(preview.changes):  # the content of a directory before the directory
            if _goes(each):
                _remove(preview.stage, each, files, states[each.path])
                done.append(sayable(each.path))
        for each in preview.changes:  # the directory first
            if each.after is not None:
                now = None if _goes(each) else states[each.path]
                _put(preview.stage, each, each.after, files, now)
                done.append(sayable(each.path))
    except (ToolError, OSError) as error:
        names = ", ".join(map(shown, dict.fromkeys(done))) or "nothing"
        cause = error if isinstance(error, ToolError) else error.strerror
        raise ToolExecutionError(
            f"{cause} (applied before that: {names})",
            reason="apply_incomplete",
            details={"files": sorted(set(done))},
        ) from error
    return sorted(set(done))


# --- whether it can be applied --------------------------------------------------------------


def _unfit(change: Change) -> str | None:
    """Return the reason for which the file API cannot make a change."""
    before, after = change.before, change.after
    if after is None:
        return None
    if not (after.is_directory or stat.S_ISREG(after.mode) or stat.S_ISLNK(after.mode)):
        return "would be neither a file, a link nor a directory"
    if before is not None and before.is_directory and after.is_directory:
        return "would only change the mode of a directory"
    if stat.S_IMODE(after.mode) & ~0o777 and not after.is_directory:
        return "would run with its owner's rights for every user"
    if stat.S_ISREG(after.mode) and after.size > MAX_BYTES:
        return "would be too large"
    return None


def _moved(changes: tuple[Change, ...], now: Manifest) -> list[str]:
    """Return the paths with later changes in the workspace, which applying would overwrite: changed
    paths, paths without their directory, and new entries of directories to delete."""
    by_path = {each.path: each for each in changes}
    moved = [p for p, each in by_path.items() if not _same(each.before, now.entries.get(p))]
    for each in changes:
        parent = os.path.dirname(each.path)
        if parent and parent not in by_path and not _is_directory(now.entries.get(parent)):
            moved.append(each.path)
    going = {path for path, each in by_path.items() if _goes(each) and _is_directory(each.before)}
    if going:
        inside = (path for path in now.entries if path not in by_path)
        moved += [path for path in inside if os.path.dirname(path) in going]
    return sorted(set(moved))


def _same(one: Facts | None, other: Facts | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.is_same(other)


def _is_directory(at: Facts | None) -> bool:
    return at is not None and at.is_directory


def _changed(paths: list[str]) -> ToolError:
    names = [shown(sayable(path)) for path in paths[:_NAMED]]
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ToolExecutionError(
        f"Changed since the command started: {', '.join(names)}{more}; nothing was applied",
        reason="changed_since",
        details={"files": [sayable(path) for path in paths]},
    )


# --- one change -----------------------------------------------------------------------------


def _goes(change: Change) -> bool:
    """Whether to remove the present file first: it is deleted or changes its kind."""
    before, after = change.before, change.after
    if before is None:
        return False
    if after is None or stat.S_IFMT(before.mode) != stat.S_IFMT(after.mode):
        return True
    return stat.S_ISLNK(after.mode)  # a link has no content to replace


def _remove(stage: Stage, change: Change, files: WorkspaceFileAPI, now: State | None) -> None:
    real = _real(stage, change)
    if change.before is not None and change.before.is_directory:
        if not restoring.remove_directory(files, real):
            raise refusals.changed(sayable(change.path))
    elif now is not None:
        restoring.remove(files, real, now)


def _put(
    stage: Stage, change: Change, after: Facts, files: WorkspaceFileAPI, now: State | None
) -> None:
    real, mode = _real(stage, change), stat.S_IMODE(after.mode)
    if after.is_directory:
        restoring.put_directory(files, real, mode)
        return
    data = content(stage.tree, change.path, MAX_BYTES)
    if data is None:
        raise refusals.changed(sayable(change.path))
    if stat.S_ISLNK(after.mode):
        restoring.put_link(files, real, data)
    else:
        restoring.put_file(files, real, data, mode, now)


def _real(stage: Stage, change: Change) -> str:
    return os.path.join(stage.workspace, change.path)


# --- descriptions ---------------------------------------------------------------------------


def _shown_change(stage: Stage, change: Change, files: WorkspaceFileAPI) -> str:
    """Return a diff of text, and a description of other files."""
    name, real = readable(sayable(change.path)), _real(stage, change)
    try:
        _may_read(files, real, name)
        old = b"" if change.before is None else restoring.content_of(files, real, SHOWN)
        new = b"" if change.after is None else content(stage.tree, change.path, SHOWN)
    except (ToolError, OSError):
        old = new = None  # not readable for us, or replaced since
    was, becomes = _text(change.before, old), _text(change.after, new)
    changed = "" if was is None or becomes is None else diff(was, becomes, name)
    if not changed or _mode_matters(change):
        words = f"{name}: {_words(change.before, old)} -> {_words(change.after, new)}"
        return f"{changed}\n{words}" if changed else words
    return changed if change.after is not None else f"{changed}\n[{name} goes]"


def _may_read(files: WorkspaceFileAPI, real: str, name: str) -> None:
    with files.wall.spot_of(real) as spot, refusals.answering(name):
        files.judge(files.wall.real(spot, name), "read", spot.root, name)


def _mode_matters(change: Change) -> bool:
    """Whether to mention the mode, which a diff does not contain: it changes, or a new file is
    executable."""
    before, after = change.before, change.after
    if after is None:
        return False
    return after.mode & 0o111 != 0 if before is None else before.mode != after.mode


def _text(at: Facts | None, data: bytes | None) -> str | None:
    """Return a file's content as text, empty if there is no file; None if it has no diff."""
    if data is None or (at is not None and not stat.S_ISREG(at.mode)):
        return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _words(at: Facts | None, data: bytes | None) -> str:
    if at is None:
        return "nothing"
    if at.is_directory:
        return f"directory, mode {stat.S_IMODE(at.mode):o}"
    if stat.S_ISLNK(at.mode):
        return "link" if data is None else f"link to {shown(sayable(os.fsdecode(data)))}"
    if stat.S_ISREG(at.mode):
        return f"file, {at.size:,} bytes, mode {stat.S_IMODE(at.mode):o}"
    return "neither file nor directory"


def _is_text(path: str) -> bool:
    return sayable(path) == path


def _digest(root: str, path: str) -> bytes:
    data = content(root, path, MAX_BYTES)
    return b"" if data is None else sha256(data).digest()
