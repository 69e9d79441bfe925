"""Calls on a worker, within the workspace boundary, sandbox and undo history of this machine.

    resolve -> validate -> contain -> locate -> [server decides; a deny here is final] -> execute

The stages are the dispatcher's. A worker records nothing and asks no approver; the server does
both.

The policy of a call is the rules of the server, and the denials of the settings here. The server
has already decided and asked its approvers, so a call that would need approval here is allowed. A
deny is final, from either side. If the settings of this machine require approval, the call is
denied, because no approver is available here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from time import perf_counter
from typing import Any, TypeVar

import msgspec

from callgate.config.home import Home
from callgate.config.policies import PolicyBook
from callgate.config.undo_store import open_history
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.content import TextBlock
from callgate.core.errors import (
    ToolError,
    ToolHostUnavailable,
    ToolPermissionDenied,
    ToolProtocolError,
    add_details,
)
from callgate.core.sessions import Mode, PoolWorkspace, Session, pool_workspace
from callgate.core.tasks import Backpressure
from callgate.core.tools import CannotSucceed, Preview, ToolOutput
from callgate.dispatch.call_files import CallFiles
from callgate.dispatch.command_paths import CommandRules
from callgate.dispatch.commands.sandboxes import Sandbox
from callgate.dispatch.environments import CallContext, Environments
from callgate.dispatch.execute import Stopped, execute
from callgate.dispatch.plans import CallPlan, Plans
from callgate.dispatch.previews import preview_call
from callgate.dispatch.running import Running, RunningCall, Stop, StopLimits
from callgate.dispatch.sites.examine import Consultations, examine
from callgate.dispatch.sites.here import Here
from callgate.dispatch.subjects import Findings, Subject, question
from callgate.dispatch.tools.registry import Registry
from callgate.dispatch.tools.sources import FixedTools
from callgate.instance.wiring.runtime import BUILT_IN, surroundings
from callgate.policy.decide import Rulebook
from callgate.policy.decisions import Decision, Question
from callgate.policy.rules import Outcome, Policy, PolicyMode, Rule, Setting, is_within
from callgate.protocol.host_v1.frames import Object
from callgate.protocol.host_v1.workers import SERVER, Located, WorkerContext
from callgate.tools.undo import Undo

K = TypeVar("K")


class WorkerRulebook(Rulebook):
    """A rulebook whose questions the server has answered."""

    __slots__ = ()

    def decide(self, question: Question, key: str = "") -> Decision:
        decision = super().decide(question)
        if decision.outcome is not Outcome.ASK:
            return decision
        return msgspec.structs.replace(decision, outcome=Outcome.ALLOW)


class WorkerPolicies:
    """Rulebooks by the directory of a workspace: the server's latest rules, and the
    denials here.
    """

    def __init__(self, local: Callable[[str], Rulebook]) -> None:
        self._local = local
        self._given: dict[str, tuple[str, tuple[Rule, ...]]] = {}
        """The server's name of the workspace, and its rules."""

    def give(self, directory: str, workspace: PoolWorkspace, rules: Sequence[Object]) -> None:
        """Set the server's rules for a directory. Raises `msgspec.ValidationError`."""
        self._given[directory] = (str(workspace), msgspec.convert(rules, tuple[Rule, ...]))

    @staticmethod
    def is_servers(decision: Decision) -> bool:
        """Whether the server makes the same decision: by its rules, or by the mode."""
        return decision.origin.file == SERVER or decision.reason.is_mode

    def __call__(self, directory: str) -> Rulebook:
        name, rules = self._given.get(directory, (directory, ()))
        book = self._local(directory)
        policies = [book.user] if book.workspace is None else [book.user, book.workspace]
        hosts = None if book.workspace is None else book.workspace.hosts
        narrowing = Policy(
            default=_denied(effect for policy in policies for effect in policy.default.items()),
            per_tool=_denied(tool for policy in policies for tool in policy.per_tool.items()),
            rules=tuple(_denials(policies, directory)),
            hosts=hosts,
        )
        return WorkerRulebook(Policy(rules=rules), narrowing, name, book.refusal)


def _denied(settings: Iterable[tuple[K, Setting]]) -> Mapping[K, Setting]:
    return {key: each for key, each in settings if each.mode is PolicyMode.DENY}


def _denials(policies: Sequence[Policy], directory: str) -> Iterator[Rule]:
    """Yield the rules of this machine for a directory, with `ask` turned into `deny`."""
    for rule in (rule for policy in policies for rule in policy.rules):
        here = rule.workspace is None or is_within(directory, rule.workspace)
        if here and rule.decision is not Outcome.ALLOW:
            yield msgspec.structs.replace(rule, decision=Outcome.DENY, workspace=None)


Report = Callable[[str, Mapping[str, Any]], None]
"""Receives the type and the payload of an event."""
KILL_S = 15.0
"""Time limit for the end of abandoned calls."""


class WorkerCalls:
    """The calls of a worker process. `workspaces`: name to directory."""

    def __init__(self, home: Home, workspaces: Mapping[str, str]) -> None:
        book = PolicyBook(home)
        settings = book.settings
        synced = settings.durability.files == "synced"
        self._workspaces = workspaces
        self.policies = WorkerPolicies(book)
        self.history = cache(lambda: open_history(home, settings))
        discards = settings.sandbox != "off" and settings.sandbox.on_failure == "discard"
        self._files = CallFiles(
            self.policies, home.path, history=self.history, synced=synced, discards_failed=discards
        )
        self.sandbox = Sandbox(surroundings(home, settings))
        self._environments = Environments(leases=self.sandbox.leases)
        self.registry = Registry(max_argument_bytes=settings.limits.max_argument_bytes)
        self.registry.add(FixedTools((*BUILT_IN, lambda: Undo(self.history()))))
        self._plans = Plans(self.registry, settings.limits.max_timeout_s)
        self._here = Here(
            self.sandbox,
            self._files,
            self._environments,
            CommandRules(self.policies, self.registry),
            Consultations(self.policies, self._judge),
        )
        limits = settings.limits
        self.running = Running(
            StopLimits(grace_s=limits.cancel_grace_s, abandon_s=limits.abandon_s)
        )

    async def locate(self, tool: str, arguments: Object, context: WorkerContext) -> Located:
        """Return the paths and the sandbox of a call. Raises the `ToolError` in which it would
        end.
        """
        call = self._call(tool, arguments, context)
        _, subject, decision = await self._judged(call)
        if not self.policies.is_servers(decision):  # the server decides itself, with these paths
            _ensure_allowed(decision)
        around = subject.enclosure
        return Located(
            resolved_paths=subject.resolved_paths,
            named=subject.named,
            enclosure=None if around is None else msgspec.to_builtins(around),
        )

    async def preview(self, tool: str, arguments: Object, context: WorkerContext) -> Preview | None:
        call = self._call(tool, arguments, context)
        _, subject = await self._subject(call)
        _ensure_same(subject, context)
        try:
            return await preview_call(self._files, self._environments, call, subject)
        except CannotSucceed as refusal:
            return Preview(f"Nothing would change: {refusal}")

    async def run(
        self,
        tool: str,
        arguments: Object,
        context: WorkerContext,
        report: Report,
        on_start: Callable[[RunningCall], None],
        backpressure: Backpressure | None = None,
    ) -> ToolOutput:
        """Run a call in the current task. Raises a `ToolError`."""
        call = self._call(tool, arguments, context)
        call = msgspec.structs.replace(call, backpressure=backpressure)
        running = self.running.enter(call)
        on_start(running)
        try:
            plan, subject = await self._subject(call)
            _ensure_same(subject, context)
            running.raise_if_stopped()
            return await self._execute(running, plan, subject, report)
        except Stopped as stopped:
            raise _with_partial(stopped) from None
        finally:
            self.running.remove(running)

    async def _execute(
        self, running: RunningCall, plan: CallPlan, subject: Subject, report: Report
    ) -> ToolOutput:
        call = running.call
        launcher = self._here.launcher(call, subject)
        context = CallContext(running, subject, report, self._files, self._environments, launcher)
        running.began = perf_counter()
        limit_s = plan.time_limit(call)
        output = await execute(
            subject, context, running, self.running, limit_s, lambda *slot: None, lambda: None
        )
        await context.artifacts_synced()
        return output

    async def _subject(self, call: ToolCall) -> tuple[CallPlan, Subject]:
        """Return the plan and subject of a call. Raises a `ToolError` if the server or this
        machine denies it.
        """
        plan, subject, decision = await self._judged(call)
        _ensure_allowed(decision)
        return plan, subject

    async def _judged(self, call: ToolCall) -> tuple[CallPlan, Subject, Decision]:
        plan = self._plans.find(call)
        subject, found = Subject(plan.tool, plan.validate(call.arguments)), Findings()
        await self._here.prepare(call, subject)
        decision = examine(call, plan.is_confined, subject, self._here, self._judge, found)
        return plan, found.subject or subject, decision

    def _judge(self, call: ToolCall, subject: Subject) -> Decision:
        book = self.policies(call.session.workspace)
        if book.refusal is not None and subject.tool.has_effects:
            return book.refusal
        return book.decide(question(call, subject, book))

    def _call(self, tool: str, arguments: Object, context: WorkerContext) -> ToolCall:
        workspace = pool_workspace(context.workspace_path)
        directory = None if workspace is None else self._workspaces.get(workspace.name)
        if workspace is None or directory is None:
            raise ToolHostUnavailable(
                f"This worker does not have the workspace {context.workspace_path}.",
                reason="no_worker",
            )
        try:
            self.policies.give(directory, workspace, context.rules)
            mode, caller = Mode(context.mode), CallerKind(context.caller)
        except ValueError as error:
            raise ToolProtocolError(
                f"The worker cannot read the server's decision: {error}", reason="version"
            ) from None
        return ToolCall(
            tool=tool,
            arguments=arguments,
            session=Session(workspace=directory, id=context.session_id, mode=mode),
            caller=caller,
            id=context.call_id,
            tool_use_id=context.tool_use_id,
            turn_id=context.turn_id,
            timeout_s=context.timeout_s,
            scope=context.scope or None,
        )

    def changes(self, session: str) -> list[str]:
        """Return the calls of a session that changed files, oldest first."""
        found = self.history().of_session(session).changes
        return list(dict.fromkeys(each.origin.call for each in found))

    async def cancel(self, running: RunningCall) -> None:
        await self.running.stop(running, Stop.CANCEL)

    async def stop_all(self, calls: list[RunningCall]) -> None:
        """Cancel calls without a waiting server."""
        try:
            async with asyncio.timeout(KILL_S):
                await self.running.stop_all(calls, Stop.CANCEL)
        except TimeoutError:
            pass  # the sandbox ends its processes together with this one

    async def close(self) -> None:
        await self.running.close()
        await self.registry.close()
        self.sandbox.close()


def _ensure_allowed(decision: Decision) -> None:
    if decision.outcome is Outcome.DENY:
        raise ToolPermissionDenied(
            f"{decision.sentence} ({decision.origin}, on the worker)", reason=decision.reason.value
        )


def _ensure_same(subject: Subject, context: WorkerContext) -> None:
    """Raise `ToolPermissionDenied` if a path resolves differently than at the decision."""
    now = [each.real for each in subject.resolved_paths]
    if context.judged is None or now != context.judged:
        raise ToolPermissionDenied(
            "A path resolves differently than when the call was checked. Make the call again.",
            reason="changed_while_waiting",
        )


def _with_partial(stopped: Stopped) -> ToolError:
    """Return the error, with the output so far."""
    error = stopped.error
    if stopped.partial is not None:
        texts = [each.text for each in stopped.partial.content if isinstance(each, TextBlock)]
        error.details = add_details(error.details, partial_output="\n".join(texts))
    return error
