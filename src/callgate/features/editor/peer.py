"""A JSON-RPC connection, in both directions: requests received, requests sent, in order.

    bytes -> Reader -> Request       -> a task -> its answer
                       Notification  -> noted, immediately
                       Response      -> the caller that waits in `request`

Messages are handled in the order of their arrival: each request runs up to its first wait before
the next message is handled. Messages are sent in the order of the calls, so the updates of a
handler precede its answer. A peer that sends many messages at a time shares the event loop fairly.

A peer that does not read blocks the callers of `drained()`. Its unread data is bounded in size and
time; beyond these limits the peer counts as disconnected.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from callgate.core.tasks import start_task
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
from callgate.protocol.strict_json import Unsendable
from callgate.redaction.frame_log import FrameLog

REQUEST_CANCELLED = -32800
CANCEL_REQUEST = "$/cancel_request"

HIGH = 256 * 1024
"""Number of unread bytes above which `drained` waits for the peer ..."""
MOST_UNREAD = 64 * 1024 * 1024
"""... and above which the peer counts as disconnected."""
PATIENCE = 300.0
"""Time limit for a peer to read something while more than `HIGH` bytes wait."""
MOST_REQUESTS = 1_000
"""Maximum number of concurrent requests of the peer."""
_MOST_RECEIVED = 1_000
"""Maximum number of unhandled messages before reading pauses."""
_AT_ONCE = 8
"""Maximum number of requests that start per iteration of the event loop."""
_MOMENT = 0.1
"""Time limit at the end for handlers that end without a cancel ..."""
_GRACE = 15.0
"""... and for cancelled handlers."""

_log = logging.getLogger("callgate.acp")


class PeerGone(Exception):
    """The connection has ended, so no request can be sent."""

    def __init__(self) -> None:
        super().__init__("the client has gone")


class EditorPeer:
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
        """
        Args:
            write: Takes all data. Its owner calls `pause` if it has buffered enough, and `resume`
                later.
            answer: Returns the result of a request (None is `{}`) or raises `RpcError`.
            noted: Receives notifications.
            on_gone: Called when the peer disconnects.
            ignores_noise: Whether lines that are not messages and have no id get no answer.
        """
        self._write, self._answer, self._noted = write, answer, noted
        self._on_gone = on_gone
        self._ignores_noise = ignores_noise
        self._most_unread, self._patience = most_unread, patience
        self._reader = jsonrpc.Reader()
        self._received: deque[Message] = deque()
        self._taken = asyncio.Event()
        """Cleared while messages after requests wait for the next iteration of the loop."""
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
        """Cleared while the peer has too much unread data."""
        self._read.set()
        self._closing = False
        self.invalid = 0
        """Number of lines that were not messages."""
        self._frames = FrameLog("callgate.acp")
        self.disconnected = asyncio.Event()
        """Set when nothing can be sent to the peer any more."""

    # Receiving

    def feed(self, data: bytes) -> None:
        self._frames.received(data)
        self._received.extend(self._reader.feed(data))
        if self._taken.is_set():
            self._take()

    def _take(self) -> None:
        """Handle messages. Messages after a request wait until the request has started."""
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
            elif self._handle(message):  # the waiting caller continues first
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
        """Handle a message. Return whether a caller waited for it."""
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
        """Number of unhandled messages."""
        return len(self._received)

    def is_behind(self, caught_up: Callable[[], None]) -> bool:
        """Whether reading must pause; then `caught_up` is called when it may continue."""
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
        """Answer one request in every case."""
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
        except Exception:  # a notification has no answer
            _log.exception("%s failed", jsonrpc.shown(notification.method))

    def _cancel(self, params: Any) -> None:
        id = params.get("requestId") if isinstance(params, dict) else None
        task = self._answering.get(id) if jsonrpc.is_id(id) else None
        # only once: it may have to finish its cleanup
        if task is not None and not task.cancelling():
            task.cancel()

    def _settle(self, response: Response) -> bool:
        """Pass on an answer. Return whether a caller waited for it."""
        waiting = None if response.id is None else self._pending.pop(response.id, None)
        if waiting is None or waiting.done():
            _log.info("ignored an answer without a request")
            return False
        if response.error is not None:
            _log.debug("<- %r failed: %d", response.id, response.error.code)
            waiting.set_exception(response.error)
        else:
            _log.debug("<- %r answered", response.id)
            waiting.set_result(response.result)
        return True

    # Sending

    async def request(self, method: str, params: Any) -> Any:
        """Return the peer's answer. Raises `RpcError` if it is an error, `PeerGone` if none can
        come.

        A cancellation of this task sends a cancel request to the peer.
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
        """Send a request and ignore its answer, at the end of a connection."""
        self._send(jsonrpc.request(next(self._ids), method, params))

    def notify(self, method: str, params: Any) -> None:
        """Send a notification, if the peer is connected. Raises `Unsendable`."""
        self._send(jsonrpc.notification(method, params))

    async def drained(self) -> None:
        """Wait until the peer has read enough. Raises `PeerGone`."""
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
            _log.error("the client left %d bytes unread and counts as disconnected", self._size)
            self.lost()

    def flush(self) -> None:
        """Write the pending messages, unless the peer must read first."""
        if self._paused or not self._unsent:
            return
        data = b"".join(self._unsent)
        self._unsent, self._size = [], 0
        self._frames.sent(data)
        self._write(data)

    def pause(self) -> None:
        """Stop writing until `resume`, at most for the time limit."""
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
        _log.error("the client read nothing for %g s and counts as disconnected", self._patience)
        self.lost()

    def _calm(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    # Closing

    def lost(self) -> None:
        """Mark the peer as disconnected and fail everything that waits for it."""
        if self.disconnected.is_set():
            return
        self.disconnected.set()
        self._calm()
        self._unsent, self._size = [], 0
        self._read.set()
        self._abandon()
        self._on_gone()

    def unheard(self) -> None:
        """Stop receiving and fail the callers that wait for an answer."""
        self._closing = True
        self._received.clear()
        self._abandon()

    def _abandon(self) -> None:
        pending, self._pending = self._pending, {}
        for waiting in pending.values():
            if not waiting.done():
                waiting.set_exception(PeerGone())

    async def taken(self) -> None:
        """Wait until all received messages have started, and requests without a wait have ended."""
        await self._taken.wait()
        await asyncio.sleep(0)

    async def close(self) -> None:
        """End all requests in both directions. Pending messages are still written."""
        self.unheard()
        _, waiting = await self._wait(_MOMENT)
        for task in waiting:
            task.cancel()
        _, late = await self._wait(_GRACE)
        if late:
            _log.error("%d requests did not end", len(late))
        self.flush()

    async def _wait(self, limit_s: float) -> tuple[set[asyncio.Task[None]], ...]:
        """Return the peer's requests that end within the limit, and the others."""
        tasks = self._answering.values()
        return await asyncio.wait(tasks, timeout=limit_s) if tasks else (set(), set())
