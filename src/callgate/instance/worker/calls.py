"""One call on a worker: kept within the wall, the sandbox and the history of this machine.

    resolve -> validate -> confine -> [judged by the server; a deny here is final] -> execute

The stages are the dispatcher's. Nothing is recorded or asked here: that is the server's part.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from functools import cache
from time import perf_counter
from typing import Any

import msgspec

from callgate.config.home import Home
from callgate.config.policies import PolicyBook
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.content import TextBlock
from callgate.core.errors import (
    ToolError,
    ToolHostUnavailable,
    ToolPermissionDenied,
    ToolProtocolError,
    add_details,
)
from callgate.core.pacing.backpressure import Backpressure
from callgate.core.sessions import Mode, Session, pool_workspace
from callgate.core.tools import Preview, ToolOutput
from callgate.dispatch.call_files import CallFiles
from callgate.dispatch.command_rules import CommandRules
from callgate.dispatch.commands.sandboxes import Sandbox
from callgate.dispatch.confine import Confinement
from callgate.dispatch.contexts import CallContext
from callgate.dispatch.environments import Environments
from callgate.dispatch.execute import Stopped, execute
from callgate.dispatch.plans import Plan, Plans
from callgate.dispatch.previews import preview_call
from callgate.dispatch.running import Running, RunningCall, Stop, StopLimits
from callgate.dispatch.subjects import Subject, question
from callgate.dispatch.tools.registry import Registry
from callgate.dispatch.tools.sources import FixedTools
from callgate.instance.worker.policies import WorkerPolicies
from callgate.policy.decide import Decision
from callgate.policy.rules import Outcome
from callgate.protocol.host_v1.frames import Object
from callgate.protocol.host_v1.workers import Located, WorkerContext
from callgate.tools.undo import Undo
from callgate.wiring.surroundings import BUILT_IN, surroundings
from callgate.workspace.undo.history import History

Report = Callable[[str, Mapping[str, Any]], None]
"""Takes the type and the payload of an event."""
KILL_S = 15.0
"""How long calls may take to end when nobody waits for them any more."""


class WorkerCalls:
    """One for each worker process. `workspaces`: name to directory."""

    def __init__(self, home: Home, workspaces: Mapping[str, str]) -> None:
        """Raises `SettingsError`."""
        book = PolicyBook(home)
        settings = book.settings
        synced = settings.durability.files == "synced"
        self._workspaces = workspaces
        self.policies = WorkerPolicies(book)
        self.history = cache(lambda: History(os.path.join(home.path, "undo"), synced=synced))
        self._files = CallFiles(self.policies, home.path, history=self.history, synced=synced)
        self.sandbox = Sandbox(surroundings(home, settings))
        self._environments = Environments(leases=self.sandbox.leases)
        self.registry = Registry(max_argument_bytes=settings.limits.max_argument_bytes)
        self.registry.add(FixedTools((*BUILT_IN, lambda: Undo(self.history()))))
        self._plans = Plans(self.registry, settings.limits.max_timeout_s)
        self._confinement = Confinement(
            self.sandbox,
            self._files,
            self._environments,
            CommandRules(self.policies, self.registry),
            self.policies,
            self._judge,
        )
        limits = settings.limits
        self.running = Running(
            StopLimits(grace_s=limits.cancel_grace_s, abandon_s=limits.abandon_s)
        )

    async def locate(self, tool: str, arguments: Object, context: WorkerContext) -> Located:
        """Where a call leads here. Raises the `ToolError` that it would end in."""
        call = self._call(tool, arguments, context)
        _, subject, decision = await self._judged(call)
        if not self.policies.is_servers(decision):  # which judges by itself, with what is found
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
        return await preview_call(self._files, self._environments, call, subject)

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
        self, running: RunningCall, plan: Plan, subject: Subject, report: Report
    ) -> ToolOutput:
        call = running.call
        launcher = self._confinement.launcher(call, subject)
        context = CallContext(running, subject, report, self._files, self._environments, launcher)
        running.began = perf_counter()
        arguments, factory = subject.checked.arguments, subject.tool.factory
        limit_s = plan.time_limit(call)
        output = await execute(
            factory, arguments, context, running, self.running, limit_s, lambda *slot: None
        )
        if context.diagnostics is not None:
            output = context.diagnosed(output)
        await context.artifacts_synced()
        return output

    async def _subject(self, call: ToolCall) -> tuple[Plan, Subject]:
        """What the call is, within what the server and this machine allow."""
        plan, subject, decision = await self._judged(call)
        _ensure_allowed(decision)
        return plan, subject

    async def _judged(self, call: ToolCall) -> tuple[Plan, Subject, Decision]:
        plan = self._plans.find(call)
        if plan.tool.definition.sandboxed:
            await self._confinement.ready()
        subject = Subject(plan.tool, plan.validate(call.arguments))
        if plan.is_confined:
            subject = self._confinement.enclose(call, subject)
            subject = self._confinement.confine(call, subject)
        decision = self._judge(call, subject)
        self._confinement.ensure(call, subject, decision)
        return plan, subject, decision

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
                f"The worker cannot read what the server decided: {error}", reason="version"
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
        """The calls of a session that changed something, oldest first."""
        found = self.history().of_session(session).changes
        return list(dict.fromkeys(each.origin.call for each in found))

    async def cancel(self, running: RunningCall) -> None:
        await self.running.stop(running, Stop.CANCEL)

    async def stop_all(self, calls: list[RunningCall]) -> None:
        """End calls for which nobody waits."""
        try:
            async with asyncio.timeout(KILL_S):
                await self.running.stop_all(calls, Stop.CANCEL)
        except TimeoutError:
            pass  # the sandbox ends its processes with us

    async def close(self) -> None:
        await self.running.close()
        await self.registry.close()
        self.sandbox.close()


def _ensure_allowed(decision: Decision) -> None:
    if decision.outcome is Outcome.DENY:
        raise ToolPermissionDenied(
            f"{decision.sentence} ({decision.origin}, on the worker)", reason=decision.reason
        )


def _ensure_same(subject: Subject, context: WorkerContext) -> None:
    """Refuse a call whose paths lead elsewhere than when it was judged."""
    now = [each.real for each in subject.resolved_paths]
    if context.judged is None or now != context.judged:
        raise ToolPermissionDenied(
            "A path leads elsewhere than when the call was judged. Make the call again.",
            reason="changed_while_waiting",
        )


def _with_partial(stopped: Stopped) -> ToolError:
    """The error, with what there was to show by then."""
    error = stopped.error
    if stopped.partial is not None:
        texts = [each.text for each in stopped.partial.content if isinstance(each, TextBlock)]
        error.details = add_details(error.details, partial_output="\n".join(texts))
    return error
