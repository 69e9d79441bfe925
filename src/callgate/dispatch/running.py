"""The calls that have not ended yet, and how each is stopped wherever it is.

    asked  --stop--> its question is withdrawn           ┐
    queued --stop--> its ticket is torn, it never starts  ├─> one terminal event
    running -stop--> cancel_event, tool.cancel(), then    ┘
                     task cancellation, then abandoned

A tool that reacts has until the abandon limit to clean up and return what it has: its `cancel()`
returned True, or it looked at `cancel_event` after that was set. Any other gets a `CancelledError`
after a short grace. What ignores even that is abandoned: the caller gets an answer, the work
keeps its slot until it has ended.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from enum import StrEnum
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from callgate.core.calls import ToolCall
from callgate.core.errors import (
    ToolCancelled,
    ToolError,
    ToolProtocolError,
    ToolShuttingDown,
    ToolTimeout,
)
from callgate.core.task_sets import TaskSet
from callgate.core.tools import Tool, ToolContext
from callgate.dispatch.failures import log_failure

if TYPE_CHECKING:
    from callgate.dispatch.deadlines import Deadlines

_log = logging.getLogger("callgate.dispatch")


MOST_USED_IDS = 10_000
"""Of one session; older ids are forgotten."""


class Stop(StrEnum):
    CANCEL = "cancel"
    TIMEOUT = "timeout"
    SHUTDOWN = "shutdown"
    CALLER_GONE = "caller_gone"


Slot = tuple[str, str, int | None]
"""A session, a tool and how many calls of that may run at once."""
StopListener = Callable[[str, ToolError], None]
"""Told the id of a call whose work is being stopped, and what its caller will be told."""


class StopLimits(msgspec.Struct, frozen=True, kw_only=True):
    grace_s: float = 0.5
    """For a tool to look at `cancel_event`; one that has not is then cancelled by force."""
    abandon_s: float = 30.0
    """Until a call is answered although its work goes on."""
    slot_s: float = 300.0
    """How long abandoned work may keep its slot."""


class Reserved(Protocol):
    """What a call has taken of its budgets (`permission.budgets`)."""

    async def settle(self, subject: Any, decision: Any) -> None:
        """A person allowed it, perhaps with other arguments."""
        ...

    def release(self) -> None:
        """It never began."""
        ...


class RunningCall(msgspec.Struct, eq=False):
    """One call under way. The dispatcher's own task drives it; others only stop it."""

    call: ToolCall
    task: asyncio.Task[Any]
    cancelling: int
    """How often the caller's task had been cancelled when the call came in."""
    tool: Tool | None = None
    """Set while it executes."""
    drain: asyncio.Future[None] | None = None
    """Until when its output waits for a caller that does not read."""
    context: ToolContext | None = None
    limit_s: float | None = None
    """How long it may run, once it does."""
    began: float = math.inf
    """When its work began, by `perf_counter`."""
    waiting_for: asyncio.Future[Any] | None = None
    """A person's answer or a slot, while it waits for one."""
    stop: Stop | None = None
    took_cancel: bool | None = None
    """Whether the tool's `cancel()` said that its work will end. None: no answer yet."""
    abandoned: bool = False
    cancels_sent: int = 0
    cancels_delivered: int = 0
    ended: asyncio.Future[None] | None = None
    """Made by the first who waits for the end."""
    slot: Slot | None = None
    """What it holds of its session's lane; abandoned work takes it along."""
    reservation: Reserved | None = None
    """Where it is counted in budgets; given back if it never begins."""

    @property
    def elapsed_ms(self) -> float:
        """How long its work has taken so far."""
        return max(0.0, round((perf_counter() - self.began) * 1e3, 3))

    @property
    def has_begun(self) -> bool:
        """Whether its tool was started."""
        return self.began != math.inf

    @property
    def heeds_stop(self) -> bool:
        """The tool reacts to being stopped, and may clean up."""
        noticed = self.context is not None and self.context.noticed_cancel
        return self.took_cancel is not False or noticed

    async def until(self, future: asyncio.Future[Any]) -> Any:
        """Wait for something before the start; a stop meanwhile raises its error."""
        self.raise_if_stopped()
        self.waiting_for = future
        try:
            result = await future
        except asyncio.CancelledError:
            if self.stop is None or self.task.cancelling() > self.cancelling:
                raise
            raise self.stop_error() from None
        finally:
            self.waiting_for = None
        self.raise_if_stopped()  # it may have come between the result and our turn
        return result

    def raise_if_stopped(self) -> None:
        if self.stop is not None:
            raise self.stop_error()

    def stop_error(self, *, stopped: bool | None = None) -> ToolError:
        """The error that says why the call was stopped, and if it is known, whether its work
        has ended."""
        unfinished = " Its work has not ended and may still be going on."
        details = None if stopped is None else {"stopped": stopped}
        if self.stop is Stop.TIMEOUT:
            message = f"Tool {self.call.tool!r} took longer than {self.limit_s:g} s."
            error: ToolError = ToolTimeout(message, details=details)
        elif self.stop is Stop.SHUTDOWN:
            error = ToolShuttingDown(details=details)
        else:
            reason = None if self.stop is Stop.CANCEL else self.stop
            error = ToolCancelled(reason=reason, details=details)
        if stopped is False:
            error.message += unfinished
        return error


class Running:
    """The table of calls under way, and the tasks that stop them."""

    def __init__(self, limits: StopLimits) -> None:
        self.limits = limits
        self.closing = False
        self.draining = False
        """Whether only the calls of turns under way are taken; none are when it is closing."""
        self._calls: dict[str, RunningCall] = {}
        self._by_session: defaultdict[str, dict[str, RunningCall]] = defaultdict(dict)
        """Session to shown id; the ids of a session in flight are unique."""
        self._used: dict[str, dict[str, None]] = {}
        """Session to the newest ids that its agent gave to tool uses; each is good for one call."""
        self._tasks = TaskSet(_log, "a call could not be stopped")
        self._strays = TaskSet(_log, "abandoned work failed")
        self.listeners: list[StopListener] = []
        self._deadlines: Deadlines | None = None

    def enter(self, call: ToolCall, task: asyncio.Task[Any] | None = None) -> RunningCall:
        """Put a call into the table; whoever enters one must leave. `task` runs it, and nothing
        else; None: the current one does, which may have been cancelled before."""
        cancelling = 0
        if task is None:
            task = asyncio.current_task()
            assert task is not None
            cancelling = task.cancelling()
        if self.draining:
            if self.closing:
                raise ToolShuttingDown()
            if call.turn_id is None:
                raise ToolShuttingDown.draining()
        session_id, shown_id = call.session.id, call.tool_use_id or call.id
        session = self._by_session[session_id]
        if shown_id in session or call.id in self._calls:
            raise ToolProtocolError(
                f"Id {shown_id!r} is already in flight in this session.", reason="duplicate_id"
            )
        if call.tool_use_id is not None:
            self._use(session_id, call.tool_use_id)
        running = RunningCall(call, task, cancelling)
        self._calls[call.id] = session[shown_id] = running
        return running

    def _use(self, session_id: str, tool_use_id: str) -> None:
        used = self._used.setdefault(session_id, {})
        if tool_use_id in used:
            raise ToolProtocolError(
                f"Id {tool_use_id!r} was used before in this session.", reason="duplicate_id"
            )
        used[tool_use_id] = None
        if len(used) > MOST_USED_IDS:
            del used[next(iter(used))]

    def forget(self, session_id: str) -> None:
        """Forget the ids that a closed session has used."""
        self._used.pop(session_id, None)

    def remove(self, running: RunningCall) -> None:
        call = running.call
        session = self._by_session[call.session.id]
        del self._calls[call.id]
        del session[call.tool_use_id or call.id]
        if not session:
            del self._by_session[call.session.id]
        if running.reservation is not None and not running.has_begun:
            running.reservation.release()
        if running.ended is not None and not running.ended.done():
            running.ended.set_result(None)

    def __iter__(self) -> Iterator[RunningCall]:
        return iter(tuple(self._calls.values()))

    @property
    def deadlines(self) -> Deadlines:
        """The time limits of calls that wait for something."""
        if self._deadlines is None:
            from callgate.dispatch.deadlines import (  # lazy: many calls never wait  # noqa: PLC0415
                Deadlines,
            )

            self._deadlines = Deadlines()
        return self._deadlines

    def find(self, call_id: str) -> RunningCall | None:
        return self._calls.get(call_id)

    def of_session(self, session_id: str) -> list[RunningCall]:
        return list(self._by_session.get(session_id, {}).values())

    def __len__(self) -> int:
        return len(self._calls)

    def start_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run something beside the calls; `close` waits for it."""
        return self._tasks.start(work)

    def let_go(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run abandoned work to its end; nobody waits for it."""
        self._strays.start(work)

    async def close(self) -> None:
        """Refuse new calls, stop the ones under way, wait until each has been answered."""
        self.closing = self.draining = True
        await self.stop_all(list(self._calls.values()), Stop.SHUTDOWN)
        await self._tasks.wait()
        self._strays.cancel()
        if self._deadlines is not None:
            self._deadlines.close()

    async def stop_all(self, calls: list[RunningCall], why: Stop) -> None:
        """Stop several at once, so that two stubborn ones need no longer than one."""
        await asyncio.gather(*(self.stop(each, why) for each in calls))

    async def stop(self, running: RunningCall, why: Stop) -> None:
        """Stop one call and return when it has ended or was abandoned. Idempotent."""
        first = running.stop is None
        if first or why is Stop.TIMEOUT:  # where both happen, the timeout is reported
            running.stop = why
        if first:
            if running.drain is not None and not running.drain.done():
                running.drain.set_result(None)
            if running.waiting_for is not None:
                running.waiting_for.cancel()
            elif running.tool is not None:
                # A task of its own: whoever asked for the stop may be cancelled meanwhile.
                self.start_task(self._stop_tool(running, running.tool))
                for listener in self.listeners:
                    listener(running.call.id, running.stop_error(stopped=False))
        await self._ended(running, 2 * self.limits.abandon_s)

    async def _stop_tool(self, running: RunningCall, tool: Tool) -> None:
        deadline = asyncio.get_running_loop().time() + self.limits.abandon_s
        context = running.context
        if context is not None:
            context.cancel_event.set()
        running.took_cancel = await self._ask_to_cancel(tool)
        if not running.took_cancel:
            await self._ended(running, self.limits.grace_s)
            if not running.heeds_stop:
                self._cancel_task(running)
        if await self._ended(running, deadline - asyncio.get_running_loop().time()):
            return
        _log.warning(
            "tool %s ignored cancellation for %g s and is abandoned (call %s)",
            running.call.tool,
            self.limits.abandon_s,
            running.call.id,
        )
        running.abandoned = True
        self._cancel_task(running)

    async def _ask_to_cancel(self, tool: Tool) -> bool:
        try:
            async with asyncio.timeout(self.limits.abandon_s):
                return await tool.cancel()
        except TimeoutError:
            return True
        except (Exception, asyncio.CancelledError) as error:  # a tool's own code
            log_failure(_log, error, "cancel() of tool %s failed", tool.definition.name)
            return False

    def _cancel_task(self, running: RunningCall) -> None:
        if running.tool is not None:  # not after the work has ended: the task is the caller's
            running.cancels_sent += 1
            running.task.cancel()

    async def _ended(self, running: RunningCall, seconds: float) -> bool:
        if running.call.id not in self._calls:
            return True
        if running.ended is None:
            running.ended = asyncio.get_running_loop().create_future()
        await asyncio.wait({running.ended}, timeout=max(seconds, 0.0))
        return running.ended.done()
