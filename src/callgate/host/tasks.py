"""Async work, side by side, in a loop with a thread of its own that starts with the first."""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, T]]


class Tasks(Generic[T]):
    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()
        self._tasks: dict[str, asyncio.Task[T]] = {}
        """Touched in the loop's thread only."""

    # From any thread. What is asked for happens in the order in which it was asked.

    def start(self, id: str, work: Work[T], then: Callable[[T | None], None]) -> None:
        """Begin; `then` gets what came out of it, or None if it was cancelled."""
        self._here().call_soon_threadsafe(self._start, id, work, then)

    def cancel(self, id: str, first: Callable[[], object], then: Callable[[bool], None]) -> None:
        """Do `first` and cancel. `then` is told once it has ended, after everyone else:
        True if there was something to cancel."""
        self._here().call_soon_threadsafe(self._cancel, id, first, then)

    def end(self, patience_s: float) -> None:
        """Cancel all there is, and wait for it."""
        if self._loop is not None:
            over = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
            try:
                over.result(patience_s)
            except TimeoutError:
                pass

    # In the loop's thread.

    def _start(self, id: str, work: Work[T], then: Callable[[T | None], None]) -> None:
        task = asyncio.get_running_loop().create_task(work())
        self._tasks[id] = task

        def ended(task: asyncio.Task[T]) -> None:
            del self._tasks[id]
            then(None if task.cancelled() else task.result())

        task.add_done_callback(ended)

    def _cancel(
        self, id: str, first: Callable[[], object], then: Callable[[bool], None]
    ) -> None:
        task = self._tasks.get(id)
        if task is None:
            then(False)
            return
        first()
        task.cancel()
        task.add_done_callback(lambda _: then(True))

    async def _end(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _here(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._run, args=[self._loop], daemon=True).start()
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        except BaseException:  # what a plugin left running in the loop has ended it
            traceback.print_exc()
            os._exit(1)
