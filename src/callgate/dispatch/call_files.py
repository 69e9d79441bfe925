"""The files of one call: its workspace and extra roots, with the policy's word on each path.

The guard is asked with the path of the descriptor that was opened, so a rule about a path
holds for whatever link leads there.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from callgate.core.calls import ToolCall
from callgate.core.directories import make_private_directory, sync_directory, sync_file
from callgate.core.errors import ToolPermissionDenied, ToolValidationError, WorkspaceEscapeError
from callgate.core.events import EFFECT_MISMATCH
from callgate.core.resolved_paths import ResolvedPath
from callgate.core.sessions import Root
from callgate.core.task_sets import TaskSet
from callgate.dispatch.subjects import Subject, question
from callgate.dispatch.tools.registry import Registered
from callgate.policy.decide import Rulebook, applies, lifts_protection
from callgate.policy.rules import Outcome, Rule, is_within
from callgate.workspace.files import Guard, WorkspaceFileAPI
from callgate.workspace.paths import opening

if TYPE_CHECKING:  # loaded with the first call that may change a file
    from callgate.workspace.undo.history import CallHistory, History

Policies = Callable[[str], Rulebook]
Report = Callable[[str, Mapping[str, Any]], None]
"""Takes an event's type and payload."""

_log = logging.getLogger("callgate.files")

UNDECLARED = "effect_undeclared"
"""The reason where a tool that declares to change nothing tried to."""


class CallFiles:
    """Opens the files of calls, and keeps a directory for output too large to show."""

    def __init__(
        self,
        policies: Policies,
        home: str | None = None,
        *,
        history: Callable[[], History] | None = None,
        synced: bool = True,
    ) -> None:
        """`home` is where settings, answers and the record lie: no tool writes there. `history`
        opens what keeps the changes of calls, so that they can be undone. `synced`: changes
        outlive a power cut."""
        self._policies = policies
        self._synced = synced
        self._history = history
        self._home = None if home is None else os.path.realpath(home)
        self.artifacts = None if home is None else os.path.join(home, "artifacts")
        self._artifacts: dict[str, Root] = {}
        """Session to its artifact directory, which its own tools may read."""
        self.share: Callable[[str, Sequence[str]], Awaitable[None]] | None = None
        """Has other servers know what the calls of a session put aside; None: there are none."""
        self._sharing = TaskSet(_log, "what a call put aside is not shared")

    def open(
        self,
        call: ToolCall,
        subject: Subject | None = None,
        report: Report = lambda type, payload: None,
    ) -> WorkspaceFileAPI:
        """The files of a call. Once it is authorized, what rules say of a place holds for every
        file it opens; before that they can only be located. `report` hears of a tool that goes
        beyond what it declares."""
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
        ):  # whose guard lets it change nothing
            return None
        from callgate.workspace.undo.records import Origin  # lazy: see above  # noqa: PLC0415

        return self._history().of(
            Origin(
                session=call.session.id,
                turn=call.turn_id,
                call=call.id,
                tool=subject.tool.name,
                workspace=call.session.workspace.encode("utf-8", "surrogatepass"),
            )
        )

    def _guard(
        self, call: ToolCall, subject: Subject, files: WorkspaceFileAPI, report: Report
    ) -> Guard:
        with opening():  # the settings may be read anew, while a tool runs
            book = self._policies(call.session.workspace)
        rules = _path_rules(book) if book.has_rules else ()

        artifacts = self._artifacts.get(call.session.id)
        aside = None if artifacts is None else os.path.realpath(artifacts.path)

        def is_ours(real: str, access: Literal["read", "write"]) -> bool:
            """Keys, tokens, the store: all but what this session's own calls put aside."""
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
            if (
                access == "write"
                and resolved.protected
                and not lifts_protection(resolved, asking, book.user)
            ):
                raise WorkspaceEscapeError(
                    f"{resolved.relative!r} is protected.", reason="protected_path"
                )
            authorized = any(real == each.real for each in subject.resolved_paths)
            for rule in rules:
                # What a rule wants to be asked about was asked only for the places in question.
                if authorized and rule.decision is not Outcome.DENY:
                    continue
                if applies(rule, asking, resolved):
                    raise ToolPermissionDenied(
                        f"Rule: {rule}. ({rule.origin})", reason="policy_deny"
                    )

        return guard

    def is_own(self, resolved: ResolvedPath) -> bool:
        """Whether a place is part of our home: writing there would be approving oneself."""
        return self._home is not None and is_within(resolved.real, self._home)

    def artifact(self, call: ToolCall, name: str) -> str | None:
        """A path for one call's output; None where there is no home to keep it in.

        `ToolValidationError` for a name that is not the plain name of a file.
        """
        if not _is_plain_name(name):
            raise ToolValidationError(
                f"An artifact cannot be named {name[:80]!r}: a plain file name is needed."
            )
        if self.artifacts is None:
            return None
        directory = os.path.join(self.artifacts, call.session.id)
        try:
            for each in (self.artifacts, directory):  # a mode is for the last one only
                make_private_directory(each)
        except OSError:
            return None
        self._artifacts[call.session.id] = Root(directory)
        return os.path.join(directory, f"{call.id}-{name}")

    def sync_artifacts(self, paths: Sequence[str]) -> None:
        """Wait until the disk has these, as far as a tool made them. Idempotent."""
        if not self._synced or self.artifacts is None:
            return
        home, session = os.path.dirname(self.artifacts), os.path.dirname(paths[0])
        try:
            for path in paths:
                _sync_artifact(path)
            for directory in (session, self.artifacts, home):
                sync_directory(directory)
        except OSError as error:  # its result tells the beginning
            _log.error("what a call put aside is not on the disk: %s", error)

    def share_later(self, session_id: str, paths: Sequence[str]) -> None:
        """Share files while nobody waits."""
        if self.share is not None and paths:
            self._sharing.start(_shared(self.share, session_id, paths))

    async def settle(self) -> None:
        """Wait until what is to be shared is."""
        await self._sharing.wait()

    def adopt(self, session_id: str, directory: str) -> None:
        """Let the tools of a session read what its calls put aside elsewhere."""
        self._artifacts[session_id] = Root(directory)

    def forget(self, session_id: str) -> None:
        self._artifacts.pop(session_id, None)


async def _shared(
    share: Callable[[str, Sequence[str]], Awaitable[None]], session_id: str, paths: Sequence[str]
) -> None:
    await share(session_id, paths)


_LONGEST_NAME = 120
"""Bytes of an artifact's name; the id of its call stands before it."""
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
            return  # there was nothing to put aside after all
    try:
        sync_file(fd)
    finally:
        os.close(fd)


def _undeclared(tool: Registered, path: str, report: Report) -> ToolPermissionDenied:
    """The policy let the tool pass for what it declares, which is not this."""
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
    """Open roots are kept for the sessions that work: opening costs more than using."""
    return WorkspaceFileAPI(workspace, extra_roots=roots, synced=synced)
