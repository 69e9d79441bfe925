"""`RemoteGate` for programs without an event loop, shared by as many threads as there are.

    thread ---> work ---> the loop, in a thread of its own
           <--- what the call says, then its result

What a call says is told in the thread that made it. Ctrl-C there stops the call, as cancelling
its task would.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from msgspec import structs

from callgate.client.errors import InstanceGone
from callgate.client.link import Hear
from callgate.client.readers import Events
from callgate.client.remote import RemoteGate
from callgate.core.events import Event
from callgate.core.pacing.backpressure import dropped_events
from callgate.core.results import Diagnostic, ToolResult
from callgate.core.task_sets import TaskSet
from callgate.dispatch.permission.confirmations import Answer, Receipt
from callgate.events.bus import Gap
from callgate.protocol.socket_v1.frames import Descriptor, Happening, Log, Question

_MOST_SAYINGS = 1_000
"""Of one call, that wait for a thread which does not take them."""
_STOP_S = 5.0
"""How long work that was interrupted may take to end."""

T = TypeVar("T")


class _Inbox:
    """What the loop has for a thread that waits: sayings of a call, then the task that ended."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Happening | asyncio.Task[Any]] = SimpleQueue()
        self._dropped = 0
        """Since the last mark ..."""
        self._dropped_before = 0
        """... and up to it."""

    def say(self, happening: Happening) -> None:
        if self._queue.qsize() >= _MOST_SAYINGS:
            self._dropped += 1
            return
        self._tell_dropped()
        self._queue.put(happening)

    def end(self, task: asyncio.Task[Any]) -> None:
        self._tell_dropped()
        self._queue.put(task)

    def get(self, timeout_s: float | None = None) -> Happening | asyncio.Task[Any]:
        return self._queue.get(timeout=timeout_s)

    def _tell_dropped(self) -> None:
        if self._dropped:
            self._queue.put(Log(level="warn", message=dropped_events(self._dropped)))
            self._dropped_before += self._dropped
            self._dropped = 0

    def counted(self, result: ToolResult) -> ToolResult:
        """The result of a call, with a note on its events that were dropped."""
        if not self._dropped_before:
            return result
        note = Diagnostic(dropped_events(self._dropped_before))
        return structs.replace(result, diagnostics=(*result.diagnostics, note))


class BlockingGate:
    """One connection, with a session of its own in the instance. Made by `connect`."""

    def __init__(self, open: Callable[[], Coroutine[Any, Any, RemoteGate]]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="callgate client", daemon=True
        )
        self._lock = threading.Lock()
        self._closed = False
        self._tasks = TaskSet()
        self._thread.start()
        try:
            self._gate = self._run(open())
        except BaseException:
            self._end(self._settle())
            raise

    def close(self) -> None:
        """Hang up: the instance ends the calls that are still under way. Idempotent."""
        self._end(self._close())

    def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        timeout_s: float | None = None,
        on_event: Hear | None = None,
        **named: Any,
    ) -> ToolResult:
        """Run one tool. Refusals and failures come back in the result.

        The arguments by name or in one mapping. `on_event` is called with what the tool says
        while it works; if that raises, the call is stopped.
        """
        inbox = _Inbox()
        work = self._gate.call(
            tool,
            {**(arguments or {}), **named},
            timeout_s=timeout_s,
            on_event=None if on_event is None else inbox.say,
        )
        return inbox.counted(self._run(work, inbox, on_event))

    def tools(self) -> list[Descriptor]:
        """The tools of this directory; none where the instance does not serve it."""
        return self._run(self._gate.tools())

    def events(self, types: Collection[str] | None = None) -> BlockingEvents:
        """A reader of what happens in this session from now on: `for event in gate.events()`."""

        async def read() -> Events:
            return self._gate.events(types)

        return BlockingEvents(self._run, self._run(read()))

    def cancel(self) -> None:
        """Stop every call under way, of any thread, and wait until each has ended."""
        self._run(self._gate.cancel())

    def confirmations(self) -> list[Question]:
        """The questions about our calls that wait for an answer."""
        return self._run(self._gate.confirmations())

    def answer(self, question: Question | str, said: Answer | bool | str) -> Receipt:
        """Take a question back with a no; the first answer wins.

        `RequestRefused` if it is not open, and for a yes: no program allows its own calls.
        Given the question itself, the answer is for the arguments that it shows.
        """
        return self._run(self._gate.answer(question, said))

    def _run(
        self,
        work: Coroutine[Any, Any, T],
        inbox: _Inbox | None = None,
        on_event: Hear | None = None,
    ) -> T:
        """Have work done in the loop, and wait for it here."""
        inbox = inbox or _Inbox()
        started: list[asyncio.Task[T]] = []

        def start() -> None:
            task = self._tasks.start(work)
            started.append(task)
            task.add_done_callback(inbox.end)

        with self._lock:
            if self._closed:
                work.close()
                raise InstanceGone("closed", may_have_run=False)
            self._loop.call_soon_threadsafe(start)
        try:
            while not isinstance(got := inbox.get(), asyncio.Task):
                if on_event is not None:
                    on_event(got)
        except BaseException:  # Ctrl-C, or `on_event` failed
            self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in started])
            _wait_for_end(inbox)
            raise
        result: T = got.result()
        return result

    async def _close(self) -> None:
        await self._gate.close()
        await self._settle()

    async def _settle(self) -> None:
        """Let everyone who waits hear of the end."""
        await self._tasks.wait(_STOP_S)

    def _end(self, work: Coroutine[Any, Any, None]) -> None:
        with self._lock:
            if self._closed:
                work.close()
                return
            self._closed = True
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            future.result(2 * _STOP_S)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class BlockingEvents:
    """One reader: iterate it with `for`; leave its `with`, or close it elsewhere, to stop."""

    def __init__(self, run: Callable[[Coroutine[Any, Any, Any]], Any], events: Events) -> None:
        self._run = run
        self._events = events

    def close(self) -> None:
        async def close() -> None:
            self._events.close()

        try:
            self._run(close())
        except InstanceGone:
            pass  # it ended with its connection

    def __enter__(self) -> BlockingEvents:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Event | Gap]:
        while True:
            got: Event | Gap | None = self._run(self._events.read())
            if got is None:
                return
            yield got


def _wait_for_end(inbox: _Inbox) -> None:
    try:
        while not isinstance(inbox.get(_STOP_S), asyncio.Task):
            pass
    except Empty:
        pass
