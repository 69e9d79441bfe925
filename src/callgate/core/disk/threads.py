"""Threads that wait for the disk in place of the event loop.

submit -> [thread] begins -> ends -> [what has ended] --one wake-up for many--> the event loop
       -> or is cancelled first: then nothing is done
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from callgate.core.disk.background import disk_jobs

T = TypeVar("T")

DISK_THREADS = 32
"""Jobs that wait for the disk at once; the threads are made when they are needed. A file system
writes what is synced at the same time together: many threads that each sync a file of their own
are its group commit."""


class DiskJob(Generic[T]):
    """Work for one of the threads, and whoever waits for it in an event loop."""

    __slots__ = (
        "_context",
        "_endings",
        "_error",
        "_result",
        "_tickets",
        "_waiter",
        "_work",
        "done",
    )

    def __init__(self, work: Callable[[], T], endings: _Endings) -> None:
        self._work = work
        self._context = copy_context()
        self._endings = endings
        self._tickets = [None]
        """Whoever takes the one that is there may begin the work, or cancel it."""
        self._waiter: asyncio.Future[None] | None = None
        self._result: T
        self._error: BaseException | None = None
        self.done = False

    def cancel(self) -> bool:
        """Keep the work from being begun; False if it was."""
        return self._takes_ticket()

    async def wait(self) -> None:
        """Until it has ended. Whoever is cancelled meanwhile may wait again."""
        if not self.done:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def result(self) -> T:
        """What it returned, or raise what it raised."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # it refers to this frame
        return self._result

    def run(self) -> None:
        """In its thread."""
        if not self._takes_ticket():
            disk_jobs.discard(self)
            return
        try:
            self._result = self._context.run(self._work)
        except BaseException as error:  # for whoever waits
            self._error = error
        disk_jobs.discard(self)  # before anybody hears of it
        self._endings.add(self)

    def end(self) -> None:
        """In the event loop."""
        self.done = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _takes_ticket(self) -> bool:
        try:
            self._tickets.pop()
        except IndexError:
            return False
        return True


class _Endings:
    """Jobs of one event loop that have ended. A loop that is busy is woken once for many."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: deque[DiskJob[Any]] = deque()
        self._guard = threading.Lock()
        self._is_called = False

    def add(self, job: DiskJob[T]) -> None:
        self._jobs.append(job)
        with self._guard:
            if self._is_called:
                return
            self._is_called = True
        try:
            self._loop.call_soon_threadsafe(self._tell)
        except RuntimeError:
            pass  # the loop was closed: nobody waits

    def _tell(self) -> None:
        with self._guard:
            self._is_called = False
        while self._jobs:
            self._jobs.popleft().end()


class _Threads:
    """Of this process: a forked child has none of them."""

    def __init__(self) -> None:
        self.endings: WeakKeyDictionary[asyncio.AbstractEventLoop, _Endings] = WeakKeyDictionary()
        self._queue: SimpleQueue[DiskJob[Any] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, job: DiskJob[T]) -> None:
        disk_jobs.add(job)
        self._queue.put(job)
        started = len(self._threads)
        if started < len(disk_jobs) and started < DISK_THREADS:
            name = f"callgate-disk_{started}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._threads.append(thread)
            try:
                thread.start()
            except RuntimeError:  # the system has no more threads to give
                self._threads.remove(thread)
                if not self._threads:
                    raise

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            job.run()
            del job

    def close(self) -> None:
        """Finish what was submitted."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()


_threads = _Threads()


def submit(work: Callable[[], T]) -> DiskJob[T]:
    """Have work done in a thread, with the context variables of the caller."""
    loop = asyncio.get_running_loop()
    endings = _threads.endings.get(loop)
    if endings is None:
        endings = _threads.endings[loop] = _Endings(loop)
    job = DiskJob(work, endings)
    _threads.submit(job)
    return job


def _close() -> None:
    _threads.close()


atexit.register(_close)  # whoever ends the process does not end a change half-way


def _begin_anew() -> None:
    global _threads
    _threads = _Threads()
    disk_jobs.clear()


os.register_at_fork(after_in_child=_begin_anew)
