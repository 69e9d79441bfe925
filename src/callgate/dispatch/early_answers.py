"""Answers for callers whose call is being stopped and does not end.

    call -> task of its own -> ends                           -> its result
                            -> is stopped, does not listen    -> answered after `STOP_S`
                            -> is stopped, cleans up          -> answered after `CLEAN_UP_S`

The work goes on in its task, and its record tells of the true end (`running` stops it by force and
abandons it at last). A call that never waits has its result without a turn of the event loop.
"""

from __future__ import annotations

import asyncio
import types
from asyncio.tasks import _enter_task, _leave_task
from collections.abc import Callable, Coroutine, Generator
from contextvars import copy_context
from typing import Any

from callgate.core.calls import ToolCall
from callgate.core.content import TextBlock
from callgate.core.errors import ToolError
from callgate.core.results import ErrorInfo, ToolResult
from callgate.core.task_sets import TaskSet
from callgate.dispatch.running import Running, Stop

STOP_S = 0.25
"""When a stopped call whose tool does not listen is answered."""
CLEAN_UP_S = 2.0
"""When any other is: until then its caller gets what the tool had to show."""

Run = Callable[[ToolCall], Coroutine[Any, Any, ToolResult]]


class EarlyAnswers:
    """For all callers of one dispatcher."""

    def __init__(self, run: Run, running: Running) -> None:
        self._run = run
        self._running = running
        self._waiting: dict[str, asyncio.Future[ToolResult | None]] = {}
        """By call id: what its caller waits for. None: its own task has the result."""
        self._tasks = TaskSet()
        running.listeners.append(self._stopping)

    async def run(self, call: ToolCall) -> ToolResult:
        """The result of a call, at its end or before that. Whoever is cancelled meanwhile waits
        until the call has ended: nobody else would."""
        work = self._run(call)
        task = start_eagerly(work)
        if isinstance(task, _Finished):
            return task.result
        waiting: asyncio.Future[ToolResult | None] = asyncio.get_running_loop().create_future()
        self._waiting[call.id] = waiting
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._ended(task, work, waiting))
        try:
            early = await waiting
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        finally:
            if self._waiting.get(call.id) is waiting:
                del self._waiting[call.id]
        return await task if early is None else early

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

    def _ended(
        self,
        task: asyncio.Task[ToolResult],
        work: Coroutine[Any, Any, ToolResult],
        waiting: asyncio.Future[Any],
    ) -> None:
        work.close()  # where its task was cancelled before it could take over
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
    info = ErrorInfo.of(error, correlation_id=call_id)
    return ToolResult(
        call_id=call_id,
        tool="" if found is None else found.call.tool,
        ok=False,
        content=[TextBlock(info.message)],
        error=info,
        duration_ms=0.0 if found is None else found.elapsed_ms,
    )


class _Finished:
    __slots__ = ("result",)

    def __init__(self, result: ToolResult) -> None:
        self.result = result


def start_eagerly(
    work: Coroutine[Any, Any, ToolResult],
) -> asyncio.Task[ToolResult] | _Finished:
    """Run the first step of a coroutine now, inside of the task that has the others.

    A task costs a turn of the event loop, which most calls do not need. The task must be the
    current one in the first step already: `asyncio.timeout` and task groups of the tool belong to
    it. Python has this from 3.12 on (`asyncio.Task(..., eager_start=True)`); until that is the
    oldest that we support, only asyncio's private `_enter_task` and `_leave_task` can do it."""
    loop, caller = asyncio.get_running_loop(), asyncio.current_task()
    assert caller is not None
    first: list[Any] = []
    context = copy_context()
    task = loop.create_task(_rest(work, first), context=context)
    _leave_task(loop, caller)
    _enter_task(loop, task)
    try:
        first.append(context.run(work.send, None))
    except StopIteration as finished:
        return _Finished(finished.value)
    finally:
        _leave_task(loop, task)
        _enter_task(loop, caller)
    return task


async def _rest(work: Coroutine[Any, Any, ToolResult], first: list[Any]) -> ToolResult:
    """What follows the first step; nothing, where that was the only one."""
    return await _go_on(work, first[0]) if first else None  # type: ignore[return-value]


@types.coroutine
def _go_on(work: Coroutine[Any, Any, ToolResult], waiting: Any) -> Generator[Any, None, ToolResult]:
    while True:
        thrown: BaseException | None = None
        try:
            yield waiting
        except GeneratorExit:
            work.close()
            raise
        except BaseException as error:
            thrown = error
        try:
            waiting = work.send(None) if thrown is None else work.throw(thrown)
        except StopIteration as finished:
            return finished.value  # type: ignore[no-any-return]
