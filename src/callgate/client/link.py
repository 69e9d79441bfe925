"""One connection to an instance: requests out, replies and events in; its errors.

    send ---> bytes                      bytes ---> reply, to its request
                                               ---> event of a call, to its caller
                                               ---> event of a subscription, to its readers
    silence, while a reply is due ---> check_alive ---> silence ---> the end

An unreadable line ends the connection: it may have been a reply. At the end every waiting request
gets an error that tells whether its call may have run. Each reader of events has a bounded queue.

Errors between a program and an instance, and retries until a socket is reached.

ClientError
├── NoInstance       nothing listens: no request was sent
├── InstanceGone     the connection ended; tells whether the call may have run
└── RequestRefused   the instance refused a request

A call that fails is a result instead.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from _socket import socket
from collections import deque
from collections.abc import Callable, Collection, Iterator
from errno import EACCES, EAGAIN
from typing import NamedTuple

from msgspec import UNSET

from callgate.core.events import Event
from callgate.events.bus import QUEUE_BOUND, Gap
from callgate.protocol.socket_v1 import frames
from callgate.protocol.socket_v1.connection import ClientWire, Passed

_WHY = {
    "closed": "This connection was closed.",
    "lost": "The connection to the instance was lost.",
    "shutting_down": "The instance was stopped.",
    "slow_reader": "The instance disconnected: its data was not read in time.",
    "protocol": "The instance disconnected: it could not parse the data.",
    "unreadable": "The peer does not speak the protocol of callgate.",
    "unresponsive": "The instance does not answer.",
}


class ClientError(Exception):
    """Base of all errors. `str(error)` is safe to show to a person."""


class NoInstance(ClientError):
    def __init__(self, why: str) -> None:
        super().__init__(f"{why} `callgate serve --workspace DIR` starts an instance.")


class InstanceGone(ClientError):
    def __init__(self, reason: str, *, may_have_run: bool) -> None:
        why = _WHY.get(reason, _WHY["lost"])
        fate = "The call was sent and may have run." if may_have_run else "Nothing was run."
        super().__init__(f"{why} {fate}")
        self.reason = reason
        """closed, lost, unreadable, unresponsive, or the reason from the instance."""
        self.may_have_run = may_have_run
        """False: this call was never sent, or the request was not a call."""


class RequestRefused(ClientError):
    """A refused request, such as an answer to a question that is no longer open."""


_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.2


def pauses() -> Iterator[float]:
    """Yield delays between attempts to connect to a socket with a full queue (`EAGAIN`).

    The attempt has ended, so the system does not report when the socket has room.
    """
    pause = _FIRST_PAUSE_S
    while True:
        yield pause
        pause = min(pause * 2, _LONGEST_PAUSE_S)


def connect_again(connection: socket, path: str, patience_s: float) -> None:
    """Connect to a socket whose queue was full. Raises `BlockingIOError` if it stays full."""
    until = time.monotonic() + patience_s
    for pause in pauses():
        time.sleep(pause)
        try:
            connection.connect(path)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise


def why_not(error: Exception) -> str:
    """Return why a socket was not reached."""
    code = getattr(error, "errno", None)
    if code == EAGAIN:
        return "too many other clients are waiting"
    if code == EACCES:
        return "this user may not open it"
    if isinstance(error, TimeoutError):
        return "it took too long"
    return getattr(error, "strerror", None) or str(error)


Reply = frames.Answer | frames.Error
Hear = Callable[[frames.Happening], None]

_log = logging.getLogger("callgate.client")


class _Waiting(NamedTuple):
    reply: asyncio.Future[Reply]
    is_call: bool
    hear: Hear | None


class Link(asyncio.Protocol):
    def __init__(
        self, patience_s: float, show: Callable[[frames.Event], None], ended: Callable[[], None]
    ) -> None:
        """`show` receives the subscribed events. `ended` is called once."""
        self._patience_s = patience_s
        self._show = show
        self._ended = ended
        self._wire = ClientWire()
        self._ids = itertools.count(1)
        self._waiting: dict[str, _Waiting] = {}
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._closing_reason: str | None = None
        """Why the instance is about to disconnect."""
        self.lost: str | None = None
        """Why the connection has ended."""
        self._heard = False
        """Whether data has arrived since the last timer."""
        self._checked = False
        self._timer: asyncio.TimerHandle | None = None

    # Interface for requests.

    def new_id(self) -> str:
        return f"req_{next(self._ids)}"

    def connection_lost_error(self, *, may_have_run: bool = False) -> InstanceGone:
        return InstanceGone(self.lost or "closed", may_have_run=may_have_run)

    async def writable(self) -> None:
        """Wait until the earlier data was sent, or the connection has ended."""
        await self._writable.wait()

    def send(self, request: frames.Request, hear: Hear | None = None) -> asyncio.Future[Reply]:
        """Send a request. The future gets its one reply, or `InstanceGone`."""
        if self._transport is None or self.lost is not None:
            raise self.connection_lost_error()
        assert request.request_id is not UNSET
        data = self._wire.encode(request)
        reply = asyncio.get_running_loop().create_future()
        is_call = isinstance(request, frames.ToolCall)
        self._waiting[request.request_id] = _Waiting(reply, is_call, hear)
        self._transport.write(data)
        if self._timer is None:
            self._watch()
        return reply

    def cancel(self, request_id: str) -> None:
        """Request the cancellation of a call, if it has not been answered."""
        if request_id in self._waiting and self._transport is not None and self.lost is None:
            self._transport.write(self._wire.encode(frames.CancelToolCall(request_id=request_id)))

    async def ask(self, request: frames.Request) -> Reply:
        """Send a request that needs no work, and wait for its reply with a time limit."""
        reply = self.send(request)
        await asyncio.wait({reply}, timeout=self._patience_s)
        if not reply.done():
            self.end("unresponsive")
        return await reply

    def calls(self) -> dict[str, asyncio.Future[Reply]]:
        """Return the unanswered calls by request id."""
        return {id: each.reply for id, each in self._waiting.items() if each.is_call}

    def end(self, reason: str) -> None:
        """Disconnect, and fail all waiting requests. Idempotent."""
        if self.lost is not None:
            return
        self.lost = reason
        if self._transport is not None:
            self._transport.abort()
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            if not each.reply.done():
                each.reply.set_exception(self.connection_lost_error(may_have_run=each.is_call))
                each.reply.exception()  # marks it as retrieved, in case no task awaits it
        self._writable.set()
        self._ended()

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.end(self._closing_reason or "lost")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        for reply in self._wire.receive(data):
            if not isinstance(reply, Passed):
                self._heard = True
                self._take(reply)
            elif reply.why in ("unreadable", "too_long"):
                self.end("unreadable")
                return

    def _take(self, reply: frames.Reply) -> None:
        if isinstance(reply, frames.Closing):
            self._closing_reason = reply.reason
        elif isinstance(reply, frames.Event):
            self._show(reply)
        elif isinstance(reply, frames.ToolEvent):
            waiting = self._waiting.get(reply.request_id)
            if waiting is not None and waiting.hear is not None:
                waiting.hear(reply.event)
        elif reply.request_id is UNSET:
            _log.warning("the instance says: %.200s", getattr(reply, "message", reply))
        else:
            waiting = self._waiting.pop(reply.request_id, None)
            if waiting is not None and not waiting.reply.done():
                waiting.reply.set_result(reply)

    # Keep-alive checks.

    def _watch(self) -> None:
        self._heard = False
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._patience_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._heard or not self._waiting:
            self._checked = False
        elif self._checked:
            self.end("unresponsive")
        else:
            self._checked = True
            self.send(frames.CheckAlive(request_id=self.new_id()))
        if self._waiting and self._timer is None:
            self._watch()


class Events:
    """One reader: iterate it with `async for`; leave its `with` to stop.

    A slow reader loses the newest events; a `Gap` replaces them.
    The iteration ends with the connection, and raises if that was lost.
    """

    def __init__(
        self, types: Collection[str] | None, forget: Callable[[Events], None], bound: int
    ) -> None:
        self._types = None if types is None else frozenset(types)
        self._forget = forget
        self._bound = bound
        self._queue: deque[Event | Gap] = deque()
        self._missed = 0
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False
        self._error: InstanceGone | None = None

    def offer(self, event: Event) -> None:
        if self._types is not None and event.type not in self._types:
            return
        if len(self._queue) >= self._bound:
            self._missed += 1
            return
        self._mark_gap()
        self._queue.append(event)
        self._wake()

    def miss(self, count: int) -> None:
        """Count events that the instance did not send."""
        self._missed += count
        self._wake()

    def end(self, error: InstanceGone | None) -> None:
        """Add no more events. The present ones can still be read."""
        self._ended, self._error = True, self._error or error
        self._wake()

    def close(self) -> None:
        self._forget(self)
        self.end(None)

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __aiter__(self) -> Events:
        return self

    async def __anext__(self) -> Event | Gap:
        got = await self.read()
        if got is None:
            raise StopAsyncIteration
        return got

    async def read(self) -> Event | Gap | None:
        """Return the next event, or None after the last one."""
        while True:
            if not self._queue:
                self._mark_gap()
            if self._queue:
                return self._queue.popleft()
            if self._error is not None:
                raise self._error
            if self._ended:
                return None
            if self._waiter is None or self._waiter.done():
                self._waiter = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._waiter)

    def _mark_gap(self) -> None:
        if self._missed:
            self._queue.append(Gap(self._missed))
            self._missed = 0

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Readers:
    """All readers of one connection."""

    def __init__(self) -> None:
        self._readers: list[Events] = []

    def add(self, types: Collection[str] | None, bound: int = QUEUE_BOUND) -> Events:
        reader = Events(types, self._remove, bound)
        self._readers.append(reader)
        return reader

    def offer(self, event: Event) -> None:
        for reader in self._readers:
            reader.offer(event)

    def miss(self, count: int) -> None:
        for reader in self._readers:
            reader.miss(count)

    def end(self, error: Callable[[], InstanceGone] | None) -> None:
        for reader in self._readers:
            reader.end(None if error is None else error())
        self._readers = []

    def _remove(self, reader: Events) -> None:
        if reader in self._readers:
            self._readers.remove(reader)
