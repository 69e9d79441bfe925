"""One JSON-RPC connection, both ways: requests answered, requests made, in one order.

    bytes -> Reader -> Request       -> a task -> its answer
                       Notification  -> noted, at once
                       Response      -> whoever waits in `request`

Messages are taken in the order in which they came: each request has begun, up to its first
wait, before the next message is looked at. Whatever is sent leaves in the order in which it
was said, so updates that a handler told before it returned come before its answer. A peer that
sends many at once has them taken in fair turns.

A peer that does not read holds up those who `await drained()`, and nobody's memory: what it
leaves unread is bounded, in size and in time. Beyond that it counts as gone.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from callgate.core.task_sets import start_task
from callgate.core.turns import SLICE_S, fair_turns
from callgate.protocol import jsonrpc
from callgate.protocol.jsonrpc import (
    Id,
    Invalid,
    Message,
    Notification,
    Request,
    Response,
    RpcError,
)
from callgate.protocol.ndjson import Unsendable
from callgate.redaction.frame_log import FrameLog

REQUEST_CANCELLED = -32800
CANCEL_REQUEST = "$/cancel_request"

HIGH = 256 * 1024
"""Bytes that may wait before `drained` waits for them to be read ..."""
MOST_UNREAD = 64 * 1024 * 1024
"""... and before a peer counts as gone."""
PATIENCE = 300.0
"""Seconds in which a peer reads something, as long as there is more for it than `HIGH`."""
MOST_REQUESTS = 1_000
"""Of the peer, under way at once."""
_MOST_RECEIVED = 1_000
"""Messages that may wait to be taken, before no more are read."""
_AT_ONCE = 8
"""Requests that begin in one turn of the loop; those that do not wait are answered in the next."""
_MOMENT = 0.1
"""Seconds for handlers that end by themselves, now that nobody is there ..."""
_GRACE = 15.0
"""... and for those that are cancelled."""

_log = logging.getLogger("callgate.acp")


class PeerGone(Exception):
    """The connection has ended, so nothing can be asked any more."""

    def __init__(self) -> None:
        super().__init__("the client has gone")


class Peer:
    def __init__(
        self,
        write: Callable[[bytes], None],
        answer: Callable[[str, Any, Request], Awaitable[Any]],
        noted: Callable[[str, Any], None],
        *,
        on_gone: Callable[[], None] = lambda: None,
        ignores_noise: bool = False,
        most_unread: int = MOST_UNREAD,
        patience: float = PATIENCE,
    ) -> None:
        """`answer` gives the result of a request (None is `{}`) or raises `RpcError`.

        `write` takes everything. Whoever gives it says `pause` when it holds enough of that,
        and `resume` when it has got rid of it. `on_gone` hears that the peer has gone.
        `ignores_noise`: lines that are no message and have no id get no answer.
        """
        self._write, self._answer, self._noted = write, answer, noted
        self._on_gone = on_gone
        self._ignores_noise = ignores_noise
        self._most_unread, self._patience = most_unread, patience
        self._reader = jsonrpc.Reader()
        self._received: deque[Message] = deque()
        self._taken = asyncio.Event()
        """Not set while what follows requests waits for the loop's next turn."""
        self._taken.set()
        self._caught_up: Callable[[], None] | None = None
        self._answering: dict[Id, asyncio.Task[None]] = {}
        self._ids = itertools.count(1)
        self._pending: dict[Id, asyncio.Future[Any]] = {}
        self._unsent: list[bytes] = []
        self._size = 0
        self._paused = False
        self._stuck: asyncio.TimerHandle | None = None
        self._read = asyncio.Event()
        """Not set while there is more than the peer reads."""
        self._read.set()
        self._closing = False
        self.invalid = 0
        """Lines that were no message."""
        self._frames = FrameLog("callgate.acp")
        self.disconnected = asyncio.Event()
        """Nothing reaches the peer any more."""

    # What comes

    def feed(self, data: bytes) -> None:
        self._frames.received(data)
        self._received.extend(self._reader.feed(data))
        if self._taken.is_set():
            self._take()

    def _take(self) -> None:
        """Take messages; what follows requests, once these have begun."""
        turns = fair_turns()
        begun, until = 0, turns.now() + SLICE_S
        self._taken.clear()
        while self._received and not self._closing:
            message = self._received[0]
            if begun and not isinstance(message, Request):
                break
            self._received.popleft()
            if isinstance(message, Request):
                self._begin(message)
                begun += 1
            elif self._handle(message):  # whoever waited for it goes on first
                begun += 1
                break
            if self._received and (begun == _AT_ONCE or turns.now() > until):
                turns.wait(self._take)
                return
        if begun:
            asyncio.get_running_loop().call_soon(self._take)
        else:
            self._taken.set()
        if not self._received:
            self._catch_up()

    def _handle(self, message: Notification | Response | Invalid) -> bool:
        """Whether somebody waited for it."""
        if isinstance(message, Response):
            return self._settle(message)
        if isinstance(message, Notification):
            self._note(message)
        else:
            self.invalid += 1
            _log.warning("not a message: %s", message.message)
            if message.id is not None or not self._ignores_noise:
                self._send(jsonrpc.failure(message.id, message))
        return False

    @property
    def backlog(self) -> int:
        """Messages that came and were not taken yet."""
        return len(self._received)

    def is_behind(self, caught_up: Callable[[], None]) -> bool:
        """Whether nothing more should come for now; `caught_up` is called when it may again."""
        if len(self._received) <= _MOST_RECEIVED:
            return False
        self._caught_up = caught_up
        return True

    def _catch_up(self) -> None:
        caught_up, self._caught_up = self._caught_up, None
        if caught_up is not None:
            caught_up()

    def _begin(self, request: Request) -> None:
        _log.debug("<- %r %s", request.id, jsonrpc.shown(request.method))
        refusal = None
        if request.id in self._answering:
            refusal = "Invalid request: this id is in flight"
        elif len(self._answering) >= MOST_REQUESTS:
            refusal = f"Invalid request: {MOST_REQUESTS} requests are in flight"
        if refusal is not None:
            invalid = Invalid(request.id, jsonrpc.INVALID_REQUEST, refusal)
            self._send(jsonrpc.failure(request.id, invalid))
            return
        task = start_task(self._run(request))
        self._answering[request.id] = task

    async def _run(self, request: Request) -> None:
        """Answer one request, whatever happens."""
        try:
            line = await self._outcome(request)
        finally:
            del self._answering[request.id]
        self._send(line)

    async def _outcome(self, request: Request) -> bytes:
        try:
            value = await self._answer(request.method, request.params, request)
            line = jsonrpc.result(request.id, {} if value is None else value)
            _log.debug("-> %r answered", request.id)
            return line
        except RpcError as error:
            failure = error
        except asyncio.CancelledError:
            failure = RpcError(REQUEST_CANCELLED, "Request cancelled")
        except PeerGone:
            failure = RpcError(jsonrpc.INTERNAL_ERROR, "the client has gone")
        except Exception:
            _log.exception("%s failed", jsonrpc.shown(request.method))
            failure = RpcError(jsonrpc.INTERNAL_ERROR, "Internal error")
        _log.debug("-> %r failed: %d", request.id, failure.code)
        try:
            return jsonrpc.failure(request.id, failure)
        except Unsendable:
            return jsonrpc.failure(request.id, RpcError(failure.code, failure.message))

    def _note(self, notification: Notification) -> None:
        _log.debug("<- %s", jsonrpc.shown(notification.method))
        if notification.method == CANCEL_REQUEST:
            self._cancel(notification.params)
            return
        try:
            self._noted(notification.method, notification.params)
        except Exception:  # there is nobody to be told
            _log.exception("%s failed", jsonrpc.shown(notification.method))

    def _cancel(self, params: Any) -> None:
        id = params.get("requestId") if isinstance(params, dict) else None
        task = self._answering.get(id) if jsonrpc.is_id(id) else None
        if task is not None and not task.cancelling():  # once: it may have to see to its end
            task.cancel()

    def _settle(self, response: Response) -> bool:
        """Whether somebody waited for it."""
        waiting = None if response.id is None else self._pending.pop(response.id, None)
        if waiting is None or waiting.done():
            _log.info("an answer to nothing that was asked was ignored")
            return False
        if response.error is not None:
            _log.debug("<- %r failed: %d", response.id, response.error.code)
            waiting.set_exception(response.error)
        else:
            _log.debug("<- %r answered", response.id)
            waiting.set_result(response.result)
        return True

    # What goes

    async def request(self, method: str, params: Any) -> Any:
        """The peer's answer. Raises `RpcError` if it is an error, `PeerGone` if none can come.

        Cancelled, it tells the peer that nobody waits any more.
        """
        if self._closing or self.disconnected.is_set():
            raise PeerGone
        id = next(self._ids)
        line = jsonrpc.request(id, method, params)
        self._pending[id] = waiting = asyncio.get_running_loop().create_future()
        _log.debug("-> %d %s", id, method)
        self._send(line)
        try:
            return await waiting
        except asyncio.CancelledError:
            if id in self._pending:
                self.notify(CANCEL_REQUEST, {"requestId": id})
            raise
        finally:
            self._pending.pop(id, None)

    def request_unheard(self, method: str, params: Any) -> None:
        """A request whose answer nobody waits for: the last that a peer is asked."""
        self._send(jsonrpc.request(next(self._ids), method, params))

    def notify(self, method: str, params: Any) -> None:
        """Tell the peer something, if it is there. Raises `Unsendable`."""
        self._send(jsonrpc.notification(method, params))

    async def drained(self) -> None:
        """Wait until the peer has read enough to be told more. Raises `PeerGone`."""
        if self._size > HIGH:
            self.flush()
        await self._read.wait()
        if self.disconnected.is_set():
            raise PeerGone

    def _send(self, line: bytes) -> None:
        if self.disconnected.is_set():
            return
        if not self._unsent and not self._paused:
            asyncio.get_running_loop().call_soon(self.flush)
        self._unsent.append(line)
        self._size += len(line)
        if self._size > self._most_unread:
            _log.error("%d bytes were not read: the client counts as gone", self._size)
            self.lost()

    def flush(self) -> None:
        """Write what waits, unless the peer has to read first."""
        if self._paused or not self._unsent:
            return
        data = b"".join(self._unsent)
        self._unsent, self._size = [], 0
        self._frames.sent(data)
        self._write(data)

    def pause(self) -> None:
        """Nothing is written until `resume`, and that has to come within the patience."""
        if self.disconnected.is_set():
            return
        self._paused = True
        self._read.clear()
        if self._stuck is None:
            loop = asyncio.get_running_loop()
            self._stuck = loop.call_later(self._patience, self._give_up)

    def resume(self) -> None:
        self._paused = False
        self._calm()
        self._read.set()
        self.flush()

    def _give_up(self) -> None:
        _log.error("nothing was read for %g s: the client counts as gone", self._patience)
        self.lost()

    def _calm(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    # The end

    def lost(self) -> None:
        """Nothing can be written any more. Whoever waits for the peer is told so."""
        if self.disconnected.is_set():
            return
        self.disconnected.set()
        self._calm()
        self._unsent, self._size = [], 0
        self._read.set()
        self._abandon()
        self._on_gone()

    def unheard(self) -> None:
        """Nothing comes any more. Whoever waits for an answer is told so."""
        self._closing = True
        self._received.clear()
        self._abandon()

    def _abandon(self) -> None:
        pending, self._pending = self._pending, {}
        for waiting in pending.values():
            if not waiting.done():
                waiting.set_exception(PeerGone())

    async def taken(self) -> None:
        """Wait until everything that came has begun, and what does not wait has ended."""
        await self._taken.wait()
        await asyncio.sleep(0)

    async def close(self) -> None:
        """End every request under way, both ways. What was said before is still written."""
        self.unheard()
        _, waiting = await self._wait(_MOMENT)
        for task in waiting:
            task.cancel()
        _, late = await self._wait(_GRACE)
        if late:
            _log.error("%d requests did not end", len(late))
        self.flush()

    async def _wait(self, limit_s: float) -> tuple[set[asyncio.Task[None]], ...]:
        """Requests of the peer that have ended by then, and that have not."""
        tasks = self._answering.values()
        return await asyncio.wait(tasks, timeout=limit_s) if tasks else (set(), set())
