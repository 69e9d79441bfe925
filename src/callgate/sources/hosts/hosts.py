"""One host: its process, its lifecycle (`lifecycle`), and the requests to it.

    a call that may change files      -> the process
    any other call, every preview     -> `reading`, a second process that cannot write

Either is started when it is first needed, and most hosts need one. Each session has its own state
with a host: what the host gave back last goes with the next request of that session, to whichever
process. Calls that share a state run one after another.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from callgate.core.commands import Command, Exit, Launcher
from callgate.core.errors import ToolError, ToolHostUnavailable
from callgate.core.task_sets import start_task
from callgate.core.tools import ToolContext
from callgate.dispatch.raw_open import our_own
from callgate.protocol.host_v1 import frames
from callgate.protocol.ndjson import Unsendable
from callgate.sources.hosts.handshake import (
    AnswerTimeout,
    CheckConfig,
    OptionalMethodCrash,
    Started,
    handshake,
)
from callgate.sources.hosts.in_flight import HostError, OnAsk, OnEvent, Refused
from callgate.sources.hosts.links import HostExited, Link
from callgate.sources.hosts.optional import OptionalMethods
from callgate.sources.hosts.slots import Slots
from callgate.sources.hosts.states import States
from callgate.sources.hosts.warm import warm
from callgate.sources.lifecycle import Health, Kind, Lifecycle, ended
from callgate.sources.logs import LifeLog
from callgate.sources.read_only_calls import ReadOnlyCalls

CANCEL_S = 2.0
"""How long a host that can cancel may take to end a call."""
_NOT_FOUND = "MethodNotFound"
_HOST = Kind(noun="Host", reason="host", detail="host")


class HostSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`[hosts.NAME]`, with its paths made absolute."""

    name: str
    command: tuple[str, ...]
    cwd: str
    env: dict[str, str] = {}
    """Its whole environment."""
    config: dict[str, Any] = {}
    models: tuple[dict[str, Any], ...] = ()
    """What it is told of the models in the settings, for its tags."""
    start_timeout_s: float = 30.0
    max_in_flight: int | None = None
    """None: one at a time if it has a state, and 16 if it has none."""


class HostCall(NamedTuple):
    """A call that a host runs: what to cancel or kill."""

    link: Link
    id: str
    outcome: asyncio.Future[frames.Returned]


class Host:
    def __init__(
        self,
        settings: HostSettings,
        launcher: Callable[[], Launcher],
        log: LifeLog | None = None,
        check_config: CheckConfig = lambda schema, config: None,
        read_only: Callable[[], Launcher] | None = None,
        optional: OptionalMethods | None = None,
    ) -> None:
        """`read_only` starts a second process, which can change nothing."""
        self.settings = settings
        self.log = log or LifeLog()
        self.started: Started | None = None
        self._launcher = launcher
        self._check_config = check_config
        self._link: Link | None = None
        self._starting: asyncio.Task[Link] | None = None
        self._outdated = False
        """What is being started is not to be used."""
        restart = f"callgate hosts restart {settings.name}"
        self.lifecycle = Lifecycle(_HOST, settings.name, self.log, until=restart)
        self._states = States()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By session; kept by the calls that run or wait."""
        self._slots: Slots | None = None
        self._optional = optional or OptionalMethods()
        self.read_only_calls = ReadOnlyCalls(self.distrust)
        self._asking: list[str] = []
        """Optional methods that are under way."""
        self.reading = self
        self.processes: tuple[Host, ...] = (self,)
        if read_only is not None:
            self.reading = self._twin(read_only)
            self.processes = self.reading.processes = (self, self.reading)

    def _twin(self, launcher: Callable[[], Launcher]) -> Host:
        """Another process of the same host: both share the states of sessions and the lifecycle."""
        twin = Host(self.settings, launcher, self.log, self._check_config, optional=self._optional)
        twin.lifecycle, twin._states, twin._turns = self.lifecycle, self._states, self._turns
        return twin

    # --- what others may know -----------------------------------------------------------------

    @property
    def health(self) -> Health:
        return self.lifecycle.health(
            starting=any(each._starting is not None for each in self.processes),
            running=any(each.is_running for each in self.processes),
        )

    @property
    def is_running(self) -> bool:
        return self._link is not None and self._link.exit is None

    @property
    def problem(self) -> str | None:
        """Why it does not run, if it should."""
        return self.lifecycle.problem

    def supports(self, method: str) -> bool:
        """Whether an optional method is worth asking for."""
        started = self.started
        return started is not None and self._optional.worth_asking(method, started.methods)

    def ask_again(self) -> None:
        """Ask also for the optional methods that it did not answer before."""
        self._optional.clear()

    # --- requests -----------------------------------------------------------------------------

    async def execute(
        self,
        tool: str,
        arguments: dict[str, Any],
        context: ToolContext,
        on_event: OnEvent,
        on_ask: OnAsk,
        on_start: Callable[[HostCall], None],
        check: Callable[[], None] = lambda: None,
        watch: Callable[[Link], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> frames.Returned:
        """Run a tool for the session of a call. `on_start` gets the call. Raises
        `HostError`, and what `check` raises, which sees the process that it will be run in.
        `watch` is around what the process does for it.

        A cancelled caller waits until the work has ended."""
        session = context.session_id
        link = self._link
        if link is None or link.exit is not None:
            link = await self.link()
        turn = self._turn(session)
        if turn is not None:
            await turn.acquire()
        assert self._slots is not None
        slots = self._slots
        try:
            if (ticket := slots.acquire()) is not None:
                await slots.until(ticket)
            try:
                while link is not self._link:  # it died, or had to go, while we waited our turn
                    link = await self.link()
                    if slots is not (of_link := self._slots):
                        if (ticket := of_link.acquire()) is not None:
                            await of_link.until(ticket)
                        slots.release()
                        slots = of_link
                check()
                params = frames.ExecuteTool(
                    tool_name=tool,
                    arguments=arguments,
                    state=self._state(session),
                    context=_call_context(context) if link.reaches_back else msgspec.UNSET,
                    traceparent=msgspec.UNSET
                    if context.trace is None
                    else context.trace.traceparent,
                )
                with watch(link):
                    id, outcome = link.ask(params, on_event, on_ask)
                    on_start(HostCall(link, id, outcome))
                    try:
                        return self._keep_state(session, await outcome)
                    except asyncio.CancelledError:
                        context.cancel_event.set()
                        await self._take_back(link, id)
                        raise
            finally:
                slots.release()
        finally:
            if turn is not None:
                turn.release()

    async def try_ask(
        self, session: str, params: frames.OfHost, timeout_s: float, *, keep_state: bool = True
    ) -> Any:
        """The value of an optional method; None where it has none, or fails."""
        method = frames.METHODS[type(params)]
        link = self._link
        if link is None or link.exit is not None or not self.supports(method):
            return None
        before = self._state(session)
        if hasattr(params, "state"):
            params = msgspec.structs.replace(params, state=before)
        try:
            id, outcome = link.ask(params)
        except Unsendable as error:
            self.log.note(f"{method} was not asked: {error}")
            return None
        self._asking.append(method)
        try:
            async with asyncio.timeout(timeout_s):
                returned = await outcome
            self._optional.answered(method)
            is_newest = self._state(session) is before  # else a call was faster, and knows better
            if keep_state and is_newest:
                self._keep_state(session, returned)
            return returned.result.value
        except asyncio.CancelledError:
            link.abandon(id)
            raise
        except Refused as refused:
            if refused.failure.type == _NOT_FOUND:
                self._optional.missing([method])
            else:
                self.log.note(f"{method} failed: {refused}")
        except TimeoutError:
            link.abandon(id)
            self._optional.ignored(method)
            self.log.note(f"{method} gave nothing: no answer in {timeout_s:g} s")
        except HostError as error:
            link.abandon(id)
            self.log.note(f"{method} gave nothing: {error}")
        finally:
            self._asking.remove(method)
        return None

    async def cancel(self, call: HostCall) -> None:
        """End one call: by asking if it can be asked, else with the whole process."""
        if self.supports("cancel"):
            id, outcome = call.link.ask(frames.Cancel(id=call.id))
            try:
                async with asyncio.timeout(CANCEL_S):
                    await outcome
                    await asyncio.wait({call.outcome})
            except Refused as refused:
                if refused.failure.type == _NOT_FOUND:
                    self._optional.missing(["cancel"])
            except (HostError, TimeoutError):
                call.link.abandon(id)
        if not call.outcome.done():
            self.kill(call)

    async def _take_back(self, link: Link, id: str) -> None:
        """End a call for which nobody waits any more."""
        outcome = link.await_again(id)
        if outcome is None:
            return
        outcome.add_done_callback(lambda over: over.cancelled() or over.exception())
        call = HostCall(link, id, outcome)
        try:
            await self.cancel(call)
            await asyncio.wait({outcome}, timeout=CANCEL_S)
        except asyncio.CancelledError:  # once more: no time to be polite
            self.kill(call)
            raise

    def kill(self, call: HostCall) -> None:
        """End the process of a call, with all that it runs; the next call has another."""
        self._expected_end(call.link)
        call.link.kill()

    def _turn(self, session: str) -> asyncio.Lock | None:
        """What calls of a session wait for one after another, if they share a state."""
        assert self.started is not None
        if self.started.state or session in self._states:
            return self._turns.setdefault(session, asyncio.Lock())
        return None

    def _state(self, session: str) -> dict[str, Any]:
        assert self.started is not None
        return self._states.get(session, self.started.state)

    def _keep_state(self, session: str, returned: frames.Returned) -> frames.Returned:
        state = returned.result.state
        if state is not msgspec.UNSET and state != self._state(session):
            self._states.keep(session, state)
        return returned

    # --- its life -----------------------------------------------------------------------------

    async def link(self) -> Link:
        """The process, started if it does not run. Raises `ToolHostUnavailable`."""
        if self._link is not None and self._link.exit is None:
            return self._link
        delay = self.lifecycle.delay_s()
        if self._starting is None:
            with our_own():  # what is opened to start it, no tool opens
                self._starting = start_task(self._start(delay))
            self._starting.add_done_callback(self._has_started)
        return await self.lifecycle.started(self._starting)

    async def restart(self) -> None:
        """Forget what happened, end the process, and start it anew with the next call."""
        self.lifecycle.restarts()
        await self.close()
        self._optional.clear()

    def distrust(self, problem: str) -> str:
        """Give it up, because it did what it may not; the calls that run finish. Until when."""
        until = self.lifecycle.distrusted(problem)
        self.renew()
        return until

    def renew(self) -> None:
        """Let the next call have a new process; the calls that run finish in the old one."""
        self._optional.clear()
        for each in self.processes:
            each._retire()

    def _retire(self) -> None:
        link, self._link = self._link, None
        self._outdated = self._starting is not None
        if link is not None:
            link.retire()

    async def close(self) -> None:
        await asyncio.gather(*(each._end() for each in self.processes))
        self.log.close()

    async def _end(self) -> None:
        link, self._link = self._link, None
        starting, self._starting = self._starting, None
        if starting is not None:
            starting.cancel()
            await asyncio.wait({starting})
        if link is not None and link.exit is None:
            link.end()
            await link.ended()

    def _has_started(self, task: asyncio.Task[Link]) -> None:
        is_ours = self._starting is task
        outdated = self._outdated or not is_ours
        if is_ours:
            self._starting, self._outdated = None, False
        if task.cancelled() or task.exception() is not None:
            return
        if outdated:  # what it was started from may have changed since
            task.result().retire()
        else:
            self._link = task.result()

    async def _start(self, delay: float) -> Link:
        await asyncio.sleep(delay)
        try:
            link, self.started = await self._begin()
        except OptionalMethodCrash as crash:
            self.log.note(f"{crash}: it is started again, and not asked for that")
            link, self.started = await self._begin()
        stateful = bool(self.started.state)
        slots = self.settings.max_in_flight or (1 if stateful else 16)
        self._slots = Slots(slots)
        return link

    async def _begin(self) -> tuple[Link, Started]:
        settings = self.settings
        link = Link(self.log, lambda exit: self._ended(link, exit))
        self.lifecycle.starts(settings.command)
        try:
            os.makedirs(settings.cwd, exist_ok=True)
            command = Command(
                argv=settings.command,
                cwd=settings.cwd,
                env=dict(settings.env),
                warm=warm(settings.command, settings.cwd, settings.env),
            )
            await link.start(self._launcher(), command)
        except (OSError, ToolError) as error:
            problem = getattr(error, "message", None) or f"it cannot be started: {error}"
            raise self.lifecycle.failed(problem) from error
        try:
            return link, await handshake(
                link, settings.config, self._check_config, self._optional, settings.start_timeout_s
            )
        except OptionalMethodCrash:
            raise
        except AnswerTimeout as timeout:
            raise await self._failed(link, str(timeout)) from None
        except HostExited as exited:
            self.lifecycle.crashed(f"{exited} when it was started")
            raise self.lifecycle.died(exited.exit) from exited
        except (HostError, ToolError) as error:
            raise await self._failed(link, f"it cannot be used: {error}") from error
        except BaseException:
            self._expected_end(link)
            link.kill()
            raise

    async def _failed(self, link: Link, problem: str) -> ToolHostUnavailable:
        self._expected_end(link)
        link.kill()
        await link.ended()
        return self.lifecycle.failed(problem)

    # --- its death ----------------------------------------------------------------------------

    def _expected_end(self, link: Link) -> None:
        """We end it ourselves: that is no crash."""
        if self._link is link:
            self._link = None

    def _ended(self, link: Link, exit: Exit) -> None:
        if self._link is not link:
            return
        self._link = None
        if methods := self._optional_alone(link):
            self._optional.missing(methods)
            self.log.note(
                f"it {ended(exit)} when it was asked for {', '.join(methods)}, which is "
                "optional: it is not asked for that again"
            )
        else:
            self.lifecycle.crashed(f"it {ended(exit)}")

    def _optional_alone(self, link: Link) -> list[str]:
        """The optional methods that were under way, if nothing else was."""
        return list(self._asking) if len(link) == len(self._asking) else []


def _call_context(context: ToolContext) -> frames.CallContext:
    return frames.CallContext(
        session_id=context.session_id,
        turn_id=context.turn_id,
        tool_use_id=context.tool_use_id,
        workspace_path=context.workspace_path,
        scope=dict(context.scope or {}),
    )
