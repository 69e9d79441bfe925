"""Launchers whose commands leave a change set, so that `callgate undo` can revert them.

    start    a directory for pre-images, which the sandbox fills (`core/local/preimages`)
    end      its log becomes ordinary changes of the call (`workspace/undo/command_changes`)

Loaded with the first command of a call, because most calls start none.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from callgate.core.commands import Command, CommandChanges, Exit, Launcher, OnOutput, Running
from callgate.core.commands import Preimages as Stored
from callgate.core.errors import ToolExecutionError
from callgate.dispatch.commands.launchers import WrappedRunning
from callgate.sandbox.plans import SandboxPlan
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.undo.command_changes import ChangeSet
from callgate.workspace.undo.discarding import discard
from callgate.workspace.undo.history import History
from callgate.workspace.undo.records import Change, Origin

_log = logging.getLogger("callgate.history")

_MOST_LISTED = 1_000
"""Maximum files of moved directories that are listed."""


def is_recorded(launcher: Launcher | None) -> bool:
    """Whether the commands of a launcher leave change sets."""
    plan = getattr(launcher, "plan", None)
    return isinstance(plan, SandboxPlan) and plan.records_changes


class RecordingLauncher:
    """A launcher for the commands of one call."""

    records_changes = True

    def __init__(
        self,
        around: Launcher,
        history: History,
        origin: Origin,
        roots: Sequence[str],
        files: Callable[[], WorkspaceFileAPI],
        *,
        discards_failed: bool = False,
    ) -> None:
        """`files` opens the files of the call. `discards_failed`: revert the changes of commands
        that fail."""
        self._files = files
        self._discards_failed = discards_failed
        self._around = around
        self._history = history
        self._origin = origin
        self._roots = tuple(map(os.path.realpath, roots))

    async def start(self, command: Command, on_output: OnOutput) -> Running:
        if command.stdin is not None:  # a host or server, which serves many calls
            return await self._around.start(command, on_output)
        try:
            directory = self._history.begin_command(self._origin, self._roots)
        except OSError as error:
            raise ToolExecutionError(
                f"The history of changes cannot be written ({error.strerror or error}),"
                " so the command is not started",
                reason="undo_unwritable",
                underlying=error,
            ) from error
        bounds = self._history.bounds
        stored = Stored(
            directory=directory,
            roots=self._roots,
            max_file=bounds.limit,
            max_total=bounds.max_call,
            key=self._history.command_key(os.path.basename(directory)),
            excluded=bounds.excluded,
            strict=bounds.strict,
            tolerant=bounds.tolerant,
        )
        try:
            command = msgspec.structs.replace(command, preimages=stored)
            running = await self._around.start(command, on_output)
        except BaseException:
            self._history.discard(directory)
            raise
        when = (command.discards_changes, command.discards_changes or self._discards_failed)
        return _Recorded(running, self._history, self._origin, directory, self._files, when)


class _Recorded(WrappedRunning):
    """A command whose exit lists its changes."""

    def __init__(
        self,
        running: Running,
        history: History,
        origin: Origin,
        directory: str,
        files: Callable[[], WorkspaceFileAPI],
        discards: tuple[bool, bool],
    ) -> None:
        """`discards`: whether changes are reverted after a success, and after a failure."""
        super().__init__(running)
        self._files = files
        self._discards = discards
        self._history = history
        self._origin = origin
        self._directory = directory
        self._settled: asyncio.Future[CommandChanges] | None = None

    async def wait(self) -> Exit:
        ended = await self._running.wait()
        if self._settled is None:
            loop = asyncio.get_running_loop()
            self._settled = loop.run_in_executor(None, self._settle, _has_failed(ended))
        changes = await asyncio.shield(self._settled)
        return msgspec.structs.replace(ended, changes=changes)

    def _settle(self, has_failed: bool) -> CommandChanges:
        try:
            found = self._history.settle(self._directory, self._origin)
        except OSError as error:
            _log.error("the changes of a command are listed later: %s", error)
            return CommandChanges(is_recorded=False)
        if self._discards[has_failed] and found.is_recorded:
            return self._discarded(found)
        return listed(found, os.path.realpath(self._origin.directory))

    def _discarded(self, found: ChangeSet) -> CommandChanges:
        remaining = set(discard(self._files(), self._history, found.changes))
        changed = {each.real for each in found.changes if not each.is_source}
        left = [each for each in found.changes if each.real in remaining]
        known = dict(found.unkept)
        unkept = [(path, known.get(path, "changed since")) for path in sorted(remaining)]
        result = listed(ChangeSet(left, unkept), os.path.realpath(self._origin.directory))
        return msgspec.structs.replace(result, discarded=len(changed - remaining))


def _has_failed(ended: Exit) -> bool:
    return ended.code != 0 or ended.stopped or ended.limit is not None


def listed(found: ChangeSet, workspace: str) -> CommandChanges:
    """Return the paths of a change set, relative to the workspace."""
    prefix = workspace.rstrip("/") + "/"

    def shown(path: str) -> str:
        return path.removeprefix(prefix)

    created: set[str] = set()
    changed: set[str] = set()
    deleted: set[str] = set()
    for each in found.changes:
        if each.is_source:
            continue
        first = each.first_place or each.real
        if each.before is not None and each.after is not None and first == each.real:
            changed.add(shown(each.real))
            continue
        if each.before is not None:
            deleted.add(shown(first))
        if each.after is not None:
            created.add(shown(each.real))
    for source, target in _moved(found.changes):
        deleted.add(shown(source))
        created.add(shown(target))
    both = created & deleted
    return CommandChanges(
        created=tuple(sorted(created - both)),
        changed=tuple(sorted(changed | both)),
        deleted=tuple(sorted(deleted - both)),
        unkept=tuple((shown(path), why) for path, why in found.unkept),
        is_recorded=found.is_recorded,
    )


def _moved(changes: Iterable[Change]) -> Iterator[tuple[str, str]]:
    """Yield the old and new paths of files in moved directories, up to a limit."""
    sources = {
        each.before.node: each.first_place
        for each in changes
        if each.before is not None and each.before.kind == "directory" and each.first_place
    }
    count = 0
    for each in changes:
        if each.after is None or each.after.node not in sources:
            continue
        source = sources[each.after.node]
        if source is None or source == each.real:
            continue
        for directory, directories, files in os.walk(each.real):
            for name in (*directories, *files):
                count += 1
                if count > _MOST_LISTED:
                    return
                path = os.path.join(directory, name)
                yield source + path[len(each.real) :], path
