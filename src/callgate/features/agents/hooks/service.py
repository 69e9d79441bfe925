"""Answers the hooks of agents: each event becomes a callgate call, which is checked and recorded.

    before  read -> session -> translate -> guarded? -> Runtime -> allowed | refused -> answer
                                                          |
                                        an approver answers, while the hook waits
    prompt  read -> session -> from the agent itself? (`prompts`) -> the user's words for the guard
    after   the allowed call ends with the agent's report; if there is no allowed call, the audit
            log records an effect without permission

`submit` always returns an answer in the agent's format. Any failure becomes a refusal, but a prompt
always reaches the agent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import msgspec

from callgate.core.calls import AGENTS_PROCESS, CallerKind, Handover, ToolCall, ToolResult
from callgate.core.effects import SideEffects
from callgate.core.errors import (
    ToolError,
    ToolErrorClass,
    ToolExecutionError,
    ToolPermissionDenied,
    ToolValidationError,
)
from callgate.core.local.environment import off_loop
from callgate.core.sessions import Mode, OpenSession
from callgate.core.tasks import TaskSet, start_task
from callgate.features.agents.hooks import events, hook_switches
from callgate.features.agents.hooks.agent_calls import (
    MOST_PROMPTS,
    MOST_REMEMBERED,
    AgentSession,
    AgentSessions,
    OpenCall,
    PerformedCall,
    ReadCall,
    Report,
    SandboxedCall,
    Tickets,
    digest_of,
    key_of,
)
from callgate.features.agents.hooks.agent_tools import GENERIC, Translated, generic, translate
from callgate.features.agents.hooks.events import BadHookEvent, HookEvent, HookPhase, Verdict
from callgate.features.agents.hooks.prompts import Planned, Sender, contain_command, doubt
from callgate.features.agents.hooks.protection import Guarded, fetch_refusal
from callgate.features.agents.known import KNOWN, hook_directory, hooks_of
from callgate.features.agents.settings import HooksTable
from callgate.runtime import Runtime

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("callgate.hooks")

UNAPPROVED = "effect_without_permission"
LEFT_TO_AGENT = "callgate does not object; the agent's own checks decide."
_CLOSE_S = 1.0
_LATE_S = 2.0
"""Additional time for a question to close after its time limit."""
_MOST_READERS = 4
"""Maximum number of events that threads read concurrently."""
_STARTS_PROCESSES = ("shell", f"{GENERIC}execute")
"""Tools for which an agent may start a process with arbitrary code."""
_NO_INPUT = "exec </dev/null\n"
"""Prefix of commands if the agent could write to their input later without a hook."""


class HookService:
    """Answers the hooks of all agents in one instance."""

    def __init__(
        self,
        runtime: Runtime,
        open_session: OpenSession,
        home: str,
        settings: Callable[[], HooksTable],
        is_draining: Callable[[], bool] = lambda: False,
        web_hosts: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """`web_hosts` returns the hosts of `[web] allow`."""
        self._runtime = runtime
        self._home = home
        self._settings = settings
        self._is_draining = is_draining
        self._web_hosts = web_hosts
        self._sessions = AgentSessions(runtime, open_session, home)
        self._planned = Planned()
        self._calls = TaskSet(_log, "a call of an agent met a defect")
        self._readers = asyncio.Semaphore(_MOST_READERS)
        self.tickets = Tickets()

    async def submit(
        self,
        agent: str,
        data: bytes,
        disconnected: Callable[[], Awaitable[Any]] | None = None,
        phase: str | None = None,
        sender: Sender | None = None,
    ) -> bytes:
        """Return the answer to one event.

        `disconnected` returns when the hook stops waiting. `phase` is the phase in the hook's
        command line, if it names one. `sender` is None for an event from this process.
        """
        if phase == HookPhase.PROMPT:
            return await self._hear(agent, data, sender)
        try:
            event = await self._in_thread(events.read, agent, data)
            if phase is not None and phase != event.phase:
                raise BadHookEvent(
                    f"The hook was called for {phase[:20]}, but its event is for {event.phase}."
                )
            if event.phase is HookPhase.PROMPT:
                return await self._hear(agent, data, sender)
            form, agent_of_call = agent, event.relayed or agent
            if event.phase is HookPhase.AFTER:
                await self._after(agent_of_call, form, event)
                return events.noted(agent)
            verdict = await self._before(agent_of_call, form, event, disconnected, sender)
            return events.write(agent, verdict)
        except BadHookEvent as error:
            _log.warning("an event of %s is refused: %s", agent, error)
            return events.refusal(agent, str(error))
        except ToolError as error:
            return events.refusal(agent, str(error))
        except Exception:  # a defect of callgate must not let a call run
            _log.exception("a hook of %s met a defect", agent)
            return events.refusal(agent, "callgate failed because of a defect. See its log.")

    async def close(self) -> None:
        """End all sessions, without waiting for calls that agents still run."""
        for session in self._sessions.all():
            for calls in list(session.open.values()):
                for call in calls:
                    if call.performed is not None:
                        call.performed.end(Report(text="callgate ended before the call did."))
        await self._calls.wait(_CLOSE_S)  # the runtime stops calls that wait for an answer
        await self._sessions.close()

    # --- prompts ------------------------------------------------------------------------------

    async def _hear(self, agent: str, data: bytes, sender: Sender | None) -> bytes:
        """Add a prompt to the user's words. Failures have no effect on the agent."""
        try:
            event = await self._in_thread(events.read, agent, data)
            if event.phase is not HookPhase.PROMPT:
                raise BadHookEvent(f"The hook was called for a prompt, not for {event.phase}.")
            if event.words is not None:
                session = await self._sessions.open(event.relayed or agent, event)
                await self._add_words(session, event.words, sender)
        except (BadHookEvent, ToolError) as error:
            _log.warning("a prompt to %s is not known to the guard: %s", agent, error)
        except Exception:  # a defect of callgate must not block the conversation
            _log.exception("a prompt to %s met a defect", agent)
        return events.heard(agent)

    async def _add_words(self, session: AgentSession, words: str, sender: Sender | None) -> None:
        why = "a model wrote it" if self._planned.contain(words) else None
        workspace = session.session.workspace
        if await self._in_thread(contain_command, words, session.agent, workspace):
            why = "it is a command that inserts other texts"
        if sender is None:
            if why is None:
                self._runtime.sessions.conversations.hear(session.session, words)
            return
        peer = await self._in_thread(sender)
        process = None if peer is None else peer.agent
        spans = [
            each.spans
            for each in self._sessions.all()
            if each is session or each.agent_process in (None, process)
        ]
        if session.is_contested:
            why = "several processes report calls of this conversation"
        why = why or doubt(peer, session.agent_process, spans)
        if why is not None:
            _log.warning("a prompt to %s does not count as the user's: %s", session.agent, why)
        elif process == session.agent_process:
            self._runtime.sessions.conversations.hear(session.session, words)
        elif process is not None:
            session.prompts = [*session.prompts[1 - MOST_PROMPTS :], (process, words)]

    # --- before a call ------------------------------------------------------------------------

    async def _before(
        self,
        agent: str,
        form: str,
        event: HookEvent,
        disconnected: Callable[[], Awaitable[Any]] | None,
        sender: Sender | None,
    ) -> Verdict:
        if self._is_draining():
            raise ToolPermissionDenied(
                "callgate is shutting down. Retry after its restart.", reason="draining"
            )
        session = await self._sessions.open(agent, event)
        if sender is not None:
            for words in session.identify(await self._in_thread(sender)):
                self._runtime.sessions.conversations.hear(session.session, words)
        self._planned.note(event.input)
        read = await self._read_call(agent, event, session)
        tool_call = self._tool_call(agent, event, read.call, session)
        is_contained = await self._is_contained(form, event, read, tool_call)
        # No await between here and `session.add`: two hooks of one call must find each other.
        key = key_of(event, read, agent)
        if (shared := self._shared(session, key, form, event, read)) is not None:
            return await self._verdict_of(shared)
        if read.refusal is not None:
            session.refused.append(key)
            result = self._runtime.calls.refuse(tool_call, read.refusal)
            return _refused(result)
        return await self._judge(
            session, key, form, event, read, tool_call, disconnected, is_contained
        )

    async def _is_contained(
        self, form: str, event: HookEvent, read: ReadCall, call: ToolCall
    ) -> bool:
        """Return whether callgate runs the command in its sandbox, and the agent runs a ticket.

        The settings can require it. Otherwise it applies to commands that only read, which need no
        approval in the sandbox.
        """
        if call.tool != "shell" or read.refusal is not None or not _rewrites(form, event):
            return False
        where = self._settings().shell
        if where == "sandbox":
            return True
        reads_only = where is not None or call.session.mode != Mode.GUARDED
        return await self._runtime.permission.is_contained(call, reads_only=reads_only)

    async def _read_call(
        self, agent: str, event: HookEvent, session: AgentSession, *, report: bool = False
    ) -> ReadCall:
        """Read one event as a call of an existing tool. `report`: the call has already run."""
        classes, guarded = self._settings().tools, None if report else session.guarded
        read = await self._in_thread(read_call, agent, event, classes, guarded)
        if read.call.tool == "web_fetch" and read.refusal is None and not report:
            why = await fetch_refusal(str(read.call.arguments["url"]), self._web_hosts())
            if why is not None:
                refusal = ToolPermissionDenied(why, reason="address_refused")
                read = msgspec.structs.replace(read, refusal=refusal)
        if self._runtime.tools.find(read.call.tool, session.session) is not None:
            return read
        classes = {**classes, event.tool: classes.get(event.tool, SideEffects.EXECUTE)}
        return await self._in_thread(read_call, agent, event, classes, guarded)

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run work in a thread. Its duration grows with the event's size and number of paths."""
        async with self._readers:
            return await off_loop(work, *args, **kwargs)

    def _shared(
        self, session: AgentSession, key: str, form: str, event: HookEvent, read: ReadCall
    ) -> OpenCall | None:
        """Return the open call of an event, if a second hook reports it or a hook repeats it.

        An answer counts for one run: after the decision, the same hook submits a new call.
        """
        for open_call in session.open.get(key, ()):
            if event.use_id is not None and open_call.digest != read.digest:
                raise ToolPermissionDenied(
                    "This call id is already used by a running call.",
                    reason="used_id",
                )
            is_again = form in open_call.forms
            if not is_again or (event.use_id is not None and not open_call.decided.done()):
                open_call.forms.add(form)
                return open_call
        return None

    async def _verdict_of(self, shared: OpenCall) -> Verdict:
        limit_s = self._settings().wait_s + 2 * _LATE_S
        done, _ = await asyncio.wait({shared.decided}, timeout=limit_s)
        if not done:
            raise ToolPermissionDenied(
                "The same call still waits for a decision. Retry later.", reason="twice"
            )
        return shared.decided.result()

    def _tool_call(
        self, agent: str, event: HookEvent, call: Translated, session: AgentSession
    ) -> ToolCall:
        return ToolCall(
            tool=call.tool,
            arguments=call.arguments,
            session=session.session,
            caller=CallerKind.AGENT,
            timeout_s=self._settings().report_s,
            answer_s=self._settings().wait_s,
            scope={"agent": agent, "agent_tool": event.tool},
            client=session.session.client,
        )

    async def _judge(
        self,
        session: AgentSession,
        key: str,
        form: str,
        event: HookEvent,
        read: ReadCall,
        tool_call: ToolCall,
        disconnected: Callable[[], Awaitable[Any]] | None,
        is_contained: bool,
    ) -> Verdict:
        call = read.call
        sandboxed: SandboxedCall | None = None
        performed: PerformedCall | None = None
        if is_contained:
            sandboxed = SandboxedCall()
            started, handover = sandboxed.started, Handover(sandboxed.work, previews=True)
        else:
            rewrites = call.tool == "shell" and _rewrites(form, event)
            performed = PerformedCall(call.arguments, call.edits, amendable=rewrites)
            started = performed.started
            handover = Handover(
                performed.work,
                AGENTS_PROCESS,
                takes_slot=False,
                is_understood=not read.is_doubtful,
                is_containable=rewrites,
                previews=True,
            )
        decided = asyncio.get_running_loop().create_future()
        open_call = OpenCall({form}, read.digest, performed, decided)
        session.add(key, open_call)
        tool_call = msgspec.structs.replace(tool_call, handover=handover)
        task = self._calls.start(self._runtime.calls.run(tool_call))
        task.add_done_callback(lambda _: self._ended(session, key, open_call, sandboxed))
        refusal = await self._wait(task, started, tool_call, disconnected)
        if refusal is not None:
            session.drop(key, open_call)
            session.refused.append(key)
        elif sandboxed is not None:
            self.tickets.add(sandboxed)
        elif performed is not None:
            if call.tool in _STARTS_PROCESSES or _is_skill(session.agent, event):
                session.spans.begin(key, undecided=call.undecided)
            if call.undecided:  # the agent reports no end if it refuses
                performed.end(Report(text=LEFT_TO_AGENT))
        verdict = refusal or self._allowed(form, event, call, started.result(), sandboxed)
        if verdict.updated_input is not None and event.use_id is None:
            rewritten = msgspec.structs.replace(event, input=verdict.updated_input)
            in_place = await self._read_call(session.agent, rewritten, session, report=True)
            session.rewrite(key, key_of(rewritten, in_place, session.agent))
        decided.set_result(verdict)
        return verdict

    async def _wait(
        self,
        task: asyncio.Task[ToolResult],
        started: asyncio.Future[Any],
        call: ToolCall,
        disconnected: Callable[[], Awaitable[Any]] | None,
    ) -> Verdict | None:
        """Wait for the decision. Return None if the call may run, else the refusal."""
        leaving = None if disconnected is None else start_task(_until(disconnected))
        waiting: set[asyncio.Future[Any]] = {task, started}
        if leaving is not None:
            waiting.add(leaving)
        wait_s = self._settings().wait_s + _LATE_S
        try:
            await asyncio.wait(waiting, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if leaving is not None:
                leaving.cancel()
        if started.done() and not task.done():
            return None
        if task.done():
            return _refused(task.result())
        await self._runtime.calls.cancel_promptly(call.id)
        return Verdict(allowed=False, reason="callgate could not decide in time.")

    def _allowed(
        self,
        agent: str,
        event: HookEvent,
        call: Translated,
        arguments: dict[str, Any],
        sandboxed: SandboxedCall | None,
    ) -> Verdict:
        """Return the answer for an allowed call, with a replaced input if necessary."""
        if call.undecided:
            return Verdict(allowed=True, undecided=True)
        command = arguments.get("command")
        if sandboxed is not None:
            program = shlex.quote(f"{hook_directory(self._home, agent)}/run")
            return _running(event, f"{program} {sandboxed.ticket}")
        given = event.input.get("command", event.input.get("cmd"))
        if hooks_of(agent).types_later and call.tool == "shell" and isinstance(command, str):
            return _running(event, _NO_INPUT + command)
        if isinstance(command, str) and isinstance(given, str) and command != given:
            return _running(event, command)
        return Verdict(allowed=True)

    def _ended(
        self,
        session: AgentSession,
        key: str,
        call: OpenCall,
        sandboxed: SandboxedCall | None,
    ) -> None:
        if sandboxed is not None:
            self.tickets.withdraw(sandboxed)
            if not sandboxed.output.done():
                sandboxed.output.cancel()
            return  # the agent's report follows
        if not (call.decided.done() and call.decided.result().undecided):
            session.spans.end(key)
        if call.was_allowed and call in session.open.get(key, ()):
            session.finished.append(key)  # the call was allowed, so its report follows
        session.drop(key, call)

    # --- after a call -------------------------------------------------------------------------

    async def _after(self, agent: str, form: str, event: HookEvent) -> None:
        session = self._sessions.find(agent, event)
        if session is None:
            session = await self._sessions.open_anywhere(agent, event)
        read = await self._read_call(agent, event, session, report=True)
        key = key_of(event, read, agent)
        session.spans.end(session.rewritten.get(key, key))
        if key not in session.open and key not in session.finished:
            key = session.rewritten.get(key, key)
        found = session.take(key)
        if found is not None:
            if found.performed is not None:
                found.performed.end(Report(failed=event.failed, text=event.output))
            session.finished.extend([key] * (len(found.forms) - 1))  # each hook reports the end
            return
        if key in session.finished:
            session.finished.remove(key)
            return
        if session.unapproved.pop(key, form) != form:
            return  # the agent's other hook has reported it
        session.unapproved[key] = form
        while len(session.unapproved) > MOST_REMEMBERED:
            del session.unapproved[next(iter(session.unapproved))]
        how = "although it was refused" if key in session.refused else "without asking"
        error = ToolExecutionError(
            f"{KNOWN[agent].label} ran this {how}: an effect without permission.",
            reason=UNAPPROVED,
        )
        _log.error("%s ran %s %s", agent, event.tool, how)
        self._runtime.calls.refuse(self._tool_call(agent, event, read.call, session), error)


def read_call(
    agent: str, event: HookEvent, classes: Mapping[str, str], guarded: Guarded | None
) -> ReadCall:
    """Read one event as a call.

    The call is refused if it is ambiguous, is the call of a test, or touches a guarded place.
    """
    refusal: ToolError | None = None
    try:
        directory = event.cwd or os.getcwd()
        call = translate(
            event, classes, agent, lambda: hook_switches.runs_commands_unasked(agent, directory)
        )
    except BadHookEvent as error:
        call, refusal = generic(event, "execute", agent), ToolValidationError(str(error))
    is_doubted = False
    if guarded is not None and events.is_trial(event.input):
        refusal = ToolPermissionDenied(events.REFUSAL, reason=events.REASON)
    if guarded is not None and refusal is None:
        why = guarded.refusal(call, may_type_later=hooks_of(agent).types_later)
        refusal = None if why is None else ToolPermissionDenied(why, reason="guarded")
        is_doubted = refusal is None and guarded.is_doubtful(call)
    return ReadCall(call, digest_of(call), refusal, is_doubted)


def _is_skill(agent: str, event: HookEvent) -> bool:
    row = hooks_of(agent).tools.get(event.tool.lower())
    return row is not None and row.kind == "skill"


def _rewrites(form: str, event: HookEvent) -> bool:
    """Return whether the hook's answer can replace the agent's command."""
    return hooks_of(form).dialect.rewrites and not event.relayed


def _running(event: HookEvent, command: str) -> Verdict:
    key = "command" if "command" in event.input or "cmd" not in event.input else "cmd"
    return Verdict(allowed=True, updated_input={**event.input, key: command})


def _refused(result: ToolResult) -> Verdict:
    if result.error is None:
        return Verdict(allowed=False)
    reason = result.error.message
    if result.error.error_class is ToolErrorClass.CONFIRMATION_TIMEOUT:
        reason += " Questions wait in the inbox: callgate dashboard, or callgate watch --answer."
    return Verdict(allowed=False, reason=f"callgate: {reason}")


async def _until(disconnected: Callable[[], Awaitable[Any]]) -> None:
    await disconnected()
