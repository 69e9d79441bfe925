"""One host: its process, its lifecycle (`lifecycle`), and the requests to it.

    a call that may change files      -> the process
    any other call, every preview     -> `reading`, a second process that cannot write

Each process starts on first use; most hosts need only one. A host has a state for each session: the
next request of the session, to either process, sends the state from the last answer. Calls that
share a state run one after another.
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
from callgate.core.tasks import start_task
from callgate.core.tools import ToolContext
from callgate.dispatch.foreign_code import our_own
from callgate.protocol.host_v1 import frames
from callgate.protocol.strict_json import Unsendable
from callgate.sources.host_handshake import (
    AnswerTimeout,
    CheckConfig,
    OptionalMethodCrash,
    OptionalMethods,
    Started,
    States,
    handshake,
    warm,
)
from callgate.sources.host_links import (
    HostError,
    HostExited,
    HostRefused,
    Link,
    OnAsk,
    OnEvent,
    Slots,
)
from callgate.sources.lifecycle import Health, Kind, Lifecycle, ReadOnlyCalls, ended
from callgate.sources.logs import LifeLog

CANCEL_S = 2.0
"""Time limit for a cancellation by the host."""
_NOT_FOUND = "MethodNotFound"
_HOST = Kind(noun="Host", reason="host", detail="host")


class HostSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`[hosts.NAME]`, with absolute paths."""

    name: str
    command: tuple[str, ...]
    cwd: str
    env: dict[str, str] = {}
    """The complete environment."""
    config: dict[str, Any] = {}
    models: tuple[dict[str, Any], ...] = ()
    """Descriptions of the models in the settings, from which the host derives tags."""
    start_timeout_s: float = 30.0
    max_in_flight: int | None = None
    """None: one at a time if the host has a state, else 16."""


class HostCall(NamedTuple):
    """A running call of a host, to cancel or kill."""

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
        """`read_only` starts a second process, which cannot change anything."""
        self.settings = settings
        self.log = log or LifeLog()
        self.started: Started | None = None
        self._launcher = launcher
        self._check_config = check_config
        self._link: Link | None = None
        self._starting: asyncio.Task[Link] | None = None
        self._outdated = False
        """Whether the process that is starting must not be used."""
        restart = f"callgate hosts restart {settings.name}"
        self.lifecycle = Lifecycle(_HOST, settings.name, self.log, until=restart)
        self._states = States()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By session; running and waiting calls keep the entry alive."""
        self._slots: Slots | None = None
        self._optional = optional or OptionalMethods()
        self.read_only_calls = ReadOnlyCalls(self.distrust)
        self._asking: list[str] = []
        """Optional requests in flight."""
        self.reading = self
        self.processes: tuple[Host, ...] = (self,)
        if read_only is not None:
            self.reading = self._twin(read_only)
            self.processes = self.reading.processes = (self, self.reading)

    def _twin(self, launcher: Callable[[], Launcher]) -> Host:
        """Return a second process of the host, which shares session states and lifecycle."""
        twin = Host(self.settings, launcher, self.log, self._check_config, optional=self._optional)
        twin.lifecycle, twin._states, twin._turns = self.lifecycle, self._states, self._turns
        return twin

    # --- state --------------------------------------------------------------------------------

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
        """The reason for which it does not run; None if it is healthy."""
        return self.lifecycle.problem

    def supports(self, method: str) -> bool:
        """Whether to request an optional method."""
        started = self.started
        return started is not None and self._optional.worth_asking(method, started.methods)

    def ask_again(self) -> None:
        """Request all optional methods again, including those without an answer so far."""
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
        """Run a tool for the session of a call. `on_start` receives the running call. `check` may
        refuse the process that was selected. `watch` returns a context manager around the work.
        Raises a `HostError`, and the errors of `check`.

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
                while link is not self._link:  # it ended or was retired during the wait
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
        """Return the value of an optional method; None if it is missing or fails."""
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
            self.log.note(f"{method} was not requested: {error}")
            return None
        self._asking.append(method)
        try:
            async with asyncio.timeout(timeout_s):
                returned = await outcome
            self._optional.answered(method)
            is_newest = self._state(session) is before  # False if a call has updated it since
            if keep_state and is_newest:
                self._keep_state(session, returned)
            return returned.result.value
        except asyncio.CancelledError:
            link.abandon(id)
            raise
        except HostRefused as refused:
            if refused.failure.type == _NOT_FOUND:
                self._optional.missing([method])
            else:
                self.log.note(f"{method} failed: {refused}")
        except TimeoutError:
            link.abandon(id)
            self._optional.ignored(method)
            self.log.note(f"{method} had no result: no answer in {timeout_s:g} s")
        except HostError as error:
            link.abandon(id)
            self.log.note(f"{method} had no result: {error}")
        finally:
            self._asking.remove(method)
        return None

    async def cancel(self, call: HostCall) -> None:
        """End one call: by a request if the host supports it, else by ending the process."""
        if self.supports("cancel"):
            id, outcome = call.link.ask(frames.Cancel(id=call.id))
            try:
                async with asyncio.timeout(CANCEL_S):
                    await outcome
                    await asyncio.wait({call.outcome})
            except HostRefused as refused:
                if refused.failure.type == _NOT_FOUND:
                    self._optional.missing(["cancel"])
            except (HostError, TimeoutError):
                call.link.abandon(id)
        if not call.outcome.done():
            self.kill(call)

    async def _take_back(self, link: Link, id: str) -> None:
        """End a call whose caller was cancelled."""
        outcome = link.await_again(id)
        if outcome is None:
            return
        outcome.add_done_callback(lambda over: over.cancelled() or over.exception())
        call = HostCall(link, id, outcome)
        try:
            await self.cancel(call)
            await asyncio.wait({outcome}, timeout=CANCEL_S)
        except asyncio.CancelledError:  # a second cancellation: no more patience
            self.kill(call)
            raise

    def kill(self, call: HostCall) -> None:
        """End the process of a call, with all its other calls; the next call starts a new one."""
        self._expected_end(call.link)
        call.link.kill()

    def _turn(self, session: str) -> asyncio.Lock | None:
        """Return the lock of a session's calls if they share a state."""
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

    # --- lifecycle ----------------------------------------------------------------------------

    async def link(self) -> Link:
        """Return the process, started if necessary. Raises `ToolHostUnavailable`."""
        if self._link is not None and self._link.exit is None:
            return self._link
        delay = self.lifecycle.delay_s()
        if self._starting is None:
            with our_own():  # opens during the start are callgate's, not the tool's
                self._starting = start_task(self._start(delay))
            self._starting.add_done_callback(self._has_started)
        return await self.lifecycle.started(self._starting)

    async def restart(self) -> None:
        """Forget the crashes and end the process; the next call starts a new one."""
        self.lifecycle.restarts()
        await self.close()
        self._optional.clear()

    def distrust(self, problem: str) -> str:
        """Give the host up after a forbidden action; running calls finish. Returns the action that
        ends the quarantine."""
        until = self.lifecycle.distrusted(problem)
        self.renew()
        return until

    def renew(self) -> None:
        """Let the next call start a new process; running calls finish in the old one."""
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
        if outdated:  # its files may have changed since its start
            task.result().retire()
        else:
            self._link = task.result()

    async def _start(self, delay: float) -> Link:
        await asyncio.sleep(delay)
        try:
            link, self.started = await self._begin()
        except OptionalMethodCrash as crash:
            self.log.note(f"{crash}: it is started again, without that request")
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

    # --- end ----------------------------------------------------------------------------------

    def _expected_end(self, link: Link) -> None:
        """Prepare an intended end, so that it does not count as a crash."""
        if self._link is link:
            self._link = None

    def _ended(self, link: Link, exit: Exit) -> None:
        if self._link is not link:
            return
        self._link = None
        if methods := self._optional_alone(link):
            self._optional.missing(methods)
            self.log.note(
                f"it {ended(exit)} on the request {', '.join(methods)}, which is "
                "optional: it is not requested again"
            )
        else:
            self.lifecycle.crashed(f"it {ended(exit)}")

    def _optional_alone(self, link: Link) -> list[str]:
        """Return the optional requests in flight, if nothing else is."""
        return list(self._asking) if len(link) == len(self._asking) else []


def _call_context(context: ToolContext) -> frames.CallContext:
    return frames.CallContext(
        session_id=context.session_id,
        turn_id=context.turn_id,
        tool_use_id=context.tool_use_id,
        workspace_path=context.workspace_path,
        scope=dict(context.scope or {}),
    )
