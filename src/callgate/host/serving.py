"""Requests to a host: selection of the threads that read them and run them.

    reading -> async?  -> `Tasks`: concurrent ---------------------> one answer
                 |                                                     ^
                 +-----> queue: the main thread, one at a time --------+

Sync work runs in the main thread, which loaded its module, so that objects bound to a thread (a
signal, a database connection) work. It cannot be interrupted there: `cancel` is refused with
`CannotCancel`, and the runtime ends the process. Async work is cancelled, and `cancel` is answered
after its end.

At most one thread reads the pipe, usually the one that the next request is likely for:

    main       after a sync request, while it is idle
    loop       after an async request
    stand-in   while the other two are busy for longer than a moment
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import os
import select
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from enum import Enum
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import msgspec

from callgate.core.tasks import start_task
from callgate.host.pipes import Incoming, Pipe
from callgate.host.plugins import HostContext, Plugin
from callgate.protocol.host_v1.frames import (
    Announcement,
    Answer,
    Cancel,
    ExecuteTool,
    Failed,
    Failure,
    Init,
    Passed,
    Request,
    Result,
    Returned,
)
from callgate.protocol.host_v1.lines import METHOD_NOT_FOUND, Fault

T = TypeVar("T")
Work = Callable[[], Coroutine[Any, Any, T]]


class Tasks(Generic[T]):
    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: int | None = None
        self._starting = threading.Lock()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """This and `_waiting` are accessed only in the thread of the loop."""
        self._waiting: dict[str, Callable[[T | None], None]] = {}
        """Callbacks of work that has not begun."""

    # Callable from any thread. Requests are processed in order.

    def start(self, id: str, work: Work[T], then: Callable[[T | None], None]) -> None:
        """Start work; `then` receives its result, or None if it was cancelled."""
        if self._is_here():
            self._start(id, work, then)
        else:
            self._here().call_soon_threadsafe(self._start, id, work, then)

    def soon(self, callback: Callable[[], None]) -> None:
        """Call a function in the thread of the loop."""
        self._here().call_soon_threadsafe(callback)

    def cancel(self, id: str, first: Callable[[], object], then: Callable[[bool], None]) -> None:
        """Call `first` and cancel the work. After its end call `then`; False: there is no such
        work.
        """
        self._here().call_soon_threadsafe(self._cancel, id, first, then)

    def end(self, patience_s: float) -> None:
        """Cancel all work, and wait for its end."""
        if self._loop is not None:
            over = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
            try:
                over.result(patience_s)
            except TimeoutError:
                pass

    # In the thread of the loop.

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
        except BaseException:  # a plugin's background work in the loop has raised it
            traceback.print_exc()
            os._exit(1)


LOOK_S = 0.01
"""A request, an answer or a cancel waits at most twice this time until a thread reads it."""
_QUIET = 50
"""Number of checks without data after which the stand-in sleeps until there is some."""

Take = Callable[[Incoming], Request[Any] | bool]
"""Returns a request for the main thread; for any other, whether the loop handles it."""


class Turn(Enum):
    MAIN = "main"
    LOOP = "loop"
    STAND_IN = "stand-in"
    NOBODY = "nobody"


class Reading:
    def __init__(
        self, pipe: Pipe, tasks: Tasks[Any], take: Take, ended: Callable[[], None]
    ) -> None:
        """`ended` is called by the stand-in thread at the end of the input."""
        self._pipe, self._tasks, self._take, self._ended = pipe, tasks, take, ended
        self._lock = threading.Lock()
        """Protects `_turn` and `_inside`."""
        self._turn = Turn.MAIN
        self._inside = False
        """Whether the thread that has the turn is reading now, so that it keeps the turn."""
        self._count = 0
        """Number of reads so far."""
        self._wanted = threading.Event()
        self._requests: SimpleQueue[Request[Any] | None] = SimpleQueue()
        self._unread, self._heard = select.poll(), select.poll()
        """The poll objects of the stand-in and of the loop."""

    def begin(self) -> None:
        self._unread.register(self._pipe.requests, select.POLLIN)
        self._heard.register(self._pipe.requests, select.POLLIN)
        self._pipe.on_ask = self._wanted.set
        threading.Thread(target=self._stand_in, daemon=True).start()

    def next(self) -> Request[Any] | None:
        """Return the next request for the main thread, or None after the runtime has gone."""
        while self._requests.empty() and self._read(Turn.MAIN):
            pass
        return self._requests.get()

    def finish(self) -> None:
        """Let the main thread end after its present request."""
        self._requests.put(None)

    # In any reading thread.

    def _read(self, mine: Turn) -> bool:
        """Read once, if this thread has the turn. Return whether it still has it."""
        with self._lock:
            if self._turn is not mine:
                return False
            self._inside = True
        after, runs = mine, list[Request[Any]]()
        if mine is not Turn.LOOP or self._heard.poll(0):  # another thread may have read the data
            after, runs = self._take_all(self._pipe.receive(), mine)
            self._count += 1
        with self._lock:
            self._turn, self._inside = after, False
        for run in runs:
            self._requests.put(run)
        if after is Turn.LOOP and mine is not Turn.LOOP:
            self._tasks.soon(self._listen)
        elif after is Turn.NOBODY:
            self._wanted.set()
        return after is mine

    def _take_all(
        self, received: list[Incoming] | None, mine: Turn
    ) -> tuple[Turn, list[Request[Any]]]:
        """Return the next turn, and the requests for the main thread."""
        if received is None:
            return Turn.NOBODY, []
        after, runs = mine, []
        for each in received:
            taken = self._take(each)
            if isinstance(taken, Request):
                runs.append(taken)
            elif taken:
                after = Turn.LOOP
        return Turn.MAIN if runs else after, runs

    # The loop.

    def _listen(self) -> None:
        asyncio.get_running_loop().add_reader(self._pipe.requests, self._hear)

    def _hear(self) -> None:
        if not self._read(Turn.LOOP):
            asyncio.get_running_loop().remove_reader(self._pipe.requests)

    # The stand-in.

    def _stand_in(self) -> None:
        while self._turn is not Turn.NOBODY:
            self._unread.poll()
            self._look_after()
        self._ended()

    def _look_after(self) -> None:
        """Read if no other thread does, until there was no data for a while."""
        quiet, seen, lay = 0, self._count, False
        while quiet < _QUIET and self._turn is not Turn.NOBODY:
            requested = self._wanted.wait(LOOK_S)
            if requested:
                self._wanted.clear()
            unread = seen == self._count and bool(self._unread.poll(0))
            if (requested or (unread and lay)) and self._relieve():
                while self._read(Turn.STAND_IN):
                    pass
            quiet, lay = quiet + 1 if seen == self._count else 0, unread
            seen = self._count

    def _relieve(self) -> bool:
        with self._lock:
            if not self._inside and self._turn in (Turn.MAIN, Turn.LOOP):
                self._turn = Turn.STAND_IN
            return self._turn is Turn.STAND_IN


_log = logging.getLogger("callgate.host")

LEAVE_S = 1.0
"""Maximum time for work to end after the runtime has ended."""
CANCELLED = Failure(type="Cancelled", detail="The call was cancelled.")
CANNOT_CANCEL = Failure(
    type="CannotCancel", detail="A running function can be stopped only together with its process."
)


class HostProcess:
    def __init__(self, plugin: Plugin, pipe: Pipe) -> None:
        self._plugin, self._pipe = plugin, pipe
        self._methods = frozenset({*plugin.methods, "cancel"})
        self._tasks: Tasks[Answer] = Tasks()
        self._contexts: dict[str, HostContext] = {}
        """Contexts of running calls, by request id."""
        self._reading = Reading(pipe, self._tasks, self._take, self._finish)
        self._lock = threading.Lock()
        self._queued: set[str] = set()
        """Requests in the queue; a cancelled one is removed."""
        self._running: str | None = None
        """The request that runs in the main thread."""

    def serve(self) -> None:
        """Answer requests until the runtime has gone. Call it in the main thread."""
        self._reading.begin()
        while (request := self._reading.next()) is not None:
            self._take_turn(request)

    # In the reading thread.

    def _finish(self) -> None:
        with self._lock:
            self._queued.clear()
        self._tasks.end(LEAVE_S / 2)
        self._reading.finish()
        # A running function or a plugin's thread must not keep the process alive.
        threading.Event().wait(LEAVE_S / 2)
        os._exit(0)

    def _take(self, received: Request[Any] | Fault | Passed) -> Request[Any] | bool:
        """Handle a request, or return it for the main thread. True: the loop handles it."""
        if isinstance(received, Passed):
            _log.debug("ignored (%s): %s", received.why, received.shown)
        elif isinstance(received, Fault):
            self._pipe.send(received)
        elif isinstance(received.params, Cancel):
            self._cancel(received.id, received.params.id)
        elif received.method not in self._methods:
            detail = f"There is no method {received.method} here."
            self._fail(received.id, Failure(type=METHOD_NOT_FOUND, detail=detail))
        else:
            return self._begin(received)
        return False

    def _begin(self, request: Request[Any]) -> Request[Any] | bool:
        if isinstance(request.params, ExecuteTool):
            self._contexts[request.id] = HostContext(request, self._pipe)
        if self._plugin.is_async(request.params):
            self._start(request, None)
            return True
        with self._lock:
            self._queued.add(request.id)
        return request

    def _cancel(self, id: str, call: str) -> None:
        context = self._contexts.get(call)
        with self._lock:
            runs, waits = call == self._running, call in self._queued
            if context is not None:
                self._queued.discard(call)
        if context is None:  # it has ended, or never existed
            self._pipe.send(Returned(id=id, result=Result(value=False)))
        elif waits:
            self._end(call, None)
            self._pipe.send(Returned(id=id, result=Result(value=True)))
        elif runs:
            context.cancel_event.set()
            self._fail(id, CANNOT_CANCEL)
        else:
            self._tasks.cancel(
                call,
                context.cancel_event.set,
                lambda found: self._pipe.send(Returned(id=id, result=Result(value=found))),
            )

    # Work, in any thread.

    def _start(self, request: Request[Any], begun: Awaitable[Any] | None) -> None:
        self._tasks.start(
            request.id,
            lambda: self._perform(request, begun),
            lambda answer: self._end(request.id, answer),
        )

    async def _perform(self, request: Request[Any], begun: Awaitable[Any] | None) -> Answer:
        try:
            work = self._call(request) if begun is None else begun
            return self._returned(request, await work)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # a plugin's own code
            return Failed(id=request.id, error=self._plugin.failure(error))

    def _take_turn(self, request: Request[Any]) -> None:
        with self._lock:
            if request.id not in self._queued:
                return
            self._queued.remove(request.id)
            self._running = request.id
        answer: Answer
        try:
            returned = contextvars.copy_context().run(self._call, request)
            if inspect.isawaitable(returned):  # a sync wrapper around an async function
                with self._lock:  # so that a cancel finds it in one of the two places
                    self._start(request, returned)
                    self._running = None
                return
            answer = self._returned(request, returned)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a plugin's own code
            answer = Failed(id=request.id, error=self._plugin.failure(error))
        finally:
            with self._lock:
                self._running = None
        self._end(request.id, answer)

    def _call(self, request: Request[Any]) -> Any:
        return self._plugin.call(request.params, self._contexts.get(request.id))

    def _returned(self, request: Request[Any], returned: Any) -> Returned:
        result = self._plugin.result(request.params, returned)
        if isinstance(request.params, Init):
            announcement = Announcement(methods=sorted(self._methods), asks=self._pipe.offered)
            result = msgspec.structs.replace(result, host=announcement)
        return Returned(id=request.id, result=result)

    def _end(self, id: str, answer: Answer | None) -> None:
        """Send the one answer to a request; None: it was cancelled."""
        context = self._contexts.pop(id, None)
        ending = None if context is None else context.request
        self._pipe.send(Failed(id=id, error=CANCELLED) if answer is None else answer, ending)

    def _fail(self, id: str, failure: Failure) -> None:
        self._pipe.send(Failed(id=id, error=failure))
