"""HTTP and WebSocket connections on one listening socket, in the event loop of the instance.

uvicorn reads and writes them (h11, strict about what a request is, and the `websockets` library
without its own I/O); signals, logs and the life of the process stay ours.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from functools import partial
from typing import Any, cast

import h11
import msgspec
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from callgate.surfaces.accepting import Acceptor
from callgate.surfaces.http.encoding import encode
from callgate.surfaces.http.problems import overloaded
from callgate.surfaces.http.stream.frames import MAX_IN
from callgate.surfaces.http.stream.websocket_protocol import WebSocketProtocol
from callgate.surfaces.http.unauthenticated import CONNECTION, Unauthenticated
from callgate.surfaces.socket.listening import file_limit
from callgate.surfaces.unfinished import Unfinished

_DRAIN_S = 0.7
"""How long answers under way may take when the instance stops."""
_HEAD = 64 * 1024
"""Bytes of a request's head."""
_HEAD_S = 20.0
"""How long one may take to say what is asked for; without a token, for a whole request."""
_BODY_S = 60.0
"""How long the next piece of a body may take."""
_KEEP_S = 75
"""How long a connection may be idle."""
_OVERLOADED = encode(overloaded().body)


class _Connection(H11Protocol):
    """One that does not say what it wants, or does not finish saying it, is let go."""

    def __init__(self, server: HttpServer, limits: Limits) -> None:
        self._connection_state: dict[str, Any] = {}
        super().__init__(server.config, server.state, self._connection_state)
        self._server = server
        self._limits = limits
        self._unfinished = server.unfinished
        self._body = 0
        """Bytes of a request's body that has not ended."""
        self._overdue: asyncio.TimerHandle | None = None
        self._timed_state: object = None
        """State of the request that `_overdue` limits."""

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
        """Whether a WebSocket has taken over the transport, and with it every limit."""
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
        """Stop the timer, and count no bytes of this connection any more."""
        self._stop_timer()
        self._unfinished.hold(self, 0)

    def _time(self) -> None:
        """Limit a head from its first byte to its last, a body from piece to piece."""
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
        if self.flow.read_paused:  # it is us who do not read
            self._time()
        else:
            self.transport.abort()

    def _stop_timer(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
        self._timed_state = None


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What connections may take: seconds, and how many there may be."""

    head_s: float = _HEAD_S
    body_s: float = _BODY_S
    connections: int = msgspec.field(default_factory=lambda: file_limit() // 2)
    """At once. Whoever takes all of them leaves enough files for the work."""
    unauthenticated: int = msgspec.field(default_factory=lambda: min(file_limit() // 4, 1_024))
    """Of those, such as have shown no token."""


class HttpServer:
    def __init__(
        self,
        application: ASGIApp,
        limits: Limits | None = None,
        *,
        unfinished: Unfinished | None = None,
    ) -> None:
        """`unfinished` is the bound that other surfaces share."""
        self._limits = Limits() if limits is None else limits
        self.unfinished = unfinished or Unfinished()
        self.unauthenticated = Unauthenticated(self._limits.unauthenticated, self._limits.head_s)
        self.config = uvicorn.Config(
            application,
            http=H11Protocol,
            ws=cast(Any, partial(WebSocketProtocol, unfinished=self.unfinished)),
            ws_max_size=MAX_IN,
            ws_ping_interval=None,  # the stream has pings of its own
            ws_per_message_deflate=False,  # what unpacks to more than it is
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
        """Take no more, let answers go out, and close what is left. Idempotent."""
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
