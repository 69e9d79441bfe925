"""The dispatcher: one pipeline for every call, from any caller, to any tool.

    resolve -> validate -> contain -> locate -> decide -> authorize -> queue -> execute
       |          |           |          |         |                               |
     a tool   arguments    sandbox     paths    decision                         output
       +----------+-----------+----------+---------+-------------------------------+
                                         |
                              Findings -> journal -> ToolResult

`run` is that pipeline. Each stage is a separate module: it returns the input of the next stage or
raises a `ToolError`, and imports no other stage. The order is a security property: no tool runs
before `authorize` has returned. A `Handover` names the program that does the work in place of the
tool. A site (`sites`) contains the work and locates its paths. `plans` prepares the parts that
are equal for all calls of a tool, such as the first stage. The methods below `run` are an interface
for an agent's blocks (`ToolUseBlock`, `ToolResultBlock`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import msgspec

from callgate.core.calls import CallerKind, ToolCall, ToolResult
from callgate.core.commands import CONNECT_HOST
from callgate.core.content import ToolResultBlock, ToolUseBlock
from callgate.core.errors import (
    ToolCancelled,
    ToolError,
    ToolExecutionError,
    ToolProtocolError,
)
from callgate.core.events import EventSink
from callgate.core.ids import EXTERNAL_ID, call_id, is_call_id
from callgate.core.sessions import Session
from callgate.core.tools import CannotSucceed, ToolDefinition, ToolFactory, ToolOutput
from callgate.dispatch.authorize import accept, authorize
from callgate.dispatch.call_files import CallFiles
from callgate.dispatch.call_records import Recorder, RecordWriter
from callgate.dispatch.command_paths import CommandRules
from callgate.dispatch.commands.sandboxes import Sandbox
from callgate.dispatch.environments import CallContext, Environments
from callgate.dispatch.execute import Stopped, execute
from callgate.dispatch.foreign_code import log_failure, watch_opens
from callgate.dispatch.journal import Journal
from callgate.dispatch.lanes import Lanes
from callgate.dispatch.permission.asking import LeftOpen
from callgate.dispatch.permission.confirmations import Confirmation
from callgate.dispatch.permission.deciding import Authority, decide, ensure_still_allowed
from callgate.dispatch.permission.flows import INDEXED_AT_ONCE
from callgate.dispatch.plans import CallPlan, Plans
from callgate.dispatch.running import Running, RunningCall, Stop, StopLimits
from callgate.dispatch.sites.examine import Consultations, Site, examine
from callgate.dispatch.sites.here import Here, Sites
from callgate.dispatch.subjects import Findings, Subject, with_work
from callgate.dispatch.tools.registry import Registry
from callgate.dispatch.tools.sources import FixedTools, Lazy
from callgate.events.log import SessionLog
from callgate.policy.decisions import Decision, Reason
from callgate.policy.rules import GuardSettings, Outcome

if TYPE_CHECKING:
    from callgate.core.commands import Launcher
    from callgate.core.ids import TraceContext
    from callgate.dispatch.permission.connections import Connections

    Trace = Callable[[ToolCall, Launcher | None], tuple[TraceContext, Launcher | None]]
    """Returns the trace context of a call, and a launcher that passes it on to commands."""

_log = logging.getLogger("callgate.dispatch")

Task = asyncio.Task[Any]


class CallLimits(msgspec.Struct, frozen=True, kw_only=True):
    concurrency: int = 4
    """Maximum number of concurrent calls of one session."""
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
        limits: CallLimits = CallLimits(),  # noqa: B008  # frozen
        sandbox: Sandbox | None = None,
        environments: Environments | None = None,
    ) -> None:
        """Create a dispatcher. Without a `sandbox` no tool can start a command."""
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
        self._decide = partial(decide, authority=authority)
        self.sites = Sites(
            Here(
                sandbox,
                files,
                self.environments,
                self.command_rules,
                Consultations(authority.policies, self._decide),
            )
        )
        self.trace: Trace | None = None
        """None: telemetry is off."""
        if sandbox is not None:
            self.registry.add(Lazy((CONNECT_HOST,), _connect_host))
            sandbox.approving = self._approving
        watch_opens()

    @cached_property
    def connections(self) -> Connections:
        """The questions about hosts that commands contact."""
        from callgate.dispatch.permission.connections import (  # lazy: for commands that may ask  # noqa: PLC0415
            Connections,
        )

        return Connections(self.run, lambda: (each.call for each in self.running))

    def _approving(self, launcher: Launcher, session: Session, name: str) -> Launcher:
        return self.connections.of_process(launcher, session, name)

    @property
    def artifacts(self) -> str | None:
        """Directory of the output that calls store, by session; None if none is stored."""
        return self.files.artifacts

    async def run(
        self, call: ToolCall, confirmation: Confirmation | None = None, task: Task | None = None
    ) -> ToolResult:
        """Run one call. Refusals and failures are returned as results, never raised.

        `confirmation` is the pending question about the call, after a restart; `task` is the
        current task, if it serves this call alone."""
        try:
            running = self.running.enter(call, task)
        except ToolError as error:
            return self._not_entered(call, confirmation, error)
        journal = Journal(call, self._sink, self._log, self._records)
        found = Findings()
        try:
            if confirmation is not None:
                await journal.asked_before(confirmation)
            plan = self._plans.find(call)
            found.tool = tool = plan.tool
            timeout_s = plan.timeout_s if call.timeout_s is None else plan.time_limit(call)
            found.subject = subject = Subject(tool, plan.validate(call.arguments))
            site = self.sites.of(call, running)
            if plan.is_confined or self._facts or site is not self.sites.here:
                await self._prepare(call, subject, site)
            decision = examine(call, plan.is_confined, subject, site, self._decide, found)
            if (
                confirmation is not None
                or decision.budgets
                or decision.outcome is not Outcome.ALLOW
            ):
                await self._authorize(call, plan, site, found, journal, running, confirmation)
            if tool.has_effects:
                journal.ensure_recordable()
            ticket = self._lanes.enter(running, tool)
            if ticket is not None:
                await self._queue(ticket, running, site, found)
            output = await self._execute(found, site, running, journal, timeout_s)
            result = journal.completed(output, found)
        except BaseException as error:
            result = _failed(error, running, journal, found)
        finally:
            self.running.remove(running)
            if running.slot is not None:
                self._lanes.release(*running.slot)
        return await self._deliver(result, running, journal, found)

    def _not_entered(
        self, call: ToolCall, confirmation: Confirmation | None, error: ToolError
    ) -> ToolResult:
        """Answer a call that did not enter the pipeline: shutting down, or a used id."""
        if confirmation is not None and self.running.closing:
            return Journal(call, self._sink, self._log, self._records).left_open()
        return self.refuse(_with_fresh_id(call), error)

    async def _prepare(self, call: ToolCall, subject: Subject, site: Site) -> None:
        """Wait until the sandbox, the worker and the guard's index are ready for the decision."""
        await site.prepare(call, subject)
        if self._facts and self._flows.pending(call.session) > INDEXED_AT_ONCE:
            await asyncio.to_thread(self._flows.catch_up, call.session)

    async def _authorize(
        self,
        call: ToolCall,
        plan: CallPlan,
        site: Site,
        found: Findings,
        journal: Journal,
        running: RunningCall,
        confirmation: Confirmation | None,
    ) -> None:
        """Count the call in its budgets, and wait for its approval if it needs one."""
        subject, decision = found.subject, found.decision
        assert subject is not None
        assert decision is not None
        if subject.enclosure is not None and self.sites.here.would_read(call, subject, decision):
            found.decision = decision = msgspec.structs.replace(decision, is_read_command=True)
        if decision.budgets:
            from callgate.dispatch.permission.budgets import reserve  # lazy: few have budgets  # noqa: PLC0415

            decision = await reserve(subject, decision, self.authority, self._log, running)
            found.decision = decision
        if confirmation is None and decision.outcome is Outcome.ALLOW:
            return
        hash = partial(_hash, plan)
        answer = await authorize(
            call, subject, decision, self.authority, journal, running, hash, confirmation
        )
        if answer is None:
            return
        if answer.arguments is not None:
            subject = await self._amend(call, plan, site, found, answer.arguments)
        accept(call, subject, decision, self.authority, answer)
        running.answer_scope = answer.scope
        if running.reservation is not None:
            await running.reservation.settle(subject, decision)
        self._flows.answered(call, answer.arguments)

    async def _amend(
        self,
        call: ToolCall,
        plan: CallPlan,
        site: Site,
        found: Findings,
        arguments: Mapping[str, Any],
    ) -> Subject:
        """Return the subject for the arguments that the approver put in place of the call's."""
        before = found.subject
        subject = with_work(call, Subject(plan.tool, plan.validate(arguments)))
        found.subject = subject
        await site.prepare(call, subject)
        found.subject = subject = site.contain(call, subject, before)
        found.subject = subject = site.locate(call, subject)
        return subject

    async def _queue(
        self, ticket: asyncio.Future[None], running: RunningCall, site: Site, found: Findings
    ) -> None:
        """Wait for a slot of the session, then check again that the call is allowed."""
        subject, decision = found.subject, found.decision
        assert subject is not None
        assert decision is not None
        try:
            await running.until(ticket)
            if decision.outcome is Outcome.ALLOW:  # no approver has seen where the work is done
                found.subject = subject = site.relocate(running.call, subject)
            ensure_still_allowed(running.call, subject, self.authority, decision)
        except BaseException:
            if not ticket.done() or ticket.cancelled():
                running.slot = None  # the call never got it
            raise

    async def _execute(
        self,
        found: Findings,
        site: Site,
        running: RunningCall,
        journal: Journal,
        timeout_s: float,
    ) -> ToolOutput:
        """Record the start of the call, and do its work."""
        if running.stop is not None:
            raise running.stop_error()
        call, subject, decision = running.call, found.subject, found.decision
        assert subject is not None
        assert decision is not None
        launcher = None if subject.enclosure is None else site.launcher(call, subject)
        confined = launcher
        if launcher is not None and subject.asks_hosts:
            is_approved = running.answer_scope is not None
            launcher = self.connections.of_call(launcher, call, is_approved=is_approved)
        trace = None
        if self.trace is not None:
            trace, launcher = self.trace(call, launcher)
        if launcher is not None:
            launcher = self.files.recording(launcher, confined, call, subject)
        report = journal.published
        context = CallContext(
            running, subject, report, self.files, self.environments, launcher, trace
        )
        if subject.tool.has_effects:
            running.began = await journal.started(subject, decision, running)
        else:
            running.began = journal.called(subject, decision)
        release, waits = self._lanes.release, self._log.hasten
        return await execute(subject, context, running, self.running, timeout_s, release, waits)

    async def _deliver(
        self, result: ToolResult, running: RunningCall, journal: Journal, found: Findings
    ) -> ToolResult:
        """Return the result after the guard has read it and the record of an effect is on disk."""
        subject, context = found.subject, running.context
        is_read = subject is not None and (self._facts or subject.tool.output_labels)
        if is_read and subject is not None and running.has_begun:
            call = running.call
            self._flows.read(call, subject, result, self._guard_settings(call))
        if journal.is_stored:
            if isinstance(context, CallContext):
                await context.artifacts_synced()
            return await journal.settled(result)
        if self.files.share is not None and isinstance(context, CallContext):
            context.share_artifacts()
        return result

    def _guard_settings(self, call: ToolCall) -> GuardSettings | None:
        """Return the settings about labels; None if the settings are unusable."""
        try:
            return self.authority.policies(call.session.workspace).user.guard
        except ToolError:
            return None

    def examine(self, call: ToolCall) -> tuple[Subject, Decision]:
        """Return the decision about a call, without running it or asking an approver."""
        plan = self._plans.find(call)
        subject, found = Subject(plan.tool, plan.validate(call.arguments)), Findings()
        site = self.sites.of(call)
        decision = examine(call, plan.is_confined, subject, site, self._decide, found)
        return found.subject or subject, decision

    async def is_contained(self, call: ToolCall, *, reads_only: bool) -> bool:
        """Whether a command of a third-party agent runs in our sandbox and reaches no host without
        approval. `reads_only`: the command also only reads, and needs no approval itself; the
        agent runs `cd` in its own shell."""
        here = self.sites.here
        if call.session.pool is not None or (reads_only and not here.is_reading(call.arguments)):
            return False
        await here.ready()
        try:
            subject, decision = self.examine(call)
        except ToolError:
            return False
        if reads_only:
            return decision.outcome is Outcome.ALLOW and decision.reason is Reason.READ_COMMANDS
        return subject.contained

    def is_recordable(self) -> bool:
        """Whether the audit log is writable."""
        if self._records is None:
            return True
        try:
            self._records.audit.ensure_open()
        except OSError:
            return False
        return True

    def refuse(self, call: ToolCall, error: ToolError) -> ToolResult:
        """End a call that does not enter the pipeline, with the usual events and record."""
        return Journal(call, self._sink, self._log, self._records).failed(error, Findings())

    async def cancel(self, call_id: str) -> bool:
        """Stop one call; return False if it is not running."""
        running = self.running.find(call_id)
        if running is None:
            return False
        await self.running.stop(running, Stop.CANCEL)
        return True

    async def close_session(self, session: Session, why: Stop = Stop.CANCEL) -> None:
        """Stop the calls of a session, and forget its grants and other state."""
        await self.running.stop_all(self.running.of_session(session.id), why)
        self.authority.grants.revoke_session(session)
        self.files.forget(session.id)
        self._flows.forget(session.id)
        self.running.forget(session.id)
        self.environments.withdraw(session.id)
        await self._log.release(session.id)

    async def close(self) -> None:
        """Refuse new calls, stop the running ones, and write the pending audit records."""
        await self.running.close()
        await self.files.settle()
        if self._records is not None:
            await self._records.close()

    # The interface for an agent loop: blocks in, blocks out.

    def register(self, tool_factory: ToolFactory) -> None:
        """Register a tool. Raises `ToolRegistrationError` if its definition is wrong."""
        self.registry.register(tool_factory)

    def unregister(self, tool_name: str) -> None:
        self.registry.unregister(tool_name)

    def get_definitions_for_session(self, session: Session) -> list[ToolDefinition]:
        """Return the definitions of the tools that this session may see."""
        return [tool.definition for tool in self.registry.listed(session)]

    async def dispatch(self, tool_use: ToolUseBlock, session: Session) -> ToolResultBlock:
        """Run the tool use of a model. Returns exactly one result block."""
        return (await self._run_use(tool_use, session)).block(tool_use.id)

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
        """Stop every call of a session in any state, and wait until each has ended."""
        await self.running.stop_all(self.running.of_session(session_id), Stop.CANCEL)


def _failed(
    error: BaseException, running: RunningCall, journal: Journal, found: Findings
) -> ToolResult:
    """Record the end of a call that did not complete, and return its result. Raises if its caller
    was cancelled and takes no result."""
    match error:
        case LeftOpen():  # the process shuts down, and the question stays open
            return journal.left_open()
        case ToolError():
            return journal.failed(error, found)
        case CannotSucceed():  # found by its preview
            return journal.failed(error.error, found, error.partial)
        case Stopped():
            result = journal.failed(error.error, found, error.partial)
            if running.stop is Stop.CALLER_GONE:
                raise asyncio.CancelledError
            return result
        case Exception():  # a defect in callgate: logged, and hidden from the caller
            log_failure(_log, error, "call %s met a defect", running.call.id)
            internal = ToolExecutionError(is_user_visible=False, reason="internal")
            return journal.failed(internal, found)
        case _:  # the waiting caller was cancelled
            if not journal.closed:
                journal.failed(ToolCancelled(reason=Stop.CALLER_GONE), found)
            raise error


def _connect_host() -> FixedTools:
    from callgate.dispatch.permission.connections import ConnectHost  # lazy: as above  # noqa: PLC0415

    return FixedTools((ConnectHost,), listed=False)


def _hash(plan: CallPlan, arguments: Mapping[str, Any]) -> str:
    return plan.validate(arguments).sha256


def _with_fresh_id(call: ToolCall) -> ToolCall:
    """Return the call with a new id, so that its end is not taken for the end of another call."""
    return msgspec.structs.replace(call, id=call_id(), tool_use_id=call.shown_id)


def _as_call(use: ToolUseBlock, session: Session) -> ToolCall:
    return ToolCall(  # with an id from callgate: a model could name another call's
        external_id=None if is_call_id(use.id) else use.id,
        tool=use.name,
        arguments=use.input,
        session=session,
        caller=CallerKind.AGENT,
        tool_use_id=use.id,
        turn_id=session.turn_id,
    )
