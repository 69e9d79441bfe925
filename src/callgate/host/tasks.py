"""Async work, side by side, in a loop with a thread of its own that starts with the first."""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from callgate.core.task_sets import start_task

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, T]]


class Tasks(Generic[T]):
    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: int | None = None
        self._starting = threading.Lock()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """This and the next are touched in the loop's thread only."""
        self._waiting: dict[str, Callable[[T | None], None]] = {}
        """Of those that have not begun: whom to tell."""

    # From any thread. What is asked for happens in the order in which it was asked.

    def start(self, id: str, work: Work[T], then: Callable[[T | None], None]) -> None:
        """Begin; `then` gets what came out of it, or None if it was cancelled."""
        if self._is_here():
            self._start(id, work, then)
        else:
            self._here().call_soon_threadsafe(self._start, id, work, then)

    def soon(self, callback: Callable[[], None]) -> None:
        """Call something in the loop's thread."""
        self._here().call_soon_threadsafe(callback)

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
        async def run() -> None:
            del self._waiting[id]
            try:
                result: T | None = await work()
            except asyncio.CancelledError:
                result = None
            del self._tasks[id]
            then(result)

        self._waiting[id] = then
        self._tasks[id] = start_task(run())

    def _cancel(self, id: str, first: Callable[[], object], then: Callable[[bool], None]) -> None:
        task = self._tasks.get(id)
        if task is None:
            then(False)
            return
        first()
        task.cancel()
        task.add_done_callback(lambda _: self._ended(id, then))

    def _ended(self, id: str, then: Callable[[bool], None]) -> None:
        never_began = self._waiting.pop(id, None)
        if never_began is not None:
            del self._tasks[id]
            never_began(None)
        then(True)

    async def _end(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _is_here(self) -> bool:
        return self._thread == threading.get_ident()

    def _here(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._run, args=[self._loop], daemon=True).start()
            return self._loop

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        self._thread = threading.get_ident()
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        except BaseException:  # what a plugin left running in the loop has ended it
            traceback.print_exc()
            os._exit(1)
