"""What becomes of each request to a host.

    reading -> async?  -> tasks: side by side -----------> one answer
                 |                                            ^
                 +-----> turns: the main thread, one a time --+

Sync work has the main thread, in which its module was loaded, so that what is bound to a
thread (a signal, a database connection) works. Nothing can stop it there: `cancel` is refused
with `CannotCancel`, and whoever asked ends the process. Async work is cancelled, and `cancel`
is answered when it has ended.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import os
import threading
from collections.abc import Awaitable
from typing import Any

import msgspec

from callgate.host.contexts import HostContext
from callgate.host.pipes import Pipe
from callgate.host.plugins import Plugin
from callgate.host.reading import Reading
from callgate.host.tasks import Tasks
from callgate.protocol.host_v1.excerpts import Passed
from callgate.protocol.host_v1.frames import (
    Announcement,
    Answer,
    Cancel,
    ExecuteTool,
    Failed,
    Failure,
    Init,
    Request,
    Result,
    Returned,
)
from callgate.protocol.host_v1.requests import METHOD_NOT_FOUND, Fault

_log = logging.getLogger("callgate.host")

LEAVE_S = 1.0
"""How long work may take to end after the runtime has gone."""
CANCELLED = Failure(type="Cancelled", detail="The call was cancelled.")
CANNOT_CANCEL = Failure(
    type="CannotCancel", detail="A function that runs cannot be stopped but with its process."
)


class Host:
    def __init__(self, plugin: Plugin, pipe: Pipe) -> None:
        self._plugin, self._pipe = plugin, pipe
        self._methods = frozenset({*plugin.methods, "cancel"})
        self._tasks: Tasks[Answer] = Tasks()
        self._contexts: dict[str, HostContext] = {}
        """Of the calls under way, by request."""
        self._reading = Reading(pipe, self._tasks, self._take, self._finish)
        self._lock = threading.Lock()
        self._queued: set[str] = set()
        """Those that still wait for their turn; one that is missing was cancelled."""
        self._running: str | None = None
        """The one that has the main thread."""

    def serve(self) -> None:
        """Answer requests until the runtime has gone. For the main thread."""
        self._reading.begin()
        while (request := self._reading.next()) is not None:
            self._take_turn(request)

    # The thread that reads, whichever it is.

    def _finish(self) -> None:
        with self._lock:
            self._queued.clear()
        self._tasks.end(LEAVE_S / 2)
        self._reading.finish()
        # Neither a function that runs on nor a thread that a plugin left may keep us.
        threading.Event().wait(LEAVE_S / 2)
        os._exit(0)

    def _take(self, received: Request[Any] | Fault | Passed) -> Request[Any] | bool:
        """Begin; what is for the main thread is given back. True: it is for the loop."""
        if isinstance(received, Passed):
            _log.debug("passed over (%s): %s", received.why, received.shown)
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
        if context is None:  # it is over, or never was
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

    # Work, in whichever thread.

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
                with self._lock:  # a cancel finds it here or there
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
        """Give the one answer to a request; None: it was cancelled."""
        context = self._contexts.pop(id, None)
        ending = None if context is None else context.request
        self._pipe.send(Failed(id=id, error=CANCELLED) if answer is None else answer, ending)

    def _fail(self, id: str, failure: Failure) -> None:
        self._pipe.send(Failed(id=id, error=failure))
