"""The files of one call: its workspace and extra roots, behind the policy's check of each path.

The guard checks the path of the opened descriptor, so a rule about a path also applies to links
that lead there.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from callgate.core.calls import ToolCall
from callgate.core.errors import ToolPermissionDenied, ToolValidationError, WorkspaceEscapeError
from callgate.core.events import EFFECT_MISMATCH
from callgate.core.local.disk import make_private_directory, sync_directory, sync_file
from callgate.core.sessions import ResolvedPath, Root
from callgate.core.tasks import TaskSet
from callgate.core.tools import ToolFactory
from callgate.dispatch.subjects import Subject, question
from callgate.dispatch.tools.registry import Registered
from callgate.policy.decide import Rulebook
from callgate.policy.opinions import applies, lifts_protection
from callgate.policy.rules import Outcome, Rule, is_within
from callgate.workspace.files import Guard, WorkspaceFileAPI
from callgate.workspace.paths import opening
from callgate.workspace.protected import is_only_pipeline

if TYPE_CHECKING:  # loaded with the first call that may change a file
    from callgate.core.commands import Launcher
    from callgate.workspace.undo.history import CallHistory, History
    from callgate.workspace.undo.records import Origin

Policies = Callable[[str], Rulebook]
Report = Callable[[str, Mapping[str, Any]], None]
"""Takes an event's type and payload."""

_log = logging.getLogger("callgate.files")

UNDECLARED = "effect_undeclared"
"""The error reason if a tool that declares no writes tried to write."""


class CallFiles:
    """Opens the files of calls, and provides a directory for output too large for a result."""

    def __init__(
        self,
        policies: Policies,
        home: str | None = None,
        *,
        history: Callable[[], History] | None = None,
        synced: bool = True,
        undoable: tuple[ToolFactory, ...] = (),
        discards_failed: bool = False,
    ) -> None:
        """`home` contains settings, answers and the audit log: no tool writes there. `history`
        opens the store of changes, which makes calls undoable. `synced`: changes survive a power
        failure. `undoable`: the tools whose effects are all in the history. `discards_failed`:
        changes of commands that fail are reverted."""
        self._policies = policies
        self.undoable = undoable if history is not None else ()
        self._synced = synced
        self._discards_failed = discards_failed
        self._history = history
        self._home = None if home is None else os.path.realpath(home)
        self.artifacts = None if home is None else os.path.join(home, "artifacts")
        self._artifacts: dict[str, Root] = {}
        """Artifact directory of each session, which its own tools may read."""
        self.share: Callable[[str, Sequence[str]], Awaitable[None]] | None = None
        """Shares the artifacts of a session with other servers; None: there are none."""
        self._sharing = TaskSet(_log, "an artifact of a call is not shared")

    def open(
        self,
        call: ToolCall,
        subject: Subject | None = None,
        report: Report = lambda type, payload: None,
    ) -> WorkspaceFileAPI:
        """Return the files of a call. Path rules apply to every file that the tool opens, if there
        is a `subject`; without one, paths can only be located. `report` receives the event if a
        tool exceeds its declared effect."""
        session = call.session
        artifacts = self._artifacts.get(session.id)
        roots = session.extra_roots if artifacts is None else (*session.extra_roots, artifacts)
        files = _files(session.workspace, roots, self._synced)
        if subject is None:
            return files
        guard = self._guard(call, subject, files, report)
        return files.guarded(guard, self._changes(call, subject))

    def _changes(self, call: ToolCall, subject: Subject) -> CallHistory | None:
        if (
            self._history is None or not subject.tool.has_effects
        ):  # the guard lets a tool without effects change nothing
            return None
        return self._history().of(_origin(call, subject))

    def recording(
        self, launcher: Launcher, confined: Launcher | None, call: ToolCall, subject: Subject
    ) -> Launcher:
        """Return a launcher whose commands leave change sets, if the sandbox of `confined` can
        store them."""
        if self._history is None or not subject.tool.has_effects:
            return launcher
        from callgate.dispatch.commands.recording import (  # lazy: calls that start commands  # noqa: PLC0415
            RecordingLauncher,
            is_recorded,
        )

        if not is_recorded(confined):
            return launcher
        session = call.session
        writable = (root.path for root in session.extra_roots if root.writable)
        roots = (session.workspace, *writable)
        history, origin = self._history(), _origin(call, subject)

        def files() -> WorkspaceFileAPI:
            found = _files(session.workspace, session.extra_roots, self._synced)
            return found.guarded(lambda real, access: None, history.of(origin))

        return RecordingLauncher(
            launcher, history, origin, roots, files, discards_failed=self._discards_failed
        )

    def can_restore(self, resolved: ResolvedPath) -> bool:
        """Whether the present file at a path can be stored before a change, within the bounds."""
        if self._history is None:
            return False
        try:
            facts = os.lstat(resolved.real)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        is_small = facts.st_size <= self._history().bounds.limit
        return stat.S_ISLNK(facts.st_mode) or (stat.S_ISREG(facts.st_mode) and is_small)

    def _guard(
        self, call: ToolCall, subject: Subject, files: WorkspaceFileAPI, report: Report
    ) -> Guard:
        with opening():  # the settings may be reloaded while a tool runs
            book = self._policies(call.session.workspace)
        rules = _path_rules(book) if book.has_rules else ()

        artifacts = self._artifacts.get(call.session.id)
        aside = None if artifacts is None else os.path.realpath(artifacts.path)

        def is_ours(real: str, access: Literal["read", "write"]) -> bool:
            """Whether a path is in the home and not a readable artifact of this session."""
            if self._home is None or not is_within(real, self._home):
                return False
            return access == "write" or aside is None or not is_within(real, aside)

        def guard(real: str, access: Literal["read", "write"]) -> None:
            if is_ours(real, access):
                raise WorkspaceEscapeError(
                    f"{files.resolved(real).relative!r} is protected.", reason="protected_path"
                )
            if access == "read" and not rules:
                return
            if access == "write" and not subject.tool.has_effects:
                raise _undeclared(subject.tool, files.resolved(real).relative, report)
            resolved, asking = files.resolved(real), question(call, subject, book)
            authorized = any(real == each.real for each in subject.resolved_paths)
            if (
                access == "write"
                and resolved.protected
                and not (authorized and is_only_pipeline(resolved.relative))
                and not lifts_protection(resolved, asking, book.user)
            ):
                raise WorkspaceEscapeError(
                    f"{resolved.relative!r} is protected.", reason="protected_path"
                )
            for rule in rules:
                # Approval by a rule was requested for the located paths only.
                if authorized and rule.decision is not Outcome.DENY:
                    continue
                if applies(rule, asking, resolved):
                    raise ToolPermissionDenied(
                        f"Rule: {rule}. ({rule.origin})", reason="policy_deny"
                    )

        return guard

    def is_own(self, resolved: ResolvedPath) -> bool:
        """Whether a path is in our home. A tool that wrote there could approve its own calls."""
        return self._home is not None and is_within(resolved.real, self._home)

    def artifact(self, call: ToolCall, name: str) -> str | None:
        """Return a path for one output of a call; None if there is no home to store it in.

        Raises `ToolValidationError` if the name is not a plain file name.
        """
        if not _is_plain_name(name):
            raise ToolValidationError(
                f"An artifact cannot be named {name[:80]!r}: the name must be a plain file name."
            )
        if self.artifacts is None:
            return None
        directory = os.path.join(self.artifacts, call.session.id)
        try:
            for each in (self.artifacts, directory):  # makedirs would set the mode of the last only
                make_private_directory(each)
        except OSError:
            return None
        self._artifacts[call.session.id] = Root(directory)
        return os.path.join(directory, f"{call.id}-{name}")

    def sync_artifacts(self, paths: Sequence[str]) -> None:
        """Sync the artifacts that exist, and their directories, to disk. Idempotent."""
        if not self._synced or self.artifacts is None:
            return
        home, session = os.path.dirname(self.artifacts), os.path.dirname(paths[0])
        try:
            for path in paths:
                _sync_artifact(path)
            for directory in (session, self.artifacts, home):
                sync_directory(directory)
        except OSError as error:  # the result has the beginning of the output
            _log.error("an artifact of a call is not synced to disk: %s", error)

    def share_later(self, session_id: str, paths: Sequence[str]) -> None:
        """Share artifacts in the background."""
        if self.share is not None and paths:
            self._sharing.start(_shared(self.share, session_id, paths))

    async def settle(self) -> None:
        """Wait until all artifacts are shared."""
        await self._sharing.wait()

    def adopt(self, session_id: str, directory: str) -> None:
        """Let the tools of a session read a directory of its artifacts from another server."""
        self._artifacts[session_id] = Root(directory)

    def forget(self, session_id: str) -> None:
        self._artifacts.pop(session_id, None)


def _origin(call: ToolCall, subject: Subject) -> Origin:
    """Return the author of a call's changes."""
    from callgate.workspace.undo.records import Origin  # lazy: see above  # noqa: PLC0415

    return Origin(
        session=call.session.id,
        turn=call.turn_id,
        call=call.id,
        tool=subject.tool.name,
        workspace=call.session.workspace.encode("utf-8", "surrogatepass"),
    )


async def _shared(
    share: Callable[[str, Sequence[str]], Awaitable[None]], session_id: str, paths: Sequence[str]
) -> None:
    await share(session_id, paths)


_LONGEST_NAME = 120
"""Bytes of an artifact's name, without the prefix with the id of its call."""
_DEVICES = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\.|\Z)", re.IGNORECASE)


def _is_plain_name(name: str) -> bool:
    return (
        name.isprintable()
        and not name.startswith((".", "-", " "))
        and not name.endswith((".", " "))
        and not any(each in name for each in "/\\:")
        and 0 < len(name.encode("utf-8", "replace")) <= _LONGEST_NAME
        and _DEVICES.match(name) is None
    )


def _sync_artifact(path: str) -> None:
    with opening():
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return  # the tool did not create the file
    try:
        sync_file(fd)
    finally:
        os.close(fd)


def _undeclared(tool: Registered, path: str, report: Report) -> ToolPermissionDenied:
    """Report and refuse a write by a tool that the policy checked as one without writes."""
    report(EFFECT_MISMATCH, {"declared": tool.effect, "tried": "write", "path": path})
    return ToolPermissionDenied(
        f"Tool {tool.name!r} declares effect {tool.effect} and tried to write {path!r}.",
        reason=UNDECLARED,
    )


def _path_rules(book: Rulebook) -> list[Rule]:
    policies = [book.user] if book.workspace is None else [book.user, book.workspace]
    return [
        rule
        for policy in policies
        for rule in policy.rules
        if rule.decision is not Outcome.ALLOW and rule.path is not None and rule.command is None
    ]


@lru_cache(maxsize=64)
def _files(workspace: str, roots: tuple[Root, ...], synced: bool) -> WorkspaceFileAPI:
    """Return the files of a workspace. The cache avoids opening the roots for each call."""
    return WorkspaceFileAPI(workspace, extra_roots=roots, synced=synced)
