"""Answers for callers whose call is being stopped and does not end.

    call -> task of its own -> ends                           -> its result
                            -> is stopped, does not listen    -> answered after `STOP_S`
                            -> is stopped, cleans up          -> answered after `CLEAN_UP_S`

The work goes on in its task, and its record tells of the true end (`running` stops it by force and
abandons it at last). A call that never waits has its result without a turn of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from callgate.core.calls import ToolCall
from callgate.core.content import TextBlock
from callgate.core.errors import ToolError
from callgate.core.results import ErrorInfo, ToolResult
from callgate.core.task_sets import EagerTasks, Finished, TaskSet
from callgate.dispatch.running import Running, Stop

STOP_S = 0.25
"""When a stopped call whose tool does not listen is answered."""
CLEAN_UP_S = 2.0
"""When any other is: until then its caller gets what the tool had to show."""

Work = Coroutine[Any, Any, ToolResult]
Run = Callable[[ToolCall, None, asyncio.Task[Any]], Work]


class EarlyAnswers:
    """For all callers of one dispatcher."""

    def __init__(self, run: Run, running: Running) -> None:
        self._run = run
        self._running = running
        self._waiting: dict[str, asyncio.Future[ToolResult | None]] = {}
        """By call id: what its caller waits for. None: its own task has the result."""
        self._tasks = TaskSet()
        self._eager = EagerTasks()
        running.listeners.append(self._stopping)

    async def run(self, call: ToolCall) -> ToolResult:
        """The result of a call, at its end or before that. Whoever is cancelled meanwhile waits
        until the call has ended: nobody else would."""
        begun = self._eager.start(self._run, call, None)
        return begun.result if isinstance(begun, Finished) else await self._result(call, begun)

    def begin(self, call: ToolCall) -> ToolResult | Work:
        """Run the first step of a call: its result, or what to await for that."""
        begun = self._eager.start(self._run, call, None)
        return begun.result if isinstance(begun, Finished) else self._result(call, begun)

    def _result(self, call: ToolCall, task: asyncio.Task[ToolResult]) -> Work:
        """Of a call that waits for something. It may be stopped from now on."""
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
        """End the task that waits for a call."""
        await self._eager.close()

    async def cancel(self, call_id: str) -> bool:
        """Stop a call, and return when its caller is answered; False if it is not under way."""
        running = self._running.find(call_id)
        if running is None:
            return False
        stopping = self._running.start_task(self._running.stop(running, Stop.CANCEL))
        _, rest = await asyncio.wait({stopping}, timeout=STOP_S)
        if rest and running.tool is not None and running.heeds_stop:
            _, rest = await asyncio.wait(rest, timeout=CLEAN_UP_S - STOP_S)
        if rest and running.tool is None:  # only its record is not written yet
            await asyncio.wait(rest)
        return True

    def _ended(self, waiting: asyncio.Future[Any], task: asyncio.Task[ToolResult]) -> None:
        if not waiting.done():
            waiting.set_result(None)
        elif not task.cancelled():
            task.exception()  # its caller was answered

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
    """What is known of a call that has not ended: why it is stopped, and its duration so far."""
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
