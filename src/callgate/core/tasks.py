"""Structured concurrency: tasks with an owner, backpressure, and an event loop in a thread.

    TaskSet         many tasks of one owner; it references each task until its end
    start_task      one task; the caller stores, awaits and cancels it
    EagerTasks      work that begins immediately, and has a task only while it waits
    TaskGroup       asyncio's class; the block that starts the tasks waits for them
    Backpressure    one slow reader pauses its producers, for a bounded time
    BackgroundLoop  an event loop next to a blocked main thread: `callgate chat`, `with Gate(...)`

The event loop has only weak references to its tasks, and it reports an unretrieved exception when
the task is collected, or never: a task without an owner may vanish.

    reads --pause--> behind --resume--> reads
                       |
                       +-- after `patience_s`: producers continue, whether or not there is room
                           for their output, until the next `resume`

A producer that can wait does so while `Backpressure.wait` returns a future. Each producer has its
own future, so the cancellation of one producer does not affect another.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import sys
import threading
import types
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any, Generic, TypeVar, final

import msgspec

if sys.version_info >= (3, 12):
    from asyncio.tasks import _swap_current_task
else:
    from asyncio.tasks import _current_tasks  # type: ignore[attr-defined]

    def _swap_current_task(
        loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any] | None
    ) -> asyncio.Task[Any] | None:
        """Make a task the current one, as Python 3.12 and later do. Return the previous one."""
        caller: asyncio.Task[Any] | None = _current_tasks[loop] if loop in _current_tasks else None  # noqa: SIM401  # no function call
        if task is None:
            del _current_tasks[loop]
        else:
            _current_tasks[loop] = task
        return caller


T = TypeVar("T")


def start_task(work: Coroutine[Any, Any, T], *, context: Context | None = None) -> asyncio.Task[T]:
    """Run work concurrently to its caller, who must store the task: the event loop does not."""
    return asyncio.get_running_loop().create_task(work, context=context)


class TaskSet:
    """The tasks of one owner."""

    __slots__ = ("_log", "_message", "_tasks")

    def __init__(self, log: logging.Logger | None = None, message: str = "a task failed") -> None:
        """With a log, exceptions of tasks are logged under this message. Without one they are
        only for the code that awaits the task.
        """
        self._log = log
        self._message = message
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        """Number of tasks that have not ended."""
        return len(self._tasks)

    def start(
        self, work: Coroutine[Any, Any, T], *, context: Context | None = None
    ) -> asyncio.Task[T]:
        """Run work concurrently to its caller."""
        task = start_task(work, context=context)
        self.add(task)
        return task

    def add(self, task: asyncio.Task[Any]) -> None:
        """Own a task that was created elsewhere."""
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """Cancel every task except the current one, without waiting."""
        for task in self._others():
            task.cancel()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait until all present tasks except the current one have ended, or for this time."""
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


@final
class Finished(msgspec.Struct, Generic[T]):
    """Work that ended in its first step."""

    result: T


class EagerTasks:
    """Runs the first step of a coroutine immediately, inside the task that gets the later ones.

    A task costs an iteration of the event loop, which is more than a short call costs, and most
    calls need none. But it must be the current task in the first step already: `asyncio.timeout`
    and task groups belong to it. So a spare task waits, and a task that was not needed becomes the
    spare one. `asyncio.Task(..., eager_start=True)` of Python 3.12 and later creates one each time.
    """

    __slots__ = ("_closed", "_spare")

    def __init__(self) -> None:
        self._spare: _SpareTask | None = None
        self._closed = False

    def start(
        self, run: Callable[..., Coroutine[Any, Any, T]], *args: Any
    ) -> asyncio.Task[T] | Finished[T]:
        """Call `run` with `args` and the task, and run the first step of the returned coroutine.

        Raises its exception. The caller owns a returned task.
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
            else:  # other work, started by this one, has left a spare task
                spare.task.cancel()
            return Finished(finished.value)
        except BaseException:
            spare.task.cancel()
            raise
        finally:
            _swap_current_task(loop, caller)
        return spare.take_over(work, context, waits_for)

    async def close(self) -> None:
        """End the spare task. Idempotent; work that starts later gets a new one."""
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
        # A separate context: the spare task must not keep data of an earlier call alive.
        self.task: asyncio.Task[Any] = loop.create_task(self._wait(), context=Context())

    def take_over(
        self, work: Coroutine[Any, Any, Any], context: Context, waits_for: Any
    ) -> asyncio.Task[Any]:
        """Continue work that waits for something, in its own context."""
        self._work, self._context, self._waits_for = work, context, waits_for
        if not self._begun.done():
            self._begun.set_result(None)
        elif self.task.done():  # it was cancelled, and then uncancelled
            self.task = self.loop.create_task(self._finish(work))
        # If the task is cancelled before its first step, nothing else ends the work.
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

    async def _finish(self, work: Coroutine[Any, Any, Any]) -> Any:
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


PATIENCE_S = 10.0
"""How long producers wait for a reader that does not read."""


def dropped_events(count: int) -> str:
    """Return a message about events of a call that were not delivered."""
    events = "1 event" if count == 1 else f"{count} events"
    return f"{events} of this call were dropped: not read in time, or too large to send."


class Backpressure:
    def __init__(self, patience_s: float | None = None) -> None:
        self.patience_s = PATIENCE_S if patience_s is None else patience_s
        self._waiters: set[asyncio.Future[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        """Runs while producers wait."""
        self._has_given_up = False

    @property
    def is_on(self) -> bool:
        """Whether producers wait. Thread-safe."""
        return self._timer is not None

    def pause(self) -> None:
        """Note that the reader has fallen behind. Idempotent."""
        if self._timer is None and not self._has_given_up:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self.patience_s, self._give_up)

    def resume(self) -> None:
        """Note that the reader has caught up, or has left. Idempotent."""
        self._has_given_up = False
        self._release()

    def wait(self) -> asyncio.Future[None] | None:
        """Return a future that is done once the producer may continue, or None if it may now."""
        if self._timer is None:
            return None
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        waiter.add_done_callback(self._waiters.discard)
        return waiter

    def _give_up(self) -> None:
        self._has_given_up = True
        self._release()

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for waiter in list(self._waiters):
            if not waiter.done():
                waiter.set_result(None)


_LOOK_S = 0.1
"""Interval at which a waiting main thread checks for signals."""


class BackgroundLoop:
    """An event loop in a thread. In a `with` it runs until the end of the block."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> BackgroundLoop:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the loop. Idempotent."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._over.set)
            self._thread.join()

    def start(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop to its end, or until Ctrl-C."""
        future = self.start(work)
        try:
            return self.wait_for(future)
        except KeyboardInterrupt:
            future.cancel()
            raise

    @staticmethod
    def wait_for(future: concurrent.futures.Future[T]) -> T:
        """Return its result. Polls, because a signal would not interrupt the wait.

        The system may deliver it to another thread, or just before this one begins to wait.
        """
        while concurrent.futures.wait([future], _LOOK_S).not_done:
            pass
        return future.result()

    async def _run(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._ready.set()
        await self._over.wait()
