"""Stage 3: do the paths among the arguments stay inside the workspace, and what is around the
commands of the call?

This check lets an escaping call fail before anyone is asked, and tells the later stages
which places a call touches. It is not the wall: that is `workspace.files`, which checks
again on the descriptor it opened, because a link may change in between.

Of a session whose workspace lives on another machine, a `Placement` says the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec

from callgate.core.calls import ToolCall
from callgate.core.commands import Launcher
from callgate.core.effects import SideEffects
from callgate.core.errors import (
    ToolHostUnavailable,
    ToolPermissionDenied,
    ToolValidationError,
    WorkspaceEscapeError,
)
from callgate.core.resolved_paths import ResolvedPath
from callgate.core.task_sets import start_task
from callgate.dispatch.call_files import CallFiles, Policies
from callgate.dispatch.command_rules import CommandRules
from callgate.dispatch.commands.sandboxes import BY_AGENT, Enclosure, Sandbox, by_agent_in
from callgate.dispatch.environments import Environments
from callgate.dispatch.running import RunningCall
from callgate.dispatch.subjects import Subject, question
from callgate.dispatch.tools.registry import Registered
from callgate.policy.decide import (
    GUARD_REASONS,
    Decision,
    ask_because_unbound,
    lifts_protection,
)
from callgate.policy.rules import Outcome
from callgate.sandbox.plans import CannotGuarantee

Locate = Callable[[str], ResolvedPath]
Judge = Callable[[ToolCall, Subject], Decision]
"""What the policy says of a call at this moment."""


class Placement(Protocol):
    """Calls whose workspace is on another machine; `sources.workers` has them."""

    async def place(self, call: ToolCall, subject: Subject) -> Subject:
        """The subject with the places that it names there, and with a tool that runs there.

        Raises a `ToolError`: where no worker has the workspace, where a path leaves it, and where
        the tool would work with files of this machine."""
        ...


class Confinement:
    """What calls may touch, by their paths and by their commands. Each method returns a new
    subject, or refuses."""

    def __init__(
        self,
        sandbox: Sandbox | None,
        files: CallFiles,
        environments: Environments,
        command_rules: CommandRules,
        policies: Policies,
        judge: Judge,
    ) -> None:
        self._sandbox = sandbox
        self._files = files
        self._environments = environments
        self._command_rules = command_rules
        self._policies = policies
        self._judge = judge
        self.placement: Callable[[], Placement] | None = None
        """Where calls run whose workspace is not on this machine; None: nowhere."""

    async def place(self, call: ToolCall, subject: Subject, running: RunningCall) -> Subject:
        """The subject as the machine sees it on which the workspace of its session lives."""
        if self.placement is None:
            raise ToolHostUnavailable(
                f"The session's workspace is {call.session.workspace}: only a callgate server"
                " reaches its workers.",
                reason="no_worker",
            )
        placing = start_task(self.placement().place(call, subject))
        placed: Subject = await running.until(placing)
        return placed

    async def amended(
        self,
        call: ToolCall,
        subject: Subject,
        running: RunningCall,
        before: Subject,
        *,
        by_agent: bool = False,
    ) -> Subject:
        """The same for arguments that a person put in place of the call's. A command that was to
        run in the sandbox, `before`, does not leave it."""
        if call.session.pool is not None:
            return await self.place(call, subject, running)
        around = before.enclosure
        if around is not None and around.moved:
            enclosed = msgspec.structs.replace(subject, enclosure=self._moved(call, subject))
            return self.confine(call, enclosed)
        return self.confine(call, self.enclose(call, subject, by_agent=by_agent))

    async def ready(self) -> None:
        """Have tried the machine out, before the first call that starts commands."""
        if self._sandbox is not None:
            await self._sandbox.ready()

    def enclose(self, call: ToolCall, subject: Subject, *, by_agent: bool = False) -> Subject:
        """The subject with what its commands run in, where the tool does all by commands.
        `by_agent`: another agent runs them itself."""
        tool = subject.tool
        if not tool.definition.sandboxed or (self._sandbox is None and not by_agent):
            return subject
        if call.runner is not None and call.runner.place is not None:
            return Subject(tool, subject.checked, (), by_agent_in(call.runner.place))
        if by_agent or self._sandbox is None:
            return Subject(tool, subject.checked, (), BY_AGENT)
        enclosure = self._sandbox.enclosure(
            call.session,
            subject.checked.arguments,
            has_effects=tool.has_effects,
            terminals=self._terminals(call, subject),
        )
        return Subject(tool, subject.checked, (), enclosure)

    def confine(self, call: ToolCall, subject: Subject) -> Subject:
        """The subject with the places that it names, and with no more network than the policy
        gives to its commands."""
        if subject.tool.path_params:
            subject = self._located(call, subject)
        subject = self.sheltered(call, subject)
        if self._sandbox is None or subject.enclosure is None or not subject.enclosure.is_online:
            return subject
        most = self._policies(call.session.workspace).most_hosts
        named = self._judge(call, subject).hosts
        enclosure = self._sandbox.confined(subject.enclosure, named, most)
        return msgspec.structs.replace(subject, enclosure=enclosure)

    def sheltered(self, call: ToolCall, subject: Subject) -> Subject:
        """The subject with the sandbox in place of the client's terminal, where the guard objects
        to that. Without a sandbox on this machine the terminal stays, and needs approval."""
        around = subject.enclosure
        if self._sandbox is None or around is None or not around.delegated or around.by_agent:
            return subject
        if self._judge(call, subject).reason not in GUARD_REASONS:
            return subject
        enclosure = self._moved(call, subject)
        if enclosure is None or enclosure.profile is None:
            return subject
        try:
            self._sandbox.ensure(enclosure, call.session)
        except CannotGuarantee:
            return subject
        return msgspec.structs.replace(subject, enclosure=enclosure)

    def _moved(self, call: ToolCall, subject: Subject) -> Enclosure | None:
        """The sandbox for a command that does not run in the client's terminal."""
        if self._sandbox is None:
            return None
        enclosure = self._sandbox.enclosure(
            call.session, subject.checked.arguments, has_effects=subject.tool.has_effects
        )
        return msgspec.structs.replace(enclosure, moved=True)

    def _located(self, call: ToolCall, subject: Subject) -> Subject:
        """The subject with the places in its arguments, and in its command where rules ask."""
        book = self._policies(call.session.workspace)

        def writable(resolved: ResolvedPath) -> bool:
            if self._files.is_own(resolved):
                return False
            asking = question(call, subject, book)
            return not resolved.protected or lifts_protection(resolved, asking, book.user)

        locate = self._files.open(call).locate
        resolved_paths = confine(subject.checked.arguments, subject.tool, locate, writable)
        located = Subject(subject.tool, subject.checked, resolved_paths, subject.enclosure)
        if subject.enclosure is None or not book.has_rules:
            return located
        named = self._command_rules.named(call, located, locate)
        return msgspec.structs.replace(located, named=named)

    def unbound(self, call: ToolCall, subject: Subject, decision: Decision) -> Decision:
        """The decision about a command that another agent runs itself: path rules cannot bind it
        there, so a person is asked."""
        around = subject.enclosure
        if around is None or not around.by_agent or not self._command_rules.of(call, subject):
            return decision
        return ask_because_unbound(decision)

    def ensure(self, call: ToolCall, subject: Subject, decision: Decision) -> None:
        """Refuse what this machine cannot keep, before anyone is asked about it."""
        if self._sandbox is None or subject.enclosure is None or call.session.pool is not None:
            return
        if decision.outcome is not Outcome.DENY or decision.reason == "mode_read":
            self._sandbox.ensure(subject.enclosure, call.session)

    def launcher(self, call: ToolCall, subject: Subject) -> Launcher | None:
        """The one way to start a command of the call; None where it starts none here."""
        if self._sandbox is None or subject.enclosure is None or call.session.pool is not None:
            return None
        if subject.enclosure.delegated:
            return self._sandbox.delegating(call.session, self._environments.terminals)
        rules = self._command_rules.of(call, subject)
        if not rules:
            return self._sandbox.launcher(subject.enclosure, call.session)
        allowed = (*subject.resolved_paths, *subject.named)
        return self._sandbox.rule_launcher(subject.enclosure, call.session, rules, allowed)

    def _terminals(self, call: ToolCall, subject: Subject) -> Launcher | None:
        """The client's, for commands that belong to the session; other processes stay here, and
        so do commands that path rules bind: nothing can be kept from them there."""
        if subject.tool.definition.source != "builtin":
            return None
        terminals = self._environments.terminals(call.session)
        if terminals is not None and self._command_rules.of(call, subject):
            return None
        return terminals


def confine(
    arguments: dict[str, Any],
    tool: Registered,
    locate: Locate,
    writable: Callable[[ResolvedPath], bool],
) -> tuple[ResolvedPath, ...]:
    """The places that the path arguments name; raises where one may not be touched."""
    if not tool.path_params:
        return ()
    paths = list(_paths(arguments, tool.path_params))
    if tool.definition.source == "framework":
        _check_plain(paths)
    resolved_paths = tuple(locate(path) for path in paths)
    if tool.effect is SideEffects.WRITE:
        for resolved in resolved_paths:
            _check_writable(resolved, writable)
    return resolved_paths


def _check_writable(resolved: ResolvedPath, writable: Callable[[ResolvedPath], bool]) -> None:
    if not resolved.writable:
        raise ToolPermissionDenied(
            f"Path {resolved.given!r} lies in a directory that is open for reading only.",
            reason="read_only_root",
        )
    if not writable(resolved):
        raise WorkspaceEscapeError(
            f"Path {resolved.given!r} is protected: what is written there runs later by itself. "
            "A rule that names the path can allow it.",
            reason="protected_path",
        )


def _check_plain(paths: list[str]) -> None:
    """Refuse a path that the tool of a framework may expand to another one."""
    for path in paths:
        if path.startswith("~") or path[:5].lower() == "file:":
            raise WorkspaceEscapeError(
                f"Path {path[:200]!r} can be read in two ways. Write the path out.",
                reason="ambiguous_path",
            )


def _paths(arguments: dict[str, Any], names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        value = arguments.get(name)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str):
                yield each
            elif each is not None:
                raise ToolValidationError(
                    f"Argument {name!r} names a path, so it must be a text or a list of texts.",
                    reason="path_not_text",
                )
