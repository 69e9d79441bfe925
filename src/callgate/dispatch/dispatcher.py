"""The dispatcher: one road for every call, whoever makes it and whatever runs it.

    resolve -> validate -> confine -> authorize -> lane -> execute -> ToolResult
       |          |           |           |                   |
     a tool    arguments    places    an answer            an output
       +----------+-----------+-----------+-------------------+--> Findings -> journal

`run` is that road. Each stage is a module beside this one: it returns what the next one needs, or
raises a `ToolError`, and knows no other. The order is a security property: nothing may run a tool
before `authorize` has returned. What is the same for every call of a tool, such as the first stage,
is worked out once (`plans`). Around `run` stands an interface that takes and returns an agent's
blocks (`ToolUseBlock`, `ToolResultBlock`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from callgate.core.calls import CallerKind, ToolCall
from callgate.core.content import ToolResultBlock, ToolUseBlock
from callgate.core.errors import (
    ToolCancelled,
    ToolError,
    ToolExecutionError,
    ToolProtocolError,
)
from callgate.core.events import EventSink
from callgate.core.ids import EXTERNAL_ID, call_id, is_call_id
from callgate.core.results import ToolResult
from callgate.core.sessions import Session
from callgate.core.tools import ToolDefinition, ToolFactory
from callgate.dispatch.authorize import (
    Authority,
    accept,
    authorize,
    ensure_still_allowed,
    judge,
)
from callgate.dispatch.call_files import CallFiles
from callgate.dispatch.command_rules import CommandRules
from callgate.dispatch.commands.sandboxes import Sandbox
from callgate.dispatch.confine import Confinement
from callgate.dispatch.contexts import CallContext
from callgate.dispatch.environments import Environments
from callgate.dispatch.execute import Stopped, execute
from callgate.dispatch.failures import log_failure
from callgate.dispatch.journal import Journal
from callgate.dispatch.lanes import Lanes
from callgate.dispatch.permission.asking import LeftOpen
from callgate.dispatch.permission.confirmations import Confirmation
from callgate.dispatch.permission.flows import INDEXED_AT_ONCE
from callgate.dispatch.plans import Plan, Plans
from callgate.dispatch.raw_open import watch_opens
from callgate.dispatch.record_writer import Recorder, RecordWriter
from callgate.dispatch.running import Running, RunningCall, Stop, StopLimits
from callgate.dispatch.subjects import Findings, Performer, Subject
from callgate.dispatch.tools.registry import Registered, Registry
from callgate.events.log import SessionLog
from callgate.policy.decide import Decision, ask_because_doubtful
from callgate.policy.rules import GuardSettings, Outcome

if TYPE_CHECKING:
    from callgate.core.commands import Launcher
    from callgate.core.text.traces import TraceContext

    Trace = Callable[[ToolCall, Launcher | None], tuple[TraceContext, Launcher | None]]
    """Gives a call the span of its run, and what it starts the same."""

_log = logging.getLogger("callgate.dispatch")

Task = asyncio.Task[Any]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    concurrency: int = 4
    """Calls of one session that run at once."""
    max_timeout_s: float = 3_600.0
    stop: StopLimits = StopLimits()


class ToolDispatcher:
    """Registers tools and runs calls. One per runtime."""

    def __init__(
        self,
        *,
        authority: Authority,
        files: CallFiles,
        sink: EventSink,
        log: SessionLog,
        audit: Recorder | None = None,
        registry: Registry | None = None,
        limits: Limits = Limits(),  # noqa: B008  # frozen
        sandbox: Sandbox | None = None,
        environments: Environments | None = None,
    ) -> None:
        """Without a `sandbox` no tool can start a command."""
        self.registry = registry or Registry()
        self.running = Running(limits.stop)
        self.authority = authority
        self._flows = authority.flows
        self._facts = authority.flows.facts
        leases = None if sandbox is None else sandbox.leases
        self.environments = environments or Environments(leases=leases)
        self.files = files
        self._sink = sink
        self._log = log
        self._records = None if audit is None else RecordWriter(log, audit)
        self._lanes = Lanes(limits.concurrency)
        self._plans = Plans(self.registry, limits.max_timeout_s)
        self.command_rules = CommandRules(authority.policies, self.registry)
        self.confinement = Confinement(
            sandbox,
            files,
            self.environments,
            self.command_rules,
            authority.policies,
            lambda call, subject: judge(call, subject, authority),
        )
        self.trace: Trace | None = None
        """None: telemetry is off."""
        watch_opens()

    @property
    def artifacts(self) -> str | None:
        """Where calls put output aside, by session; None where none is kept."""
        return self.files.artifacts

    async def run(
        self,
        call: ToolCall,
        confirmation: Confirmation | None = None,
        task: Task | None = None,
        performer: Performer | None = None,
    ) -> ToolResult:
        """Run one call. Refusals and failures come back as results, never as exceptions.

        `confirmation` is the question about it that was put before a restart; `task` is the
        current one, if it serves this call alone; `performer` runs it in place of its tool."""
        journal = Journal(call, self._sink, self._log, self._records)
        if confirmation is not None and self.running.closing:
            return journal.left_open()
        try:
            running = self.running.enter(call, task)
        except ToolError as error:  # never got onto the road: shutting down, or a used id
            return self.refuse(_with_fresh_id(call), error)
        tool: Registered | None = None
        subject: Subject | None = None
        decision: Decision | None = None
        try:
            if confirmation is not None:
                await journal.asked_before(confirmation)
            plan = self._plans.find(call)
            tool = plan.tool if performer is None else performer.take(plan.tool)
            by_agent = performer is not None and performer.by_agent
            by_agent |= call.runner is not None and call.runner.place is not None
            timeout_s = plan.timeout_s if call.timeout_s is None else plan.time_limit(call)
            if tool.definition.sandboxed and call.session.pool is None:
                await self.confinement.ready()
            subject = Subject(tool, plan.validate(call.arguments))
            if self._facts and self._flows.pending(call.session) > INDEXED_AT_ONCE:
                await asyncio.to_thread(self._flows.catch_up, call.session)
            if call.session.pool is not None:
                subject = await self.confinement.place(call, subject, running)
            elif plan.is_confined:
                subject = self.confinement.enclose(call, subject, by_agent=by_agent)
                subject = self.confinement.confine(call, subject)
            decision = judge(call, subject, self.authority)
            if by_agent:
                decision = self.confinement.unbound(call, subject, decision)
            if performer is not None and performer.is_doubtful:
                decision = ask_because_doubtful(decision)
            if subject.enclosure is not None:
                self.confinement.ensure(call, subject, decision)
            if decision.budgets:
                from callgate.dispatch.permission.budgets import reserve  # lazy: few have budgets  # noqa: PLC0415

                decision = await reserve(subject, decision, self.authority, self._log, running)
            if confirmation is not None or decision.outcome is not Outcome.ALLOW:
                hash = partial(_hash, plan)
                answer = await authorize(
                    call, subject, decision, self.authority, journal, running, hash, confirmation
                )
                if answer is not None and answer.arguments is not None:
                    before, subject = subject, Subject(tool, plan.validate(answer.arguments))
                    subject = await self.confinement.amended(
                        call, subject, running, before, by_agent=by_agent
                    )
                if answer is not None:
                    accept(call, subject, decision, self.authority, answer)
                    if running.reservation is not None:
                        await running.reservation.settle(subject, decision)
                    self._flows.answered(call, answer.arguments)
            if tool.has_effects:
                journal.ensure_recordable()
            # An agent that runs it itself waits for no slot of ours, and may never tell its end.
            takes_slot = not by_agent and (call.runner is None or call.runner.takes_slot)
            ticket = self._lanes.enter(running, tool) if takes_slot else None
            if ticket is not None:
                subject = await self._wait_in_lane(ticket, running, subject, decision)
            if running.stop is not None:
                raise running.stop_error()
            around = subject.enclosure
            launcher = None if around is None else self.confinement.launcher(call, subject)
            trace = None
            if self.trace is not None:
                trace, launcher = self.trace(call, launcher)
            report = journal.published
            context = CallContext(
                running, subject, report, self.files, self.environments, launcher, trace
            )
            if tool.has_effects:
                running.began = await journal.started(subject, decision, running)
            else:
                running.began = journal.called(subject, decision)
            arguments, table, release = subject.checked.arguments, self.running, self._lanes.release
            factory = subject.tool.factory if call.runner is None else call.runner.factory
            output = await execute(factory, arguments, context, running, table, timeout_s, release)
            if context.diagnostics is not None:
                output = context.diagnosed(output)
            result = journal.completed(output, Findings(tool, subject, decision))
        except ToolError as error:
            result = journal.failed(error, Findings(tool, subject, decision))
        except LeftOpen:
            return journal.left_open()
        except Stopped as stopped:
            findings = Findings(tool, subject, decision)
            result = _answer(journal.failed(stopped.error, findings, stopped.partial), running)
        except Exception as error:  # a defect of ours must not become an answer nobody gets
            log_failure(_log, error, "call %s met a defect", call.id)
            internal = ToolExecutionError(is_user_visible=False, reason="internal")
            result = journal.failed(internal, Findings(tool, subject, decision))
        except BaseException:
            if not journal.closed:
                cancelled = ToolCancelled(reason=Stop.CALLER_GONE)
                journal.failed(cancelled, Findings(tool, subject, decision))
            raise
        finally:
            self.running.remove(running)
            if running.slot is not None:
                self._lanes.release(*running.slot)
        is_read = subject is not None and (self._facts or subject.tool.output_labels)
        if is_read and subject is not None and running.has_begun:
            self._flows.read(call, subject, result, self._guard_settings(call))
        if journal.is_stored:
            if isinstance(running.context, CallContext):
                await running.context.artifacts_synced()
            result = await journal.settled(result)
        elif self.files.share is not None and isinstance(running.context, CallContext):
            running.context.share_artifacts()
        return result

    def _guard_settings(self, call: ToolCall) -> GuardSettings | None:
        """What the settings say of labels; None while they cannot be used."""
        try:
            return self.authority.policies(call.session.workspace).user.guard
        except ToolError:
            return None

    async def _wait_in_lane(
        self,
        ticket: asyncio.Future[None],
        running: RunningCall,
        subject: Subject,
        decision: Decision,
    ) -> Subject:
        try:
            await running.until(ticket)
            if decision.outcome is Outcome.ALLOW:  # no person has seen where it was to run
                subject = self.confinement.sheltered(running.call, subject)
            ensure_still_allowed(running.call, subject, self.authority, decision)
            return subject
        except BaseException:
            if not ticket.done() or ticket.cancelled():
                running.slot = None  # it never had it
            raise

    def examine(self, call: ToolCall, *, by_agent: bool = False) -> tuple[Subject, Decision]:
        """What the policy says of a call, without running it or asking anyone. `by_agent`: an
        agent of somebody else would run it itself."""
        plan = self._plans.find(call)
        subject = Subject(plan.tool, plan.validate(call.arguments))
        if call.session.pool is not None:
            raise ToolExecutionError("What it touches only its worker knows.", reason="in_pool")
        subject = self.confinement.enclose(call, subject, by_agent=by_agent)
        subject = self.confinement.confine(call, subject)
        decision = judge(call, subject, self.authority)
        if by_agent:
            decision = self.confinement.unbound(call, subject, decision)
        self.confinement.ensure(call, subject, decision)
        return subject, decision

    def is_recordable(self) -> bool:
        """Whether the audit log can be written."""
        if self._records is None:
            return True
        try:
            self._records.audit.ensure_open()
        except OSError:
            return False
        return True

    def refuse(self, call: ToolCall, error: ToolError) -> ToolResult:
        """End a call that never gets onto the road, with the events and record of any other."""
        return Journal(call, self._sink, self._log, self._records).failed(error, Findings())

    async def cancel(self, call_id: str) -> bool:
        """Stop one call; False if it is not under way."""
        running = self.running.find(call_id)
        if running is None:
            return False
        await self.running.stop(running, Stop.CANCEL)
        return True

    async def close_session(self, session: Session, why: Stop = Stop.CANCEL) -> None:
        """Stop a session's calls and forget the answers remembered for it."""
        await self.running.stop_all(self.running.of_session(session.id), why)
        self.authority.grants.revoke_session(session)
        self.files.forget(session.id)
        self._flows.forget(session.id)
        self.running.forget(session.id)
        self.environments.withdraw(session.id)
        await self._log.release(session.id)

    async def close(self) -> None:
        """Refuse new calls, stop the ones under way, and write the records of those that ended."""
        await self.running.close()
        await self.files.settle()
        if self._records is not None:
            await self._records.close()

    # The same for an agent loop: blocks in, blocks out.

    def register(self, tool_factory: ToolFactory) -> None:
        """Register a tool; raise `ToolRegistrationError` where its definition is wrong."""
        self.registry.register(tool_factory)

    def unregister(self, tool_name: str) -> None:
        self.registry.unregister(tool_name)

    def get_definitions_for_session(self, session: Session) -> list[ToolDefinition]:
        """The tools that this session may see."""
        return [tool.definition for tool in self.registry.listed(session)]

    async def dispatch(self, tool_use: ToolUseBlock, session: Session) -> ToolResultBlock:
        """Run what a model asked for; always exactly one result block."""
        return (await self._run_use(tool_use, session)).block(tool_use.id)

    async def dispatch_all(
        self, tool_uses: Iterable[ToolUseBlock], session: Session
    ) -> list[ToolResultBlock]:
        """All tool uses of one assistant message, side by side, results in their order."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.dispatch(use, session)) for use in tool_uses]
        return [task.result() for task in tasks]

    async def _run_use(self, use: ToolUseBlock, session: Session) -> ToolResult:
        if not isinstance(session, Session):
            raise TypeError(f"dispatch needs a Session, not {type(session).__name__}")
        if isinstance(use.id, str) and EXTERNAL_ID.match(use.id):
            return await self.run(_as_call(use, session))
        call = ToolCall(
            tool=use.name, arguments=use.input, session=session, caller=CallerKind.AGENT
        )
        return self.refuse(
            call, ToolProtocolError("An id is 1 to 128 printable characters.", reason="bad_id")
        )

    async def cancel_session_tools(self, session_id: str) -> None:
        """Stop every call of a session, wherever it is, and wait until each has ended."""
        await self.running.stop_all(self.running.of_session(session_id), Stop.CANCEL)


def _answer(result: ToolResult, running: RunningCall) -> ToolResult:
    if running.stop is Stop.CALLER_GONE:  # nobody is left to take the result
        raise asyncio.CancelledError
    return result


def _hash(plan: Plan, arguments: Mapping[str, Any]) -> str:
    return plan.validate(arguments).sha256


def _with_fresh_id(call: ToolCall) -> ToolCall:
    """A refused call must not end another one in the eyes of who reads the events."""
    return msgspec.structs.replace(call, id=call_id(), tool_use_id=call.shown_id)


def _as_call(use: ToolUseBlock, session: Session) -> ToolCall:
    return ToolCall(  # with an id of our own: a model could name another call's
        external_id=None if is_call_id(use.id) else use.id,
        tool=use.name,
        arguments=use.input,
        session=session,
        caller=CallerKind.AGENT,
        tool_use_id=use.id,
        turn_id=session.turn_id,
    )
