"""The dispatcher: one road for every call, whoever makes it and whatever runs it.

`run` is that road. Around it stands an interface that takes and returns an agent's blocks
(`ToolUseBlock`, `ToolResultBlock`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec

from callgate.core.calls import CallerKind, ToolCall
from callgate.core.commands import Launcher
from callgate.core.content import ToolResultBlock, ToolUseBlock
from callgate.core.errors import (
    ToolCancelled,
    ToolError,
    ToolExecutionError,
    ToolProtocolError,
    ToolValidationError,
)
from callgate.core.events import EventSink
from callgate.core.ids import EXTERNAL_ID, call_id, is_call_id
from callgate.core.json_schema.schemas import Checked
from callgate.core.resolved_paths import ResolvedPath
from callgate.core.results import ToolResult
from callgate.core.sessions import Session
from callgate.core.tools import ToolDefinition, ToolFactory, ToolOutput
from callgate.dispatch.authorize import (
    Authority,
    Subject,
    authorize,
    ensure_still_allowed,
    judge,
    question,
)
from callgate.dispatch.call_files import CallFiles
from callgate.dispatch.command_rules import CommandRules
from callgate.dispatch.commands.sandboxes import Sandbox
from callgate.dispatch.confine import confine
from callgate.dispatch.contexts import CallContext
from callgate.dispatch.environments import Environments
from callgate.dispatch.execute import Stopped, execute
from callgate.dispatch.failures import log_failure
from callgate.dispatch.journal import Journal, Recorder
from callgate.dispatch.lanes import Lanes
from callgate.dispatch.permission.asking import LeftOpen
from callgate.dispatch.permission.confirmations import Confirmation
from callgate.dispatch.raw_open import is_nested, watch_opens
from callgate.dispatch.registry import Registered, Registry
from callgate.dispatch.resolve import resolve
from callgate.dispatch.running import Running, RunningCall, Stop, StopLimits
from callgate.dispatch.validate import validate
from callgate.events.log import SessionLog
from callgate.policy.decide import Decision, lifts_protection
from callgate.policy.rules import Outcome

_log = logging.getLogger("callgate.dispatch")


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
        leases = None if sandbox is None else sandbox.leases
        self.environments = environments or Environments(leases=leases)
        self._files = files
        self._sink = sink
        self._log = log
        self._audit = audit
        self._limits = limits
        self._sandbox = sandbox
        self._lanes = Lanes(limits.concurrency)
        self.command_rules = CommandRules(authority.policies, self.registry)
        watch_opens()

    @property
    def artifacts(self) -> str | None:
        """Where calls put output aside, by session; None where none is kept."""
        return self._files.artifacts

    async def run(self, call: ToolCall, confirmation: Confirmation | None = None) -> ToolResult:
        """Run one call. Refusals and failures come back as results, never as exceptions.

        `asked` is the question about it that was put before a restart."""
        journal = Journal(call, self._sink, self._log, self._audit)
        if confirmation is not None and self.running.closing:
            return journal.left_open()
        try:
            running = self.running.enter(call)
        except ToolError as error:  # never got onto the road: shutting down, or a used id
            return self.refuse(_with_fresh_id(call), error)
        try:
            if confirmation is not None:
                await journal.asked_before(confirmation)
            tool = resolve(call, self.registry)
            journal.tool = tool
            timeout_s = self._timeout(call, tool)
            if tool.definition.sandboxed and self._sandbox is not None:
                await self._sandbox.ready()
            subject = self._check(call, tool, journal, call.arguments)
            journal.decision = judge(call, subject, self.authority)
            if subject.enclosure is not None:
                self._ensure_kept(call, subject, journal.decision)
            if confirmation is not None or journal.decision.outcome is not Outcome.ALLOW:
                recheck = partial(self._check, call, tool, journal)
                subject = await authorize(
                    call, subject, self.authority, journal, running, recheck, confirmation
                )
            output = await self._execute(call, subject, journal, running, timeout_s)
            result = journal.completed(output)
        except ToolError as error:
            result = journal.failed(error)
        except LeftOpen:
            return journal.left_open()
        except Stopped as stopped:
            result = _answer(journal.failed(stopped.error, stopped.partial), running)
        except Exception as error:  # a defect of ours must not become an answer nobody gets
            log_failure(_log, error, "call %s met a defect", call.id)
            result = journal.failed(ToolExecutionError(is_user_visible=False, reason="internal"))
        except BaseException:
            if not journal.closed:
                journal.failed(ToolCancelled(reason=Stop.CALLER_GONE))
            raise
        finally:
            self.running.remove(running)
        if journal.is_stored:
            await journal.settled()
        return result

    def _check(self, call: ToolCall, tool: Registered, journal: Journal, arguments: Any) -> Subject:
        """Stages 2 and 3; again for arguments that a person put in place of the caller's."""
        checked = validate(arguments, tool)
        journal.checked = checked
        enclosure = None
        if tool.definition.sandboxed and self._sandbox is not None:
            enclosure = self._sandbox.enclosure(
                call.session,
                checked.arguments,
                has_effects=tool.has_effects,
                terminals=self._terminals(call, tool, checked),
            )
            journal.sandbox = str(enclosure)
        without_paths = Subject(tool, checked, (), enclosure)
        if not tool.path_params:
            return self._confined(call, without_paths, journal)
        book = self.authority.policies(call.session.workspace)

        def writable(resolved: ResolvedPath) -> bool:
            if self._files.is_own(resolved):
                return False
            asking = question(call, without_paths, book)
            return not resolved.protected or lifts_protection(resolved, asking, book.user)

        locate = self._files.open(call).locate
        resolved_paths = confine(checked.arguments, tool, locate, writable)
        subject = Subject(tool, checked, resolved_paths, enclosure)
        if enclosure is not None and book.has_rules:
            named = self.command_rules.named(call, subject, locate)
            subject = msgspec.structs.replace(subject, named=named)
        return self._confined(call, subject, journal)

    def _confined(self, call: ToolCall, subject: Subject, journal: Journal) -> Subject:
        """The same, with the network of its commands bound to the hosts that the policy names."""
        if self._sandbox is None or subject.enclosure is None or not subject.enclosure.is_online:
            return subject
        most = self.authority.policies(call.session.workspace).most_hosts
        named = judge(call, subject, self.authority).hosts
        enclosure = self._sandbox.confined(subject.enclosure, named, most)
        journal.sandbox = str(enclosure)
        return msgspec.structs.replace(subject, enclosure=enclosure)

    def _ensure_kept(self, call: ToolCall, subject: Subject, decision: Decision) -> None:
        """Refuse what this machine cannot keep, before anyone is asked about it."""
        assert self._sandbox is not None and subject.enclosure is not None
        if decision.outcome is not Outcome.DENY or decision.reason == "mode_read":
            self._sandbox.ensure(subject.enclosure, call.session)

    async def _execute(
        self,
        call: ToolCall,
        subject: Subject,
        journal: Journal,
        running: RunningCall,
        timeout_s: float,
    ) -> ToolOutput:
        """Wait for a slot, say that the call starts, and start it."""
        tool = subject.tool
        if tool.has_effects:
            journal.ensure_recordable()
        if is_nested(call.session.id):  # the tool that makes this call has a slot already
            release, ticket = _nothing, None
        else:
            lane = (call.session.id, tool.name, tool.definition.max_concurrent)
            release, ticket = partial(self._lanes.release, *lane), self._lanes.enter(*lane)
        if ticket is not None:
            try:
                await running.until(ticket)
                ensure_still_allowed(call, subject, self.authority, journal.decision)
            except BaseException:
                if ticket.done() and not ticket.cancelled():
                    release()
                raise
        try:
            running.raise_if_stopped()
            launcher = self._launcher(call, subject)
            context = CallContext(call, subject, journal, self._files, self.environments, launcher)
            if tool.has_effects:
                await journal.started(tool, subject.checked, running)
            else:
                journal.called(tool, subject.checked)
        except BaseException:
            release()
            raise
        arguments = subject.checked.arguments
        output = await execute(
            tool.factory, arguments, context, running, self.running, timeout_s, release
        )
        return context.diagnosed(output)

    def _launcher(self, call: ToolCall, subject: Subject) -> Launcher | None:
        if self._sandbox is None or subject.enclosure is None:
            return None
        if subject.enclosure.delegated:
            return self._sandbox.delegating(call.session, self.environments.terminals)
        rules = self.command_rules.of(call, subject)
        if not rules:
            return self._sandbox.launcher(subject.enclosure, call.session)
        allowed = (*subject.resolved_paths, *subject.named)
        return self._sandbox.rule_launcher(subject.enclosure, call.session, rules, allowed)

    def _terminals(self, call: ToolCall, tool: Registered, checked: Checked) -> Launcher | None:
        """The client's, for commands that belong to the session; other processes stay here, and
        so do commands that path rules bind: nothing can be kept from them there."""
        if tool.definition.source != "builtin":
            return None
        terminals = self.environments.terminals(call.session)
        if terminals is not None and self.command_rules.of(call, Subject(tool, checked, ())):
            return None
        return terminals

    def _timeout(self, call: ToolCall, tool: Registered) -> float:
        if call.timeout_s is None:
            return min(tool.timeout_s, self._limits.max_timeout_s)
        if not call.timeout_s > 0:
            raise ToolValidationError("timeout_s must be positive")
        return min(call.timeout_s, self._limits.max_timeout_s)

    def examine(self, call: ToolCall) -> tuple[Subject, Decision]:
        """What the policy says of a call, without running it or asking anyone."""
        tool = resolve(call, self.registry)
        journal = Journal(call, self._sink, self._log, None)
        subject = self._check(call, tool, journal, call.arguments)
        decision = judge(call, subject, self.authority)
        if subject.enclosure is not None:
            self._ensure_kept(call, subject, decision)
        return subject, decision

    def refuse(self, call: ToolCall, error: ToolError) -> ToolResult:
        """End a call that never gets onto the road, with the events and record of any other."""
        return Journal(call, self._sink, self._log, self._audit).failed(error)

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
        self._files.forget(session.id)
        self.running.forget(session.id)
        self.environments.withdraw(session.id)
        await self._log.release(session.id)

    async def close(self) -> None:
        """Refuse new calls and stop the ones under way."""
        await self.running.close()

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


def _nothing() -> None:
    pass


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
