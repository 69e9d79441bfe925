"""Sites of a call's work: this process, callgate's sandbox, or the process of a third-party agent.

    contain   select the sandbox of the commands, or the editor's terminal
    locate    find the paths in the arguments; refuse an escaping path before any question

Locating a path does not enforce the workspace boundary: `workspace.files` checks again on the
descriptor that it opened, because a link may change in between.

`locate` also narrows the sandbox to the hosts that the policy allows (`examine`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

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
from callgate.core.sessions import Mode, ResolvedPath
from callgate.dispatch.call_files import CallFiles
from callgate.dispatch.command_paths import CommandRules
from callgate.dispatch.commands.sandboxes import Enclosure, Sandbox, outside
from callgate.dispatch.environments import Environments
from callgate.dispatch.running import RunningCall
from callgate.dispatch.sites.examine import Consultations, Site
from callgate.dispatch.subjects import Subject, question
from callgate.dispatch.tools.registry import Registered
from callgate.policy.decisions import Decision, Reason
from callgate.policy.opinions import lifts_protection
from callgate.policy.relaxations import reads_unasked
from callgate.policy.rules import Outcome
from callgate.sandbox.jails import Network
from callgate.sandbox.plans import CannotGuarantee
from callgate.sandbox.processes.command_marks import is_within_a_call
from callgate.workspace.protected import is_only_pipeline

Locate = Callable[[str], ResolvedPath]


class Here:
    """The site of calls on this machine. Each method returns a new subject, or refuses."""

    def __init__(
        self,
        sandbox: Sandbox | None,
        files: CallFiles,
        environments: Environments,
        command_rules: CommandRules,
        consultations: Consultations,
    ) -> None:
        self._sandbox = sandbox
        self._files = files
        self._environments = environments
        self._command_rules = command_rules
        self._consultations = consultations
        self._policies = consultations.policies

    async def ready(self) -> None:
        """Probe the sandbox backends of the machine, before the first call that starts commands."""
        if self._sandbox is not None:
            await self._sandbox.ready()

    async def prepare(self, call: ToolCall, subject: Subject) -> None:
        if subject.tool.definition.sandboxed:
            await self.ready()

    def contain(self, call: ToolCall, subject: Subject, before: Subject | None = None) -> Subject:
        """Return the subject with the sandbox of its commands, if all its effects come from
        commands. A command that was moved into the sandbox (`before`) does not leave it."""
        tool = subject.tool
        if not tool.definition.sandboxed or self._sandbox is None:
            return subject
        enclosure: Enclosure | None
        if before is not None and before.enclosure is not None and before.enclosure.moved:
            enclosure = self._moved(call, subject)
        else:
            enclosure = self._for_reading(call, subject) or self._sandbox.enclosure(
                call.session,
                subject.checked.arguments,
                has_effects=tool.has_effects,
                terminals=self._terminals(call, subject),
            )
        if enclosure is not None:
            enclosure = self._sandbox.graded(enclosure, call.session)
        return msgspec.structs.replace(subject, enclosure=enclosure)

    def _for_reading(self, call: ToolCall, subject: Subject) -> Enclosure | None:
        """Return the sandbox of a reading command, if such commands need no approval."""
        book = self._policies(call.session.workspace)
        if reads_unasked(Mode(call.session.mode), book.user, book.workspace) is None:
            return None
        if self._sandbox is None or not self.only_reads(call, subject):
            return None
        return self._sandbox.for_reading(call.session, subject.checked.arguments)

    @staticmethod
    def is_reading(arguments: Mapping[str, Any]) -> bool:
        """Whether the text of a command only reads and does not change the directory."""
        from callgate.policy.read_commands import reads_only  # lazy: for commands  # noqa: PLC0415

        command = arguments.get("command")
        reads = reads_only(command) if isinstance(command, str) else None
        return reads is not None and not reads.directory

    def only_reads(self, call: ToolCall, subject: Subject) -> bool:
        """Whether the command of a call only reads files that `read_file` may read."""
        tool, arguments = subject.tool, subject.checked.arguments
        command = arguments.get("command")
        if tool.definition.source != "builtin" or not tool.has_effects:
            return False
        if not isinstance(command, str) or arguments.get("network") is True:
            return False
        from callgate.dispatch.command_paths import names_only_readable  # lazy: for commands  # noqa: PLC0415

        return names_only_readable(
            command, str(arguments.get("cwd", ".")), self._files.open(call).locate
        )

    def would_read(self, call: ToolCall, subject: Subject, decision: Decision) -> bool:
        """Whether the call needs approval only because the setting `read_commands` is not set."""
        if decision.outcome is not Outcome.ASK or decision.reason is not Reason.CLASS_DEFAULT:
            return False
        if self._sandbox is None or call.session.mode != Mode.ASK or call.session.pool is not None:
            return False
        handover = call.handover
        if handover is not None and handover.place is not None and not handover.is_containable:
            return False
        book = self._policies(call.session.workspace)
        settings = (book.user, book.workspace)
        if any(each is not None and each.read_commands is not None for each in settings):
            return False
        if not self.only_reads(call, subject):
            return False
        return self._sandbox.for_reading(call.session, subject.checked.arguments) is not None

    def locate(self, call: ToolCall, subject: Subject) -> Subject:
        """Return the subject with its paths, and with its network narrowed to the policy's
        hosts."""
        subject = self.relocate(call, self.locate_paths(call, subject))
        if subject.tool.has_effects and (how := self._undone_by(call, subject)):
            subject = msgspec.structs.replace(subject, undone_by=how)
        if self._sandbox is None or subject.enclosure is None or not subject.enclosure.is_online:
            return subject
        named, most = self._consultations.hosts(call, subject)
        enclosure = self._sandbox.confined(subject.enclosure, named, most)
        enclosure = self._sandbox.graded(enclosure, call.session)
        return msgspec.structs.replace(subject, enclosure=enclosure)

    def _undone_by(self, call: ToolCall, subject: Subject) -> str:
        """Return how `callgate undo` can revert all effects of the call; empty: it cannot."""
        tool, around = subject.tool, subject.enclosure
        is_elsewhere = call.handover is not None or call.session.pool is not None
        if is_elsewhere or tool.factory not in self._files.undoable:
            return ""
        if around is None:
            if not subject.resolved_paths:
                return ""
            if self._environments.of(call.session) is not None:
                return ""  # the editor may write the file
            is_restorable = all(map(self._files.can_restore, subject.resolved_paths))
            return "the history of file tools" if is_restorable else ""
        if self._sandbox is None or around.profile is None or around.place is not None:
            return ""
        if around.network is not Network.NONE or around.widened or not self._records(call, around):
            return ""
        return "the change sets of sandboxed commands"

    def _records(self, call: ToolCall, around: Enclosure) -> bool:
        """Whether the sandbox stores the changes of its commands, which a nested one cannot."""
        from callgate.dispatch.commands.recording import is_recorded  # lazy: for commands  # noqa: PLC0415

        assert self._sandbox is not None
        try:
            launcher = self._sandbox.launcher(around, call.session)
        except CannotGuarantee:
            return False
        return is_recorded(launcher) and not is_within_a_call()

    def relocate(self, call: ToolCall, subject: Subject) -> Subject:
        """Return the subject with the sandbox in place of the client's terminal, if the guard
        objects to the terminal. If this machine has no sandbox, the terminal stays, and the call
        needs approval."""
        around = subject.enclosure
        if self._sandbox is None or around is None or around.place is None:
            return subject
        if not self._consultations.objects_to_terminal(call, subject):
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
        """Return the sandbox for a command that the guard keeps out of the client's terminal."""
        if self._sandbox is None:
            return None
        enclosure = self._sandbox.enclosure(
            call.session, subject.checked.arguments, has_effects=subject.tool.has_effects
        )
        return msgspec.structs.replace(enclosure, moved=True)

    def locate_paths(self, call: ToolCall, subject: Subject) -> Subject:
        """Return the subject with the paths in its arguments, and the paths in its command that
        need approval by a rule."""
        if not subject.tool.path_params:
            return subject
        book = self._policies(call.session.workspace)

        def writable(resolved: ResolvedPath) -> bool:
            if self._files.is_own(resolved):
                return False
            asking = question(call, subject, book)
            if not resolved.protected or is_only_pipeline(resolved.relative):
                return True  # `tightenings.pipelines` asks about files of a build server
            return lifts_protection(resolved, asking, book.user)

        locate = self._files.open(call).locate
        resolved_paths = confine(subject.checked.arguments, subject.tool, locate, writable)
        located = msgspec.structs.replace(subject, resolved_paths=resolved_paths)
        if subject.enclosure is None or not book.has_rules:
            return located
        named = self._command_rules.named(call, located, locate)
        return msgspec.structs.replace(located, named=named)

    def has_path_rules(self, call: ToolCall, subject: Subject) -> bool:
        """Whether path rules concern a command of the call."""
        return bool(self._command_rules.of(call, subject))

    def is_unbound(self, call: ToolCall, subject: Subject) -> bool:
        return False

    def ensure(self, call: ToolCall, subject: Subject, decision: Decision) -> None:
        """Refuse a call whose sandbox this machine cannot guarantee, before any question."""
        if self._sandbox is None or subject.enclosure is None:
            return
        if decision.outcome is not Outcome.DENY or decision.reason is Reason.MODE_READ:
            self._sandbox.ensure(subject.enclosure, call.session)

    def launcher(self, call: ToolCall, subject: Subject) -> Launcher | None:
        """Return the launcher for commands of the call; None: the call has no sandbox."""
        if self._sandbox is None or subject.enclosure is None:
            return None
        if subject.enclosure.place is not None:
            return self._sandbox.delegating(call.session, self._environments.terminals)
        rules = self._command_rules.of(call, subject)
        if not rules:
            return self._sandbox.launcher(subject.enclosure, call.session)
        allowed = (*subject.resolved_paths, *subject.named)
        return self._sandbox.rule_launcher(subject.enclosure, call.session, rules, allowed)

    def _terminals(self, call: ToolCall, subject: Subject) -> Launcher | None:
        """Return the client's terminals for built-in command tools. Other processes stay here, and
        so do commands with path rules, which a terminal cannot enforce."""
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
    """Return the paths in the arguments. Raises if the call may not use one of them."""
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
            f"Path {resolved.given!r} is in a directory that is open for reading only.",
            reason="read_only_root",
        )
    if not writable(resolved):
        raise WorkspaceEscapeError(
            f"Path {resolved.given!r} is protected: files there are executed automatically later. "
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


class Outside:
    """The process of a third-party agent: callgate decides and records, the agent does the work.

    The agent uses the files of this machine, so its paths are located as for work done here. Its
    commands run outside callgate's sandbox, and path rules cannot bind them: such a command needs
    approval (`policy.tightenings`)."""

    def __init__(self, here: Here) -> None:
        self._here = here

    async def prepare(self, call: ToolCall, subject: Subject) -> None:
        pass

    def contain(self, call: ToolCall, subject: Subject, before: Subject | None = None) -> Subject:
        if not subject.tool.definition.sandboxed:
            return subject
        assert call.handover is not None
        assert call.handover.place is not None
        return msgspec.structs.replace(subject, enclosure=outside(call.handover.place))

    def locate(self, call: ToolCall, subject: Subject) -> Subject:
        return self._here.locate_paths(call, subject)

    def is_unbound(self, call: ToolCall, subject: Subject) -> bool:
        return subject.enclosure is not None and self._here.has_path_rules(call, subject)

    def ensure(self, call: ToolCall, subject: Subject, decision: Decision) -> None:
        pass

    def relocate(self, call: ToolCall, subject: Subject) -> Subject:
        return subject

    def launcher(self, call: ToolCall, subject: Subject) -> None:
        return None


class Sites:
    """The sites of one dispatcher."""

    def __init__(self, here: Here) -> None:
        self.here = here
        self.outside = Outside(here)
        self.pool: Callable[[RunningCall | None], Site] | None = None
        """Returns the site of a call whose workspace is in a pool; None: there are no workers."""

    def of(self, call: ToolCall, running: RunningCall | None = None) -> Site:
        """Return the site of a call; `running` is the call that waits for it."""
        if call.session.pool is not None:
            if self.pool is None:
                raise ToolHostUnavailable(
                    f"The session's workspace is {call.session.workspace}, and only a callgate"
                    " server reaches its workers.",
                    reason="no_worker",
                )
            return self.pool(running)
        if call.handover is not None and call.handover.place is not None:
            return self.outside
        return self.here
