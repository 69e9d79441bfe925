"""Run a command over a workspace without changing the workspace.

    stage = await prepare(workspace, parents)      a scratch directory, a manifest of the start
    running = await start(stage, ...)              the command, over an overlay or in a copy
    changes = differences.find(stage)              the changes that it would have made
    remove(stage)

If namespaces are available, the substitute is mounted at the workspace's path, so all paths stay
valid. It is an overlay if the kernel supports one, which copies only changed files, else a copy.
If they are not, the command runs in the copy, at the copy's path.

A scratch directory is locked while a process uses it. The next process removes the
directories of killed ones.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeVar, TypeVarTuple

import msgspec

from callgate.core.commands import Command, OnOutput
from callgate.core.errors import ToolExecutionError
from callgate.sandbox import profiles
from callgate.sandbox.dry_runs.copies import copy_tree, remove_tree
from callgate.sandbox.dry_runs.manifests import Manifest, take
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
