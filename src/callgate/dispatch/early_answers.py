"""Answers for callers whose call is being stopped and does not end.

    call -> task of its own -> ends                           -> its result
                            -> is stopped, does not listen    -> answered after `STOP_S`
                            -> is stopped, cleans up          -> answered after `CLEAN_UP_S`

The work goes on in its task, and its record tells of the true end (`running` stops it by force and
abandons it at last). A call that never waits has its result without a turn of the event loop.
"""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any

from callgate.core.calls import ToolCall
from callgate.core.content import TextBlock
from callgate.core.errors import ToolError
from callgate.core.results import ErrorInfo, ToolResult
from callgate.core.task_sets import TaskSet
from callgate.dispatch.running import Running, Stop

if sys.version_info >= (3, 12):
    from asyncio.tasks import _swap_current_task as swap_current_task
else:
    from asyncio.tasks import _current_tasks  # type: ignore[attr-defined]

    def swap_current_task(
        loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]
    ) -> asyncio.Task[Any]:
        """Make a task the current one, as Python 3.12 and later do: the one that was it."""
        caller: asyncio.Task[Any] = _current_tasks[loop]
        _current_tasks[loop] = task
        return caller


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
        self._spare: SpareTask | None = None
        """For the next call: most never wait, and leave it as it was."""
        running.listeners.append(self._stopping)

    async def run(self, call: ToolCall) -> ToolResult:
        """The result of a call, at its end or before that. Whoever is cancelled meanwhile waits
        until the call has ended: nobody else would."""
        loop = asyncio.get_running_loop()
        spare, self._spare = self._spare, None  # the tool may make a call, too
        if spare is None or spare.loop is not loop or spare.task.cancelling():
            spare = SpareTask(loop)
        work = self._run(call, None, spare.task)
        context, caller = copy_context(), swap_current_task(loop, spare.task)
        try:
            waits_for = context.run(work.send, None)
        except StopIteration as finished:
            if self._spare is not None:  # of a call that the tool made
                self._spare.task.cancel()  # type: ignore[unreachable]
            self._spare = spare
            return finished.value  # type: ignore[no-any-return]
        except BaseException:
            spare.task.cancel()
            raise
        finally:
            swap_current_task(loop, caller)
        spare.take_over(work, context, waits_for)
        return await self._result(call, work, spare)

    async def _result(self, call: ToolCall, work: Work, spare: SpareTask) -> ToolResult:
        """Of a call that waits for something."""
        task = spare.task
        waiting: asyncio.Future[ToolResult | None] = spare.loop.create_future()
        self._waiting[call.id] = waiting
        self._tasks.add(task)
        task.add_done_callback(lambda _: self._ended(spare, work, waiting))
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

    async def close(self) -> None:
        """End the task that waits for a call."""
        spare, self._spare = self._spare, None
        if spare is not None and spare.loop is asyncio.get_running_loop():
            spare.task.cancel()
            await asyncio.wait({spare.task})

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

    def _ended(self, spare: SpareTask, work: Work, waiting: asyncio.Future[Any]) -> None:
        spare.context.run(work.close)  # where its task was cancelled before it could take over
        if not waiting.done():
            waiting.set_result(None)
        elif not spare.task.cancelled():
            spare.task.exception()  # its caller was answered

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


class SpareTask:
    """A task that waits for a call: it is the current one in the first step of the call, and has
    the others, if there are any. So a call that never waits costs no task and no turn of the loop.

    The task must be the current one in the first step already: `asyncio.timeout` and task groups
    of the tool belong to it. `asyncio.Task(..., eager_start=True)` of Python 3.12 and later makes
    a task for each call."""

    __slots__ = ("_begun", "_waits_for", "_work", "context", "loop", "task")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._begun: asyncio.Future[None] = loop.create_future()
        self._work: Work | None = None
        self.task: asyncio.Task[ToolResult] = loop.create_task(self._wait())

    def take_over(self, work: Work, context: Context, waits_for: Any) -> None:
        """Go on with work that waits for something, in its own context."""
        self._work, self.context, self._waits_for = work, context, waits_for
        if not self._begun.done():
            self._begun.set_result(None)
        elif self.task.done():  # it was cancelled, and that taken back
            self.task = self.loop.create_task(self._rest(work))

    async def _wait(self) -> ToolResult:
        try:
            await self._begun
        except asyncio.CancelledError:
            if self._work is None:
                raise
            if self._waits_for is not None:
                self._waits_for.cancel()
        assert self._work is not None
        return await self._go_on(self._work)

    async def _rest(self, work: Work) -> ToolResult:
        return await self._go_on(work)

    @types.coroutine
    def _go_on(self, work: Work) -> Generator[Any, None, ToolResult]:
        run, waits_for = self.context.run, self._waits_for
        while True:
            thrown: BaseException | None = None
            try:
                yield waits_for
            except GeneratorExit:
                run(work.close)
                raise
            except BaseException as error:
                thrown = error
            try:
                waits_for = run(work.send, None) if thrown is None else run(work.throw, thrown)
            except StopIteration as finished:
                return finished.value  # type: ignore[no-any-return]
