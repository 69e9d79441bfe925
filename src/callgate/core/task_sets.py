"""Tasks with an owner: the one way in which we run something beside its caller.

    TaskSet      many tasks of one owner, who ends them all: it holds each until it has ended
    start_task   one task, which its starter keeps, awaits and cancels itself
    EagerTasks   work that begins at once, and has a task only where it waits for something
    TaskGroup    asyncio's own, where the block that starts tasks waits for them

The event loop holds its tasks by weak references only, and an exception that nobody awaits is
reported when its task is collected, or never: a task that nobody owns may vanish.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import types
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any, Generic, TypeVar

import msgspec

if sys.version_info >= (3, 12):
    from asyncio.tasks import _swap_current_task
else:
    from asyncio.tasks import _current_tasks  # type: ignore[attr-defined]

    def _swap_current_task(
        loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any] | None
    ) -> asyncio.Task[Any] | None:
        """Make a task the current one, as Python 3.12 and later do: the one that was it."""
        caller: asyncio.Task[Any] | None = _current_tasks[loop] if loop in _current_tasks else None  # noqa: SIM401  # no function call
        if task is None:
            del _current_tasks[loop]
        else:
            _current_tasks[loop] = task
        return caller


T = TypeVar("T")


def start_task(work: Coroutine[Any, Any, T], *, context: Context | None = None) -> asyncio.Task[T]:
    """Run work beside its caller, who keeps the task: nobody else does."""
    return asyncio.get_running_loop().create_task(work, context=context)


class TaskSet:
    """The tasks of one owner."""

    __slots__ = ("_log", "_message", "_tasks")

    def __init__(self, log: logging.Logger | None = None, message: str = "a task failed") -> None:
        """With a log, what a task raises is logged under this message; without one it is for
        whoever awaits the task."""
        self._log = log
        self._message = message
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        """How many have not ended."""
        return len(self._tasks)

    def start(
        self, work: Coroutine[Any, Any, T], *, context: Context | None = None
    ) -> asyncio.Task[T]:
        """Run work beside its caller."""
        task = start_task(work, context=context)
        self.add(task)
        return task

    def add(self, task: asyncio.Task[Any]) -> None:
        """Own a task that was made elsewhere."""
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """Cancel every task but the one that asks for it. Nobody waits."""
        for task in self._others():
            task.cancel()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Until all that run now have ended, but the one that waits; not longer than this."""
        if others := self._others():
            await asyncio.wait(others, timeout=timeout_s)

    def _others(self) -> set[asyncio.Task[Any]]:
        return self._tasks - {asyncio.current_task()}

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if self._log is None or task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._log.error(self._message, exc_info=error)


class Finished(msgspec.Struct, Generic[T]):
    """Work that ended in its first step."""

    result: T


class EagerTasks:
    """Runs the first step of a coroutine now, inside of the task that has the others.

    A task costs a turn of the event loop, and more than a short call does, which mostly needs
    none. But it must be the current one in the first step already: `asyncio.timeout` and task
    groups belong to it. So a task is there beforehand, and one that was not needed waits for
    other work. `asyncio.Task(..., eager_start=True)` of Python 3.12 and later makes one each time.
    """

    __slots__ = ("_closed", "_spare")

    def __init__(self) -> None:
        self._spare: _SpareTask | None = None
        self._closed = False

    def start(
        self, run: Callable[..., Coroutine[Any, Any, T]], *args: Any
    ) -> asyncio.Task[T] | Finished[T]:
        """Call `run` with `args` and the task, and run the first step of what it returns.

        Raises what that raises. Whoever gets a task owns it.
        """
        loop = asyncio.get_running_loop()
        spare, self._spare = self._spare, None  # the work may start other work
        if spare is None or spare.loop is not loop or spare.task.cancelling():
            spare = _SpareTask(loop)
        work = run(*args, spare.task)
        context, caller = copy_context(), _swap_current_task(loop, spare.task)
        try:
            waits_for = context.run(work.send, None)
        except StopIteration as finished:
            if self._spare is None and not self._closed:
                self._spare = spare
            else:  # there is that of other work which this started
                spare.task.cancel()
            return Finished(finished.value)
        except BaseException:
            spare.task.cancel()
            raise
        finally:
            _swap_current_task(loop, caller)
        return spare.take_over(work, context, waits_for)

    async def close(self) -> None:
        """End the task that waits for work. Idempotent; what is started later has its own."""
        self._closed = True
        spare, self._spare = self._spare, None
        if spare is not None and spare.loop is asyncio.get_running_loop():
            spare.task.cancel()
            await asyncio.wait({spare.task})


class _SpareTask:
    """A task that waits for work whose first step has run."""

    __slots__ = ("_begun", "_context", "_waits_for", "_work", "loop", "task")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._begun: asyncio.Future[None] = loop.create_future()
        self._work: Coroutine[Any, Any, Any] | None = None
        # A context of its own: what waits for work keeps nothing of an earlier call alive.
        self.task: asyncio.Task[Any] = loop.create_task(self._wait(), context=Context())

    def take_over(
        self, work: Coroutine[Any, Any, Any], context: Context, waits_for: Any
    ) -> asyncio.Task[Any]:
        """Go on with work that waits for something, in its own context."""
        self._work, self._context, self._waits_for = work, context, waits_for
        if not self._begun.done():
            self._begun.set_result(None)
        elif self.task.done():  # it was cancelled, and that taken back
            self.task = self.loop.create_task(self._rest(work))
        # Where the task is cancelled before its first step, nothing else ends the work.
        self.task.add_done_callback(lambda _: context.run(work.close))
        return self.task

    async def _wait(self) -> Any:
        try:
            await self._begun
        except asyncio.CancelledError:
            if self._work is None:
                raise
            if self._waits_for is not None:
                self._waits_for.cancel()
        assert self._work is not None
        return await self._go_on(self._work)

    async def _rest(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await self._go_on(work)

    @types.coroutine
    def _go_on(self, work: Coroutine[Any, Any, Any]) -> Generator[Any, None, Any]:
        run, waits_for = self._context.run, self._waits_for
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
                return finished.value
