"""Access of a call to files and terminals: on the local disk, or through an editor.

    tool -> context.environment -> WorkspaceFiles                          local files
                                -> workspace boundary and guard -> TextFiles      files of an editor

An editor has buffers with unsaved changes. `Offered` lists the resources that a client provides to
a session; for all others callgate uses local ones.

Threads that wait for the disk, so that the event loop does not.

submit -> [thread] begins -> ends -> [ended jobs] --one wake-up for many--> the event loop
       -> or is cancelled before it begins, without effect
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, ParamSpec, Protocol, TypeVar
from weakref import WeakKeyDictionary

from callgate.core.commands import Launcher
from callgate.core.local.disk import disk_jobs

P = ParamSpec("P")
T = TypeVar("T")

DISK_THREADS = 32
"""Maximum number of concurrent disk jobs; threads start on demand.

File systems combine concurrent syncs into one commit, so many threads with one file each are fast.
"""


class DiskJob(Generic[T]):
    """A job for one of the threads, and the waiter in an event loop."""

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
        """One ticket: taking it entitles to begin the work or to cancel it."""
        self._waiter: asyncio.Future[None] | None = None
        self._result: T
        self._error: BaseException | None = None
        self.done = False

    def cancel(self) -> bool:
        """Cancel the work before it begins; False if it has begun."""
        return self._takes_ticket()

    async def wait(self) -> None:
        """Wait for the end of the job. A cancelled waiter may wait again."""
        if not self.done:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def result(self) -> T:
        """Return the result of the work, or raise its exception."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # it refers to this frame
        return self._result

    def run(self) -> None:
        """Run the work, in its thread."""
        if not self._takes_ticket():
            disk_jobs.discard(self)
            return
        try:
            self._result = self._context.run(self._work)
        except BaseException as error:  # for the waiter
            self._error = error
        disk_jobs.discard(self)  # before the waiter is notified
        self._endings.add(self)

    def end(self) -> None:
        """Notify the waiter, in the event loop."""
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
    """Ended jobs of one event loop. One wake-up of a busy loop delivers many."""

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
            pass  # the loop is closed: no task waits

    def _tell(self) -> None:
        with self._guard:
            self._is_called = False
        while self._jobs:
            self._jobs.popleft().end()


class _Threads:
    """The threads of this process; a forked child starts without any."""

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
            except RuntimeError:  # the system has no more threads
                self._threads.remove(thread)
                if not self._threads:
                    raise

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            job.run()
            del job

    def close(self) -> None:
        """Finish the submitted jobs, and end the threads."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()


_threads = _Threads()


def submit(work: Callable[[], T]) -> DiskJob[T]:
    """Run work in a thread, with the context variables of the caller."""
    loop = asyncio.get_running_loop()
    endings = _threads.endings.get(loop)
    if endings is None:
        endings = _threads.endings[loop] = _Endings(loop)
    job = DiskJob(work, endings)
    _threads.submit(job)
    return job


def _close() -> None:
    _threads.close()


atexit.register(_close)  # so that no disk job is cut off when the process exits


def _begin_anew() -> None:
    global _threads
    _threads = _Threads()
    disk_jobs.clear()


os.register_at_fork(after_in_child=_begin_anew)


class WorkspaceFiles(Protocol):
    """The files of the session's workspace; `workspace.files` implements it."""

    @property
    def workspace_root(self) -> str: ...
    def read(self, path: str) -> str: ...
    def read_bytes(self, path: str) -> bytes: ...
    def write(self, path: str, content: str) -> None: ...
    def write_bytes(self, path: str, content: bytes) -> None: ...
    def append(self, path: str, content: str) -> None: ...
    def exists(self, path: str) -> bool: ...
    def list(self, path: str) -> list[str]: ...
    def delete(self, path: str) -> None: ...
    def patch(self, path: str, old: str, new: str) -> None: ...


class Edited(NamedTuple):
    old: str
    new: str
    remark: str | None = None
    """For the result, if the edit was not made in the usual way."""


class Environment(Protocol):
    @property
    def files(self) -> WorkspaceFiles:
        """The local files, in any environment."""
        ...

    @property
    def reads_disk(self) -> bool:
        """Whether reads return the content of the local files."""
        ...

    @property
    def writes_disk(self) -> bool:
        """Whether writes change the local files immediately."""
        ...

    async def read_text(
        self, path: str, *, line: int | None = None, limit: int | None = None
    ) -> str:
        """Return at most `limit` lines of a text, from `line` on, which counts from 1."""
        ...

    async def write_text(self, path: str, content: str) -> str | None:
        """Create or replace a file. Return a remark for the result, or None."""
        ...

    async def edit_text(self, path: str, change: Callable[[str], str]) -> Edited:
        """Replace a text by the result of `change`, without interference from other writers."""
        ...


class TextFiles(Protocol):
    """The text files of an editor, including unsaved changes. Paths are absolute.

    `FileNotFoundError`: the editor does not have the file. Any other failure is a `ToolError`.
    """

    @property
    def reads(self) -> bool: ...
    @property
    def writes(self) -> bool: ...
    async def read(self, path: str, line: int | None, limit: int | None) -> str: ...
    async def write(self, path: str, content: str) -> None: ...


class Offered(NamedTuple):
    """Resources that a client provides to one session."""

    files: TextFiles | None = None
    terminals: Launcher | None = None
    """Starts commands in terminals of the client."""


class LocalEnvironment:
    """The local disk, through the files of a workspace."""

    __slots__ = ("files",)

    reads_disk = True
    writes_disk = True

    def __init__(self, files: WorkspaceFiles) -> None:
        self.files = files

    async def read_text(
        self, path: str, *, line: int | None = None, limit: int | None = None
    ) -> str:
        return lines_from(self.files.read(path), line, limit)

    async def write_text(self, path: str, content: str) -> str | None:
        await off_loop(self.files.write, path, content)
        return None

    async def edit_text(self, path: str, change: Callable[[str], str]) -> Edited:
        return await off_loop(self._edit, path, change)

    def _edit(self, path: str, change: Callable[[str], str]) -> Edited:
        old = self.files.read(path)
        new = change(old)
        if old:
            self.files.patch(path, old, new)  # refused if the file has changed since the read
        else:
            self.files.write(path, new)
        return Edited(old, new)


async def off_loop_surely(work: Callable[[], T]) -> T:
    """Like `off_loop`, but do the work even if the caller is cancelled: it cannot be repeated."""
    try:
        return await off_loop(work)
    except asyncio.CancelledError:  # the work had not begun
        work()
        raise


async def off_loop(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run work that waits for the disk in a thread, with the context variables of the caller.

    If the caller is cancelled before the work begins, nothing is done. The function always waits
    for work that has begun. So a tool reports its changes although its call was cancelled, and the
    caller of the call gets its answer earlier.
    """

    job = submit(partial(work, *args, **kwargs))
    while not job.done:
        try:
            await job.wait()
        except asyncio.CancelledError:
            if job.cancel():
                raise
    return job.result()


def lines_from(text: str, line: int | None, limit: int | None) -> str:
    """Return some lines of a text, unchanged; only a line feed ends a line."""
    start = 0
    for _ in range((line or 1) - 1):
        start = text.find("\n", start) + 1
        if start == 0:
            return ""
    if limit is None:
        return text[start:]
    end = start
    for _ in range(limit):
        end = text.find("\n", end) + 1
        if end == 0:
            return text[start:]
    return text[start:end]
