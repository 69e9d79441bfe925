"""Early answers to callers whose call is being stopped but does not end.

    call -> separate task -> ends                           -> its result
                          -> is stopped, does not listen    -> answered after `STOP_S`
                          -> is stopped, cleans up          -> answered after `CLEAN_UP_S`

The work continues in its task, and its record has the true end. `running` cancels the task by force
and finally abandons it. A call that never waits returns its result without an event loop iteration.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from callgate.core.calls import ErrorInfo, ToolCall, ToolResult
from callgate.core.content import TextBlock
from callgate.core.errors import ToolError
from callgate.core.tasks import EagerTasks, Finished, TaskSet
from callgate.dispatch.running import Running, Stop

STOP_S = 0.25
"""Time until a stopped call is answered whose tool does not react."""
CLEAN_UP_S = 2.0
"""Time until any other stopped call is answered; it can still return a partial result."""

Work = Coroutine[Any, Any, ToolResult]
Run = Callable[[ToolCall, None, asyncio.Task[Any]], Work]


class EarlyAnswers:
    """The early answers of one dispatcher."""

    def __init__(self, run: Run, running: Running) -> None:
        self._run = run
        self._running = running
        self._waiting: dict[str, asyncio.Future[ToolResult | None]] = {}
        """By call id: the future that its caller awaits. None: its task has the result."""
        self._tasks = TaskSet()
        self._eager = EagerTasks()
        running.listeners.append(self._stopping)

    async def run(self, call: ToolCall) -> ToolResult:
        """Return the result of a call, or its early answer. A cancelled caller waits until the
        call has ended."""
        begun = self._eager.start(self._run, call, None)
        return begun.result if type(begun) is Finished else await self._result(call, begun)

    def begin(self, call: ToolCall) -> ToolResult | Work:
        """Run the first step of a call. Returns its result, or an awaitable of the result."""
        begun = self._eager.start(self._run, call, None)
        return begun.result if isinstance(begun, Finished) else self._result(call, begun)

    def _result(self, call: ToolCall, task: asyncio.Task[ToolResult]) -> Work:
        """Return an awaitable of the result. The call may be stopped from now on."""
        waiting: asyncio.Future[ToolResult | None] = asyncio.get_running_loop().create_future()
        self._waiting[call.id] = waiting
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, waiting))
        return self._await(call.id, task, waiting)

    async def _await(
        self,
        call_id: str,
        task: asyncio.Task[ToolResult],
        waiting: asyncio.Future[ToolResult | None],
    ) -> ToolResult:
        try:
            early = await waiting
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        finally:
            if self._waiting.get(call_id) is waiting:
                del self._waiting[call_id]
        return await task if early is None else early

    async def close(self) -> None:
        """End the spare task that waits for the next call."""
        await self._eager.close()

    async def cancel(self, call_id: str) -> bool:
        """Stop a call, and return after its caller is answered; False if it is not running."""
        running = self._running.find(call_id)
        if running is None:
            return False
        stopping = self._running.start_task(self._running.stop(running, Stop.CANCEL))
        _, unfinished = await asyncio.wait({stopping}, timeout=STOP_S)
        if unfinished and running.tool is not None and running.heeds_stop:
            _, unfinished = await asyncio.wait(unfinished, timeout=CLEAN_UP_S - STOP_S)
        if unfinished and running.tool is None:  # only its record is pending
            await asyncio.wait(unfinished)
        return True

    def _ended(self, waiting: asyncio.Future[Any], task: asyncio.Task[ToolResult]) -> None:
        if not waiting.done():
            waiting.set_result(None)
        elif not task.cancelled():
            task.exception()  # mark as retrieved: its caller was answered

    def _stopping(self, call_id: str, error: ToolError) -> None:
        waiting = self._waiting.get(call_id)
        if waiting is None:
            return
        loop = asyncio.get_running_loop()

        def look() -> None:
            running = self._running.find(call_id)
            if running is not None and running.heeds_stop:
                loop.call_later(CLEAN_UP_S - STOP_S, give_up)
            else:
                give_up()

        def give_up() -> None:
            running = self._running.find(call_id)
            works = running is not None and running.tool is not None  # else its end is near
            if works and not waiting.done():
                waiting.set_result(early_result(self._running, call_id, error))

        loop.call_later(STOP_S, look)


def early_result(running: Running, call_id: str, error: ToolError) -> ToolResult:
    """Return a result for a call that has not ended: why it is stopped, and its duration so far."""
    found = running.find(call_id)
    tool = "" if found is None else found.call.tool
    info = ErrorInfo.of(error, tool, correlation_id=call_id)
    return ToolResult(
        call_id=call_id,
        tool=tool,
        ok=False,
        content=[TextBlock(info.message)],
        error=info,
        duration_ms=0.0 if found is None else found.elapsed_ms,
    )
