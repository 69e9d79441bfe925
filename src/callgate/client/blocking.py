"""`callgate.connect`: find a running instance of this user; use it with or without asyncio.

    explicit socket -> explicit instance -> newest -> config file -> usual place

    thread ---> work ---> the loop, in a separate thread       `BlockingGate`
           <--- events of the call, then its result

Callbacks for the events of a call run in the thread of the caller. Ctrl-C there cancels the call.
"""

from __future__ import annotations

import asyncio
import os
import socket as sockets
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from queue import Empty, SimpleQueue
from typing import Any, Literal, TypeVar

from msgspec import structs

from callgate.client.link import Events, Hear, InstanceGone, NoInstance, pauses, why_not
from callgate.client.remote import Peer, RemoteGate
from callgate.config import instance_records
from callgate.config.home import Home
from callgate.core.calls import Diagnostic, ToolResult
from callgate.core.events import Event
from callgate.core.tasks import TaskSet, dropped_events
from callgate.dispatch.permission.confirmations import Answer, Receipt
from callgate.events.bus import Gap
from callgate.protocol.socket_v1.frames import Descriptor, Happening, Log, Question

_MOST_SAYINGS = 1_000
"""Maximum queued events of one call whose thread does not process them."""
_STOP_S = 5.0
"""Maximum time for interrupted work to end."""

T = TypeVar("T")


class _Inbox:
    """Messages from the loop to a waiting thread: events of a call, then its ended task."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Happening | asyncio.Task[Any]] = SimpleQueue()
        self._dropped = 0
        """Number of dropped events since the last mark ..."""
        self._dropped_before = 0
        """... and before it."""

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
        """Return the result of a call, with a note about dropped events."""
        if not self._dropped_before:
            return result
        note = Diagnostic(dropped_events(self._dropped_before))
        return structs.replace(result, diagnostics=(*result.diagnostics, note))


class BlockingGate:
    """One connection, with a separate session in the instance. Created by `connect`."""

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
        """Disconnect: the instance ends the running calls. Idempotent."""
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
        """Run one tool. Refusals and failures are returned in the result.

        The arguments are given by name or in one mapping. `on_event` is called with the events of
        the running tool; if it raises, the call is stopped.
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
        """Return the tools for this directory; none if the instance does not serve it."""
        return self._run(self._gate.tools())

    def events(self, types: Collection[str] | None = None) -> BlockingEvents:
        """Return a reader for new events of this session: `for event in gate.events()`."""

        async def read() -> Events:
            return self._gate.events(types)

        return BlockingEvents(self._run, self._run(read()))

    def cancel(self) -> None:
        """Stop all running calls of this connection, of all threads, and wait until they end."""
        self._run(self._gate.cancel())

    def confirmations(self) -> list[Question]:
        """Return the open questions about calls of this connection."""
        return self._run(self._gate.confirmations())

    def answer(self, question: Question | str, said: Answer | bool | str) -> Receipt:
        """Withdraw a question by denying it; the first answer wins.

        Raises `RequestRefused` if it is not open, and for an approval: no program approves its own
        calls. If `question` is the question itself, the answer covers the arguments that it shows.
        """
        return self._run(self._gate.answer(question, said))

    def _run(
        self,
        work: Coroutine[Any, Any, T],
        inbox: _Inbox | None = None,
        on_event: Hear | None = None,
    ) -> T:
        """Run work in the loop, and wait for it in this thread."""
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
        """Wait until all waiting tasks were notified of the end."""
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


PATIENCE_S = 15.0
"""Silence after which an instance is checked, and again until it counts as unresponsive."""


class Connecting:
    """A connection to open with `async with` or `with`. Each use opens a separate one."""

    def __init__(
        self,
        peer: Peer,
        home: str,
        socket: str | None,
        instance: str | None,
        patience_s: float,
    ) -> None:
        self._peer = peer
        self._home = home
        self._socket = socket
        self._instance = instance
        self._patience_s = patience_s
        self._remote: list[RemoteGate] = []
        self._blocking: list[BlockingGate] = []

    async def __aenter__(self) -> RemoteGate:
        gate = await self._open()
        self._remote.append(gate)
        return gate

    async def __aexit__(self, *exc: object) -> None:
        await self._remote.pop().close()

    def __enter__(self) -> BlockingGate:
        gate = BlockingGate(self._open)
        self._blocking.append(gate)
        return gate

    def __exit__(self, *exc: object) -> None:
        self._blocking.pop().close()

    async def _open(self) -> RemoteGate:
        path = self._find()
        gate = RemoteGate(self._peer, self._patience_s)
        connection = await _reach(path, self._patience_s)
        await asyncio.get_running_loop().create_unix_connection(lambda: gate.link, sock=connection)
        try:
            await gate.greet()
        except InstanceGone as gone:
            await gate.close()
            raise NoInstance(f"{path} was reached, but: {gone}") from gone
        except BaseException:
            await gate.close()
            raise
        return gate

    def _find(self) -> str:
        try:
            path = instance_records.find(self._home, socket=self._socket, instance=self._instance)
        except instance_records.NoInstance:
            raise NoInstance(
                f"No instance {self._instance!r} runs (`callgate status` lists the running ones)."
            ) from None
        if path is None:
            raise NoInstance(f"No instance of callgate runs in {self._home}.")
        return path


def connect(
    *,
    socket: str | os.PathLike[str] | None = None,
    instance: str | int | None = None,
    cwd: str | os.PathLike[str] | None = ".",
    caller: Literal["cli", "plugin"] = "plugin",
    confirmer: bool = False,
    home: str | os.PathLike[str] | None = None,
    patience_s: float = PATIENCE_S,
) -> Connecting:
    """Connect to a running instance: `async with connect() as gate`, or `with connect() as gate`.

    Args:
        socket: its path; overrides `instance`, its pid or label. Default: the newest instance.
        cwd: the working directory, which the instance must serve; None: the instance's own.
        confirmer: questions about calls of this connection wait for a person, who answers
            elsewhere. Otherwise they are denied if no approver is available.
        patience_s: how long the instance may be silent.
    """
    if caller not in ("cli", "plugin"):
        raise ValueError("a caller over the socket is cli or plugin")
    directory = Home.from_environment().path if home is None else os.path.abspath(home)
    peer = Peer(
        caller=caller,
        cwd=None if cwd is None else os.path.abspath(cwd),
        confirmer=confirmer,
    )
    path = None if socket is None else os.fspath(socket)
    return Connecting(
        peer, directory, path, None if instance is None else str(instance), patience_s
    )


async def _reach(path: str, patience_s: float) -> sockets.socket:
    """Return a connected socket whose peer is a process of this user."""
    connection = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
    connection.setblocking(False)
    try:
        await _connect(connection, path, patience_s)
        if not instance_records.is_own_peer(connection):
            raise NoInstance(f"The process that listens at {path} belongs to another user.")
    except OSError as error:
        connection.close()
        raise NoInstance(f"No process answers at {path}: {why_not(error)}.") from error
    except BaseException:
        connection.close()
        raise
    return connection


async def _connect(connection: sockets.socket, path: str, patience_s: float) -> None:
    """Connect. Unlike `sock_connect`, treat a full queue as a failed attempt."""
    loop = asyncio.get_running_loop()
    until = loop.time() + patience_s
    for pause in pauses():
        try:
            connection.connect(path)
            return
        except BlockingIOError:
            if loop.time() + pause > until:
                raise
            await asyncio.sleep(pause)
