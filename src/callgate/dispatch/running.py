"""Running calls, their time limits, and the cancellation of a call in every state.

    asked  --stop--> its question is withdrawn           ┐
    queued --stop--> its ticket is torn, it never starts  ├─> one terminal event
    running -stop--> cancel_event, tool.cancel(), then    ┘
                     task cancellation, then abandoned

A tool that reacts has until the abandon limit to clean up and return a partial result: its
`cancel()` returned True, or it read `cancel_event` after the stop. Any other tool gets a
`CancelledError` after a short grace period. A tool that ignores the error is abandoned: the caller
gets an answer, and the work keeps its slot until it ends or `slot_s` is over.

One timer of the event loop serves all limits, because most calls end long before theirs.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterator
from enum import StrEnum
from time import perf_counter
from typing import Any, Protocol

import msgspec

from callgate.core.calls import ToolCall
from callgate.core.errors import (
    ToolCancelled,
    ToolError,
    ToolProtocolError,
    ToolShuttingDown,
    ToolTimeout,
)
from callgate.core.tasks import TaskSet
from callgate.core.tools import Tool, ToolContext
from callgate.dispatch.foreign_code import log_failure


class Limited(Protocol):
    @property
    def ends_at(self) -> float:
        """Deadline by `perf_counter`; constant."""

    def expire(self) -> None: ...


class Deadlines:
    def __init__(self) -> None:
        self._noted: dict[Limited, None] = {}
        self._rings_at = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def note(self, limited: Limited) -> None:
        """Call `expire` at the deadline, unless the entry is struck before."""
        self._noted[limited] = None
        if limited.ends_at < self._rings_at:
            self._set(limited.ends_at)

    def strike(self, limited: Limited) -> None:
        self._noted.pop(limited, None)

    def close(self) -> None:
        """Forget the limits."""
        self._noted.clear()
        self._rings_at = math.inf
        if self._timer is not None:
            self._timer.cancel()

    def _set(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = at
        self._timer = asyncio.get_running_loop().call_later(at - perf_counter(), self._ring)

    def _ring(self) -> None:
        self._rings_at, self._timer = math.inf, None
        now = perf_counter()
        for limited in [each for each in self._noted if each.ends_at <= now]:
            self.strike(limited)
            limited.expire()
        if self._noted and self._timer is None:
            self._set(min(each.ends_at for each in self._noted))


_log = logging.getLogger("callgate.dispatch")


MOST_USED_IDS = 10_000
"""Per session; older ids are forgotten."""


class Stop(StrEnum):
    CANCEL = "cancel"
    TIMEOUT = "timeout"
    SHUTDOWN = "shutdown"
    CALLER_GONE = "caller_gone"


Slot = tuple[str, str, int | None]
"""A session, a tool, and the maximum number of concurrent calls of that tool."""
StopListener = Callable[[str, ToolError], None]
"""Called with the id of a call whose work is being stopped, and its caller's error."""


class StopLimits(msgspec.Struct, frozen=True, kw_only=True):
    grace_s: float = 0.5
    """Time for a tool to read `cancel_event`; after it, the tool's task is cancelled."""
    abandon_s: float = 30.0
    """Time until the caller of a stopped call gets an answer although the work continues."""
    slot_s: float = 300.0
    """Time for which abandoned work keeps its slot."""


class Reserved(Protocol):
    """Reservation of a call in its budgets (`permission.budgets`)."""

    async def settle(self, subject: Any, decision: Any) -> None:
        """Count the call again after an approval, perhaps with other arguments."""
        ...

    def release(self) -> None:
        """Return the amounts of a call that never began."""
        ...


class RunningCall(msgspec.Struct, eq=False):
    """One running call. The dispatcher's task drives it; other tasks can only stop it."""

    call: ToolCall
    task: asyncio.Task[Any]
    cancelling: int
    """Cancellations of the caller's task when the call entered."""
    tool: Tool | None = None
    """Set while it executes."""
    drain: asyncio.Future[None] | None = None
    """Done when a slow caller has read enough output, or the call is stopped."""
    context: ToolContext | None = None
    limit_s: float | None = None
    """Time limit; None before the tool starts."""
    began: float = math.inf
    """Start of its work, by `perf_counter`."""
    waiting_for: asyncio.Future[Any] | None = None
    """The answer or slot that the call waits for."""
    stop: Stop | None = None
    took_cancel: bool | None = None
    """Whether the tool's `cancel()` promised that its work will end. None: no answer yet."""
    abandoned: bool = False
    cancels_sent: int = 0
    cancels_delivered: int = 0
    ended: asyncio.Future[None] | None = None
    """Created by the first task that waits for the end."""
    slot: Slot | None = None
    """Its slot in the session's lane; abandoned work keeps it."""
    answer_scope: str | None = None
    """The scope of the answer that just approved it; None: no approver answered."""
    reservation: Reserved | None = None
    """Its reservation in budgets; released if the call never begins."""

    @property
    def elapsed_ms(self) -> float:
        """Time since its work began."""
        return max(0.0, round((perf_counter() - self.began) * 1e3, 3))

    @property
    def has_begun(self) -> bool:
        return self.began != math.inf

    @property
    def heeds_stop(self) -> bool:
        """Whether the tool reacts to the stop, and may clean up."""
        noticed = self.context is not None and self.context.noticed_cancel
        return self.took_cancel is not False or noticed

    async def until(self, future: asyncio.Future[Any]) -> Any:
        """Wait for a future before the start. Raises the stop's error if the call is stopped."""
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
        self.raise_if_stopped()  # a stop may come between the result and our turn
        return result

    def raise_if_stopped(self) -> None:
        if self.stop is not None:
            raise self.stop_error()

    def stop_error(self, *, stopped: bool | None = None) -> ToolError:
        """Return the error for the reason of the stop. `stopped`: whether the work has ended;
        None: unknown."""
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
    """The table of running calls, and the tasks that stop them."""

    def __init__(self, limits: StopLimits) -> None:
        self.limits = limits
        self.closing = False
        self.draining = False
        """Whether only calls of running turns may enter; none may when it is closing."""
        self._calls: dict[str, RunningCall] = {}
        self._by_session: defaultdict[str, dict[str, RunningCall]] = defaultdict(dict)
        """By session and shown id. The ids of a session's running calls are unique."""
        self._used: dict[str, dict[str, None]] = {}
        """By session: the newest tool use ids of its agent. Each id is valid for one call."""
        self._tasks = TaskSet(_log, "a call could not be stopped")
        self._strays = TaskSet(_log, "abandoned work failed")
        self.listeners: list[StopListener] = []
        self._deadlines: Deadlines | None = None

    def enter(self, call: ToolCall, task: asyncio.Task[Any] | None = None) -> RunningCall:
        """Add a call to the table. The caller must `remove` it. `task` runs only this call; None:
        the current task runs it, and may have been cancelled before."""
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
                f"Call id {shown_id!r} is already used by a running call of this session.",
                reason="duplicate_id",
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
            self._deadlines = Deadlines()
        return self._deadlines

    def find(self, call_id: str) -> RunningCall | None:
        return self._calls.get(call_id)

    def of_session(self, session_id: str) -> list[RunningCall]:
        return list(self._by_session.get(session_id, {}).values())

    def __len__(self) -> int:
        return len(self._calls)

    def start_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run work next to the calls; `close` waits for it."""
        return self._tasks.start(work)

    def let_go(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run abandoned work to its end; `close` cancels it."""
        self._strays.start(work)

    async def close(self) -> None:
        """Refuse new calls, stop the running ones, and wait until each is answered."""
        self.closing = self.draining = True
        await self.stop_all(list(self._calls.values()), Stop.SHUTDOWN)
        await self._tasks.wait()
        self._strays.cancel()
        if self._deadlines is not None:
            self._deadlines.close()

    async def stop_all(self, calls: list[RunningCall], why: Stop) -> None:
        """Stop several calls concurrently, so that their grace periods overlap."""
        await asyncio.gather(*(self.stop(each, why) for each in calls))

    async def stop(self, running: RunningCall, why: Stop) -> None:
        """Stop one call, and return after it has ended or was abandoned. Idempotent."""
        first = running.stop is None
        if first or why is Stop.TIMEOUT:  # a timeout takes precedence
            running.stop = why
        if first:
            if running.drain is not None and not running.drain.done():
                running.drain.set_result(None)
            if running.waiting_for is not None:
                running.waiting_for.cancel()
            elif running.tool is not None:
                # A separate task, because the task that requested the stop may be cancelled.
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
        if running.tool is not None:  # after the work the task belongs to the caller
            running.cancels_sent += 1
            running.task.cancel()

    async def _ended(self, running: RunningCall, seconds: float) -> bool:
        if running.call.id not in self._calls:
            return True
        if running.ended is None:
            running.ended = asyncio.get_running_loop().create_future()
        await asyncio.wait({running.ended}, timeout=max(seconds, 0.0))
        return running.ended.done()
