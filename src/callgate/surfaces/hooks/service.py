"""Answers the hooks of agents: each event becomes a call of ours, judged, recorded, and ended.

    before  read -> session -> translate -> guarded? -> Runtime -> allowed | refused -> answer
                                                          |
                                             a person is asked, while the hook waits
    after   the call that was allowed ends with what the agent reports; where none was, the record
            says that the agent acted without permission

`submit` always returns an answer in the agent's own form: whatever goes wrong here is a refusal.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import msgspec

from callgate.config.agents import hook_switches
from callgate.config.agents.settings_files import AGENTS, hook_directory
from callgate.config.schema import HooksTable
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.effects import SideEffects
from callgate.core.environment import off_loop
from callgate.core.errors import (
    ToolError,
    ToolErrorClass,
    ToolExecutionError,
    ToolPermissionDenied,
    ToolValidationError,
)
from callgate.core.results import ToolResult
from callgate.core.task_sets import TaskSet, start_task
from callgate.protocol.hooks import dialects
from callgate.protocol.hooks.agent_tools import Translated, generic, translate
from callgate.protocol.hooks.events import BadHookEvent, HookEvent, HookPhase, Verdict
from callgate.runtime import Performer, Runtime
from callgate.surfaces.hooks.agent_sessions import (
    MOST_REMEMBERED,
    AgentSession,
    AgentSessions,
    OpenCall,
    OpenSession,
    ReadCall,
    digest_of,
    key_of,
)
from callgate.surfaces.hooks.fetch_addresses import fetch_refusal
from callgate.surfaces.hooks.performing import PerformedCall, Report
from callgate.surfaces.hooks.protection import Guarded
from callgate.surfaces.hooks.sandboxed import SandboxedCall, Tickets

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger("callgate.hooks")

UNAPPROVED = "effect_without_permission"
LEFT_TO_AGENT = "callgate does not object; the agent's own checks decide."
_CLOSE_S = 1.0
_LATE_S = 2.0
"""How long a question may take to close after its time."""
_MOST_READERS = 4
"""Events that are read concurrently, in threads."""
_NO_INPUT = "exec </dev/null\n"
"""Before a command of an agent that could type into it later, unseen by its hook."""


class HookService:
    """One for each instance."""

    def __init__(
        self,
        runtime: Runtime,
        open_session: OpenSession,
        home: str,
        settings: Callable[[], HooksTable],
        is_draining: Callable[[], bool] = lambda: False,
        web_hosts: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """`web_hosts`: those of `[web] allow`."""
        self._runtime = runtime
        self._home = home
        self._settings = settings
        self._is_draining = is_draining
        self._web_hosts = web_hosts
        self._sessions = AgentSessions(runtime, open_session, home)
        self._calls = TaskSet(_log, "a call of an agent met a defect")
        self._readers = asyncio.Semaphore(_MOST_READERS)
        self.tickets = Tickets()

    async def submit(
        self,
        agent: str,
        data: bytes,
        gone: Awaitable[Any] | None = None,
        phase: str | None = None,
    ) -> bytes:
        """The answer to one event. `gone`: returns when nobody waits for the answer any more.
        `phase`: for which the hook was called, where it says so."""
        try:
            event = await self._in_thread(dialects.read, agent, data)
            if phase is not None and phase != event.phase:
                raise BadHookEvent(f"A hook for {phase[:20]} was given an event for {event.phase}.")
            if event.relayed:  # Cursor runs the hooks of Claude Code, too
                form, agent_of_call = agent, "cursor"
            else:
                form = agent_of_call = agent
            if event.phase is HookPhase.AFTER:
                await self._after(agent_of_call, form, event)
                return dialects.noted(agent)
            verdict = await self._before(agent_of_call, form, event, gone)
            return dialects.write(agent, verdict)
        except BadHookEvent as error:
            _log.warning("an event of %s is refused: %s", agent, error)
            return dialects.refusal(agent, str(error))
        except ToolError as error:
            return dialects.refusal(agent, str(error))
        except Exception:  # a defect of ours must not let a call run
            _log.exception("a hook of %s met a defect", agent)
            return dialects.refusal(agent, "callgate met a defect; its log says more.")

    async def close(self) -> None:
        """What agents still run is not waited for."""
        for session in self._sessions.all():
            for calls in list(session.open.values()):
                for call in calls:
                    if call.performed is not None:
                        call.performed.end(Report(text="callgate ended before the call did."))
        await self._calls.wait(_CLOSE_S)  # those that ask a person are stopped with the runtime
        await self._sessions.close()

    # --- before a call ------------------------------------------------------------------------

    async def _before(
        self, agent: str, form: str, event: HookEvent, gone: Awaitable[Any] | None
    ) -> Verdict:
        if self._is_draining():
            raise ToolPermissionDenied("callgate is about to stop.", reason="draining")
        session = await self._sessions.open(agent, event)
        read = await self._read_call(agent, event, session)
        # From here to `session.add` nothing waits: two hooks of one call must find each other.
        key = key_of(event, read, agent)
        if (shared := self._shared(session, key, form, event, read)) is not None:
            return await self._verdict_of(shared)
        tool_call = self._tool_call(agent, event, read.call, session)
        if read.refusal is not None:
            session.refused.append(key)
            result = self._runtime.refuse(tool_call, read.refusal)
            return _refused(result)
        return await self._judge(session, key, form, event, read, tool_call, gone)

    async def _read_call(
        self, agent: str, event: HookEvent, session: AgentSession, *, report: bool = False
    ) -> ReadCall:
        """Read one event as a call of a tool that exists. `report`: the call has already run."""
        classes, guarded = self._settings().tools, None if report else session.guarded
        read = await self._in_thread(read_call, agent, event, classes, guarded)
        if read.call.tool == "web_fetch" and read.refusal is None and not report:
            why = await fetch_refusal(str(read.call.arguments["url"]), self._web_hosts())
            if why is not None:
                refusal = ToolPermissionDenied(why, reason="address_refused")
                read = msgspec.structs.replace(read, refusal=refusal)
        if self._runtime.find_tool(read.call.tool, session.session) is not None:
            return read
        classes = {**classes, event.tool: classes.get(event.tool, SideEffects.EXECUTE)}
        return await self._in_thread(read_call, agent, event, classes, guarded)

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do work that grows with the size of an event and the number of paths in it."""
        async with self._readers:
            return await off_loop(work, *args, **kwargs)

    def _shared(
        self, session: AgentSession, key: str, form: str, event: HookEvent, read: ReadCall
    ) -> OpenCall | None:
        """The same call, where two hooks tell of it, or one tells of it again while it is being
        decided. An answer counts for one run: once it is given, the same hook asks anew."""
        for open_call in session.open.get(key, ()):
            if event.use_id is not None and open_call.digest != read.digest:
                raise ToolPermissionDenied(
                    "The id of this call is that of another one, which is under way.",
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
            raise ToolPermissionDenied("The same call is still being decided.", reason="twice")
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
        gone: Awaitable[Any] | None,
    ) -> Verdict:
        call = read.call
        rewrites = dialects.DIALECTS[form].rewrites and not event.relayed
        is_shell = call.tool == "shell"
        sandboxed: SandboxedCall | None = None
        performed: PerformedCall | None = None
        if is_shell and rewrites and self._settings().shell == "sandbox":
            sandboxed = SandboxedCall()
            started, performer = sandboxed.started, Performer(sandboxed.wrap, by_agent=False)
        else:
            performed = PerformedCall(call.arguments, call.edits, amendable=rewrites and is_shell)
            started, performer = (
                performed.started,
                Performer(performed.wrap, is_doubtful=read.is_doubtful),
            )
        decided = asyncio.get_running_loop().create_future()
        open_call = OpenCall({form}, read.digest, performed, decided)
        session.add(key, open_call)
        task = self._calls.start(self._runtime.call_performed(tool_call, performer))
        task.add_done_callback(lambda _: self._ended(session, key, open_call, sandboxed))
        refusal = await self._wait(task, started, tool_call, gone)
        if refusal is not None:
            session.drop(key, open_call)
            session.refused.append(key)
        elif sandboxed is not None:
            self.tickets.add(sandboxed)
        elif performed is not None and call.undecided:  # refused by the agent, it reports nothing
            performed.end(Report(text=LEFT_TO_AGENT))
        verdict = refusal or self._allowed(form, event, call, started.result(), sandboxed)
        if verdict.updated_input is not None and event.use_id is None:
            told = msgspec.structs.replace(event, input=verdict.updated_input)
            in_place = await self._read_call(session.agent, told, session, report=True)
            session.rewrite(key, key_of(told, in_place, session.agent))
        decided.set_result(verdict)
        return verdict

    async def _wait(
        self,
        task: asyncio.Task[ToolResult],
        started: asyncio.Future[Any],
        call: ToolCall,
        gone: Awaitable[Any] | None,
    ) -> Verdict | None:
        """Until it may run (None), or may not."""
        leaving = None if gone is None else start_task(_until(gone))
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
        await self._runtime.cancel_promptly(call.id)
        return Verdict(allowed=False, reason="callgate could not decide in time.")

    def _allowed(
        self,
        agent: str,
        event: HookEvent,
        call: Translated,
        arguments: dict[str, Any],
        sandboxed: SandboxedCall | None,
    ) -> Verdict:
        """The answer to a call that may run, with the input that is run where that is another."""
        if call.undecided:
            return Verdict(allowed=True, undecided=True)
        command = arguments.get("command")
        if sandboxed is not None:
            program = shlex.quote(f"{hook_directory(self._home, agent)}/run")
            return _running(event, f"{program} {sandboxed.ticket}")
        given = event.input.get("command", event.input.get("cmd"))
        if agent == "codex" and isinstance(command, str) and event.tool != "apply_patch":
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
            return  # the agent's own report is still to come
        if call.was_allowed and call in session.open.get(key, ()):
            session.finished.append(key)  # it was allowed, and its report is still to come
        session.drop(key, call)

    # --- after a call -------------------------------------------------------------------------

    async def _after(self, agent: str, form: str, event: HookEvent) -> None:
        session = self._sessions.find(agent, event)
        if session is None:
            session = await self._sessions.open_anywhere(agent, event)
        read = await self._read_call(agent, event, session, report=True)
        key = key_of(event, read, agent)
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
            return  # the other of the two hooks has reported it
        session.unapproved[key] = form
        while len(session.unapproved) > MOST_REMEMBERED:
            del session.unapproved[next(iter(session.unapproved))]
        how = "although it was refused" if key in session.refused else "without asking"
        error = ToolExecutionError(
            f"{AGENTS[agent].label} ran this {how}: an effect without permission.",
            reason=UNAPPROVED,
        )
        _log.error("%s ran %s %s", agent, event.tool, how)
        self._runtime.refuse(self._tool_call(agent, event, read.call, session), error)


def read_call(
    agent: str, event: HookEvent, classes: Mapping[str, str], guarded: Guarded | None
) -> ReadCall:
    """Read one event as a call; refuse it if it is ambiguous or touches what `guarded` names."""
    refusal: ToolError | None = None
    try:
        directory = event.cwd or os.getcwd()
        call = translate(
            event, classes, agent, lambda: hook_switches.runs_commands_unasked(agent, directory)
        )
    except BadHookEvent as error:
        call, refusal = generic(event, "execute", agent), ToolValidationError(str(error))
    is_doubted = False
    if guarded is not None and refusal is None:
        why = guarded.refusal(call, may_type_later=agent == "codex")
        refusal = None if why is None else ToolPermissionDenied(why, reason="guarded")
        is_doubted = refusal is None and guarded.is_doubtful(call)
    return ReadCall(call, digest_of(call), refusal, is_doubted)


def _running(event: HookEvent, command: str) -> Verdict:
    key = "command" if "command" in event.input or "cmd" not in event.input else "cmd"
    return Verdict(allowed=True, updated_input={**event.input, key: command})


def _refused(result: ToolResult) -> Verdict:
    if result.error is None:
        return Verdict(allowed=False)
    reason = result.error.message
    if result.error.error_class is ToolErrorClass.CONFIRMATION_TIMEOUT:
        reason += " The question was in callgate's inbox (the dashboard, or callgate watch)."
    return Verdict(allowed=False, reason=f"callgate: {reason}")


async def _until(gone: Awaitable[Any]) -> None:
    await gone
