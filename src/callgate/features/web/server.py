"""HTTP and WebSocket connections on one listening socket, in the event loop of the instance.

uvicorn reads and writes them: h11 parses HTTP strictly, and the `websockets` library runs without
its own I/O. callgate itself handles signals, logs and the life of the process.

    put -> the system accepts the frame, or it is queued: up to `MOST_WAITING` frames or
           `MOST_BYTES`, then the client is disconnected

The library handles reading, closing and input limits; a flood of input is read in fair time
slices. Only frames for many clients bypass its slow path.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from functools import partial
from typing import Any, cast

import h11
import msgspec
import uvicorn
from starlette.types import ASGIApp
from uvicorn._types import ASGIReceiveEvent
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.http11 import Request

from callgate.core.turns import Pieces
from callgate.features.web.frames import MAX_IN
from callgate.features.web.guard import CONNECTION, Unauthenticated
from callgate.features.web.responses import encode, overloaded
from callgate.socket.buffers import Unfinished
from callgate.socket.listening import Acceptor, file_limit

MOST_WAITING = 1_000
"""Maximum number of queued frames of a client that does not read."""
MOST_BYTES = 64 * 1024 * 1024
"""Maximum size of the queued frames together, except for a single frame."""
OPEN_S = 20.0
"""Time limit of the handshake; the library does not report all that fail."""
GIVE_UP_S = 2.0
"""Time limit for the client's close frame."""
WEBSOCKET = "callgate.websocket"
"""Key of the stream's connection in the scope's extensions."""


class WebSocketProtocol(WebSocketsSansIOProtocol):
    def __init__(self, *given: Any, unfinished: Unfinished, **named: Any) -> None:
        super().__init__(*given, **named)
        self._unfinished = unfinished
        self._pieces = Pieces(self._take, self._read_on)
        self._begun = 0
        """Bytes of an unfinished message, and of the data received with it."""
        self._waiting: deque[tuple[bytes, int]] = deque()
        """Queued bytes, and their number of frames."""
        self._count = 0
        self._bytes = 0
        self._paused = False
        self._drained = asyncio.Event()
        self._drained.set()
        self._heard_at = self.loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._overdue = self.loop.call_later(OPEN_S, self._ensure_open)

    def _ensure_open(self) -> None:
        if not self.handshake_complete:
            self.transport.abort()

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        scope = cast("dict[str, Any] | None", getattr(self, "scope", None))
        if scope is not None:
            scope["extensions"][WEBSOCKET] = self

    def take_large(self, most: int) -> None:
        """Accept messages of up to `most` bytes, after the client has authenticated."""
        self.conn.max_message_size = most

    def ping(self) -> None:
        """Send a ping, so that `silent_s` stays small while the client lives."""
        if self.is_open:
            self.conn.send_ping(b"")
            self.transport.write(b"".join(self.conn.data_to_send()))

    @property
    def silent_s(self) -> float:
        """Seconds since the last input."""
        return self.loop.time() - self._heard_at

    @property
    def is_open(self) -> bool:
        return self.handshake_complete and not self.close_sent and not self.transport.is_closing()

    def put(self, data: bytes, count: int = 1) -> None:
        """Send complete frames, now or when the client reads again."""
        if self.close_sent or self.transport.is_closing():
            return
        if not self._paused and not self._waiting:
            self.transport.write(data)
            return
        self._waiting.append((data, count))
        self._count += count
        self._bytes += len(data)
        self._drained.clear()
        too_much = self._bytes > MOST_BYTES and len(self._waiting) > 1
        if too_much or self._count > MOST_WAITING:
            self.end(1008, "client_too_slow")

    async def drained(self) -> None:
        """Wait until the queue is empty or the client is gone."""
        await self._drained.wait()

    def end(self, code: int, reason: str) -> None:
        """Close with a code and a reason. Idempotent."""
        if not self.is_open:
            return
        self._forget()
        self.conn.send_close(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self._pieces.drop()
        self.read_paused = False
        self._read_on()
        self.close_timer = self.loop.call_later(GIVE_UP_S, self.transport.abort)

    def _forget(self) -> None:
        self._waiting.clear()
        self._count = self._bytes = 0
        self._drained.set()

    # The transport's side.

    def pause_writing(self) -> None:
        super().pause_writing()
        self._paused = True
        self._drained.clear()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._paused = False
        while self._waiting and not self._paused and not self.close_sent:
            data, count = self._waiting.popleft()
            self._count -= count
            self._bytes -= len(data)
            self.transport.write(data)
        if not self._waiting and not self._paused:
            self._drained.set()

    def data_received(self, data: bytes) -> None:
        self._heard_at = self.loop.time()
        self._pieces.feed(data)
        if self._pieces.waits and not self.transport.is_closing():
            self.transport.pause_reading()

    def _read_on(self) -> None:
        if not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    async def receive(self) -> ASGIReceiveEvent:
        """Like the library's method, but handle buffered input before reading more."""
        message = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            if not self._pieces.waits:
                self._read_on()
        return message

    def _take(self, data: bytes) -> None:
        super().data_received(data)
        has_begun = bool(self.frames or self.conn.reader.buffer)
        self._begun = self._begun + len(data) if has_begun else 0
        self._unfinished.hold(self, self._begun)

    def overflow(self) -> None:
        self._drop()
        self.end(1013, "overloaded")

    def _drop(self) -> None:
        """Free the buffers of an unfinished message, here and in the library, immediately."""
        self.frames.clear()
        self.conn.reader.buffer.clear()

    def connection_lost(self, exc: Exception | None) -> None:
        self._overdue.cancel()
        self.app_state[CONNECTION].admit()
        super().connection_lost(exc)
        self._pieces.drop()
        self._forget()
        self._drop()
        self._unfinished.hold(self, 0)

    def shutdown(self) -> None:
        if self.is_open:
            self.end(1001, "stopping")
        else:
            super().shutdown()


_DRAIN_S = 0.7
"""Time limit of unfinished answers when the instance stops."""
_HEAD = 64 * 1024
"""Maximum bytes of a request's head."""
_HEAD_S = 20.0
"""Time limit of a request's head; without a token, of a whole request."""
_BODY_S = 60.0
"""Time limit of the next piece of a body."""
_KEEP_S = 75
"""Maximum idle time of a connection."""
_OVERLOADED = encode(overloaded().body)


class _Connection(H11Protocol):
    """HTTP connection with time limits for the head and the body of a request."""

    def __init__(self, server: HttpServer, limits: ConnectionLimits) -> None:
        self._connection_state: dict[str, Any] = {}
        super().__init__(server.config, server.state, self._connection_state)
        self._server = server
        self._limits = limits
        self._unfinished = server.unfinished
        self._body = 0
        """Bytes of a request's unfinished body."""
        self._overdue: asyncio.TimerHandle | None = None
        self._timed_state: object = None
        """The state of the request to which `_overdue` applies."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._pending = self._server.unauthenticated.add(transport)
        self._connection_state[CONNECTION] = self._pending
        too_many = len(self.connections) > self._limits.connections
        if too_many and not self._server.unauthenticated.drop_oldest():
            transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_upgraded:
            return
        self._time()
        has_begun = self.conn.their_state is h11.SEND_BODY
        self._body = self._body + len(data) if has_begun else 0
        self._unfinished.hold(self, self._body)

    @property
    def _is_upgraded(self) -> bool:
        """Whether a WebSocket has taken over the transport and its limits."""
        return self.transport.get_protocol() is not self

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._release()
        super().handle_websocket_upgrade(event)

    def overflow(self) -> None:
        """Refuse the request, if it has no answer yet."""
        if self.conn.our_state is h11.SEND_RESPONSE:
            head = [
                ("content-length", str(len(_OVERLOADED))),
                ("content-type", "application/json"),
                ("connection", "close"),
            ]
            for event in (
                h11.Response(status_code=503, headers=head, reason="Service Unavailable"),
                h11.Data(data=_OVERLOADED),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def on_response_complete(self) -> None:
        if self.conn.their_state is h11.DONE:
            self._pending.renew()
        super().on_response_complete()  # which also reads requests that were pipelined
        if self.conn.their_state is h11.SEND_BODY and not self._is_upgraded:
            self._time()

    def connection_lost(self, exc: Exception | None) -> None:
        self._release()
        self._pending.admit()
        super().connection_lost(exc)

    def _release(self) -> None:
        """Stop the timer, and release the counted bytes of this connection."""
        self._stop_timer()
        self._unfinished.hold(self, 0)

    def _time(self) -> None:
        """Limit the time of a whole head, and the time between two pieces of a body."""
        state = self.conn.their_state
        if state is h11.IDLE and self._timed_state is state:
            return
        self._stop_timer()
        self._timed_state = state
        if state is h11.IDLE:
            self._overdue = self.loop.call_later(self._limits.head_s, self.transport.abort)
        elif state is h11.SEND_BODY:
            self._overdue = self.loop.call_later(self._limits.body_s, self._give_up_body)

    def _give_up_body(self) -> None:
        if self.flow.read_paused:  # this server does not read
            self._time()
        else:
            self.transport.abort()

    def _stop_timer(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
        self._timed_state = None


class ConnectionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of connections: seconds and numbers."""

    head_s: float = _HEAD_S
    body_s: float = _BODY_S
    connections: int = msgspec.field(default_factory=lambda: file_limit() // 2)
    """Maximum number of open connections, which leaves enough file descriptors for calls."""
    unauthenticated: int = msgspec.field(default_factory=lambda: min(file_limit() // 4, 1_024))
    """Maximum number of open connections that have not sent a token."""


class HttpServer:
    def __init__(
        self,
        application: ASGIApp,
        limits: ConnectionLimits | None = None,
        *,
        unfinished: Unfinished | None = None,
    ) -> None:
        """`unfinished`: the limit of partial requests, shared with other surfaces."""
        self._limits = ConnectionLimits() if limits is None else limits
        self.unfinished = unfinished or Unfinished()
        self.unauthenticated = Unauthenticated(self._limits.unauthenticated, self._limits.head_s)
        self.config = uvicorn.Config(
            application,
            http=H11Protocol,
            ws=cast(Any, partial(WebSocketProtocol, unfinished=self.unfinished)),
            ws_max_size=MAX_IN,
            ws_ping_interval=None,  # the stream sends its own pings
            ws_per_message_deflate=False,  # a small message could expand to a huge one
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_S,
            h11_max_incomplete_event_size=_HEAD,
        )
        self.config.load()
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # it would log login codes
        self.state = ServerState()
        self._acceptor: Acceptor | None = None

    def start(self, listening: socket.socket) -> None:
        self._acceptor = Acceptor(listening, self._connect)
        self._acceptor.start()

    def _connect(self) -> asyncio.Protocol:
        return _Connection(self, self._limits)

    def stop_accepting(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()

    async def close(self) -> None:
        """Stop accepting, finish answers, and close the other connections. Idempotent."""
        self.stop_accepting()
        for connection in list(self.state.connections):
            connection.shutdown()
        tasks: set[asyncio.Task[Any]] = set(self.state.tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_DRAIN_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for connection in list(self.state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)
