"""Run a command over a workspace without changing the workspace, and find its changes.

    stage = await prepare(workspace, parents)      a scratch directory, a manifest of the start
    running = await start(stage, ...)              the command, over an overlay or in a copy
    changes = differences.find(stage)              the changes that it would have made
    remove(stage)

If namespaces are available, the substitute is mounted at the workspace's path, so all paths stay
valid. It is an overlay if the kernel supports one, which copies only changed files, else a copy.
If they are not, the command runs in the copy, at the copy's path.

A scratch directory is locked while a process uses it. The next process removes the
directories of killed ones.

Find the changes that a command made in the substitute for a workspace, by name.

An overlay stores changes in a separate directory: a changed file as a whole, a deleted name as a
device with number 0, a replaced directory with an opaque mark. A file that was written without a
change of its content or mode does not count. A rename counts as a deletion and a creation.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import stat
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, TypeVar, TypeVarTuple

import msgspec

from callgate.core.commands import Command, OnOutput
from callgate.core.errors import ToolExecutionError
from callgate.sandbox import profiles
from callgate.sandbox.dry_runs.manifests import (
    Facts,
    Manifest,
    compare,
    copy_tree,
    remove_tree,
    sendable,
    take,
)
from callgate.sandbox.jails import Guarantee, Jail, below_any, default_limits, is_below
from callgate.sandbox.plans import Backend, CannotGuarantee, choose
from callgate.sandbox.processes import ordering
from callgate.sandbox.processes.broker_client import (
    BrokeredProcess,
    BrokerProcess,
    RestrictionFailed,
)

MOST_ENTRIES = 200_000
MOST_SECONDS = 20.0
MOST_COPIED = 1024 * 1024 * 1024
"""Maximum bytes of a workspace that is copied."""

Way = Literal["overlay", "copy"]
_PREFIX = "preview-"
_A = TypeVarTuple("_A")
_R = TypeVar("_R")


class Stage(msgspec.Struct, frozen=True):
    """A workspace and its substitute."""

    workspace: str
    """Real and absolute path."""
    scratch: str
    lock: int
    way: Way
    before: Manifest
    """Manifest of the whole workspace before the start of the command."""
    copied: Manifest | None = None
    """Manifest of the copy, if the stage is one."""

    @property
    def tree(self) -> str:
        """Directory of changed contents, at the same relative paths as in the workspace."""
        return os.path.join(self.scratch, "tree")

    @property
    def work(self) -> str:
        return os.path.join(self.scratch, "work")


async def prepare(workspace: str, parents: Sequence[str]) -> Stage:
    """Prepare a stage in the first suitable parent directory.

    It is an overlay if that looks possible, else a copy.
    """
    return await in_thread(_prepare, os.path.realpath(workspace), parents)


async def start(
    stage: Stage,
    process: BrokerProcess,
    backends: Sequence[Backend],
    command: Command,
    paths: profiles.SandboxPaths,
    on_output: OnOutput,
    *,
    bwrap: str | None = None,
) -> tuple[Stage, BrokeredProcess]:
    """Start a command over a stage. Returns the stage, as a copy if the overlay failed.

    The command has no network, and can write only to the substitute. Raises `CannotGuarantee`, or
    `OSError` if the command itself cannot be started. The caller removes the stage in any case.
    """
    jail = _jail(stage, paths)
    plan = choose(jail, backends)
    output = jail.limits.output_bytes
    if "namespaces" not in plan.backends:
        jail = _around_copy(jail, stage)
        plan = choose(jail, backends)
        stage = await in_thread(_as_copy, stage)
        inside = os.path.relpath(command.cwd, stage.workspace)
        moved = os.path.normpath(os.path.join(stage.tree, inside))
        command = msgspec.structs.replace(command, cwd=moved)
        order = ordering.order(command, plan, bwrap=bwrap)
        return stage, await process.start(order, on_output, most_output=output)
    order = ordering.order(command, plan)
    assert order["layout"] is not None
    if stage.way == "overlay":
        order["layout"]["stand_in"] = stage.workspace, stage.tree, stage.work
        try:
            return stage, await process.start(order, on_output, most_output=output)
        except RestrictionFailed as error:
            if error.step != "namespaces":
                raise
        stage = await in_thread(_as_copy, stage)
    order["layout"]["stand_in"] = stage.workspace, stage.tree, ""
    return stage, await process.start(order, on_output, most_output=output)


def remove(stage: Stage) -> None:
    """Delete everything that the command left."""
    try:
        remove_tree(stage.scratch)
    finally:
        os.close(stage.lock)


async def in_thread(work: Callable[[*_A], _R], *arguments: *_A) -> _R:
    """Run in a thread without this context, so that opens are not opens of the running tool."""
    return await asyncio.get_running_loop().run_in_executor(None, work, *arguments)


def _jail(stage: Stage, paths: profiles.SandboxPaths) -> Jail:
    """Return the jail of commands in this workspace, with all roots outside it read-only."""
    inside = msgspec.structs.replace(
        paths,
        workspace=stage.workspace,
        read_roots=(*paths.read_roots, *paths.write_roots),
        write_roots=(),
        protected=(),  # changes there are reported, but not applied
    )
    jail = profiles.workspace(inside, limits=default_limits())
    return msgspec.structs.replace(jail, hidden=tuple(sorted({*jail.hidden, stage.scratch})))


def _around_copy(jail: Jail, stage: Stage) -> Jail:
    """Return the jail of a command that runs in the copy, with access to the copy only."""
    hidden = tuple(path for path in jail.hidden if path != stage.scratch)
    if below_any(stage.scratch, hidden):
        raise CannotGuarantee(
            {Guarantee.HIDDEN_MASKED}, ["the copy would be in a directory that must stay hidden"]
        )

    def copied(paths: tuple[str, ...]) -> set[str]:
        inside = (path for path in paths if is_below(path, stage.workspace))
        return {os.path.join(stage.tree, os.path.relpath(path, stage.workspace)) for path in inside}

    return msgspec.structs.replace(
        jail,
        writable=(stage.tree,),
        protected=tuple(sorted(copied(jail.protected))),
        hidden=tuple(sorted({*hidden, *copied(hidden)})),
    )


def _prepare(workspace: str, parents: Sequence[str]) -> Stage:
    before = take(workspace, most=MOST_ENTRIES, seconds=MOST_SECONDS)
    if before.unlisted:
        path, why = next(iter(before.unlisted.items()))
        raise ToolExecutionError(
            f"The workspace cannot be previewed: {path or '.'!r}: {why}.",
            reason="workspace_unlisted",
        )
    usable = [path for path in map(os.path.realpath, parents) if not is_below(path, workspace)]
    for parent in usable:
        try:
            scratch, lock = _scratch(parent)
        except OSError:
            continue
        if not _has_mounts(workspace) and _takes_attributes(scratch):
            stage = Stage(workspace, scratch, lock, "overlay", before)
            os.mkdir(stage.tree)
            os.mkdir(stage.work, 0o700)
            os.chmod(stage.tree, stat.S_IMODE(os.stat(workspace).st_mode))  # the overlay's root
            return stage
        stage = Stage(workspace, scratch, lock, "copy", before)
        try:
            return _as_copy(stage)
        except BaseException:
            remove(stage)
            raise
    raise ToolExecutionError(
        "No directory outside the workspace is usable for a preview.",
        reason="no_scratch",
    )


def _as_copy(stage: Stage) -> Stage:
    """Return the stage with a copy of the workspace."""
    if stage.copied is not None:
        return stage
    files = (at.size for at in stage.before.entries.values() if stat.S_ISREG(at.mode))
    if sum(files) > MOST_COPIED:
        raise ToolExecutionError(
            f"The workspace has more than {MOST_COPIED:,} bytes, too many to copy, and an overlay"
            " is not possible here.",
            reason="workspace_too_large",
        )
    try:
        if os.path.lexists(stage.tree):
            remove_tree(stage.tree)
        copy_tree(stage.workspace, stage.tree, MOST_COPIED)
    except OSError as error:
        raise ToolExecutionError(
            f"The workspace cannot be copied: {error.strerror}.",
            reason="workspace_uncopied",
            underlying=error,
        ) from error
    copied = take(stage.tree, most=MOST_ENTRIES, seconds=MOST_SECONDS)
    return msgspec.structs.replace(stage, way="copy", copied=copied)


# --- scratch directories --------------------------------------------------------------------


def _scratch(parent: str) -> tuple[str, int]:
    os.makedirs(parent, mode=0o700, exist_ok=True)
    _sweep(parent)
    path = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_SH)
    return path, lock


def _sweep(parent: str) -> None:
    """Remove the directories of dead processes."""
    for path in _left(parent):
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if os.fstat(lock).st_uid == os.geteuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(path)
        except OSError:
            pass  # another process uses it
        finally:
            os.close(lock)


def _left(parent: str) -> Iterator[str]:
    with os.scandir(parent) as names:
        for entry in names:
            # An empty one may be new, and not locked yet.
            if entry.name.startswith(_PREFIX) and os.path.lexists(f"{entry.path}/tree"):
                yield entry.path


def _takes_attributes(directory: str) -> bool:
    """Whether an overlay can mark replaced directories here."""
    try:
        os.setxattr(directory, "user.callgate", b"")
    except (OSError, AttributeError):  # not every system has the function
        return False
    return True


def _has_mounts(directory: str) -> bool:
    """Whether there is a mount below, which an overlay would not include."""
    try:
        with open("/proc/self/mountinfo", "rb") as lines:
            points = [line.split(b" ")[4] for line in lines]
    except OSError as error:
        if error.errno == errno.ENOENT:
            return True  # unknown
        raise
    inside = os.fsencode(directory.rstrip("/") + "/")
    return any(_unescaped(point).startswith(inside) for point in points)


def _unescaped(point: bytes) -> bytes:
    for written, meant in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n")):
        point = point.replace(written, meant)
    return point.replace(b"\\134", b"\\")


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
