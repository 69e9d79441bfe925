"""Tasks with an owner: the one way in which we run something beside its caller.

    TaskSet      many tasks of one owner, who ends them all: it holds each until it has ended
    start_task   one task, which its starter keeps, awaits and cancels itself
    TaskGroup    asyncio's own, where the block that starts tasks waits for them

The event loop holds its tasks by weak references only, and an exception that nobody awaits is
reported when its task is collected, or never: a task that nobody owns may vanish.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

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
