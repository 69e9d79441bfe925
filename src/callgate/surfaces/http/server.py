"""HTTP and WebSocket connections on one listening socket, in the event loop of the instance.

uvicorn reads and writes them (h11, strict about what a request is, and the `websockets` library
without its own I/O); signals, logs and the life of the process stay ours.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from functools import partial
from typing import Any, cast

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from callgate.surfaces.accepting import Acceptor
from callgate.surfaces.http.encoding import encode
from callgate.surfaces.http.frames import MAX_IN
from callgate.surfaces.http.problems import overloaded
from callgate.surfaces.http.wires import Wire
from callgate.surfaces.unfinished import Unfinished

_DRAIN_S = 0.7
"""How long answers under way may take when the instance stops."""
_HEAD = 64 * 1024
"""Bytes of a request's head."""
_HEAD_S = 20.0
"""How long one may take to say what is asked for."""
_KEEP_S = 75
"""How long a connection may be idle."""
_OVERLOADED = encode(overloaded().body)


class _Connection(H11Protocol):
    """One that does not say what it wants is let go: nobody has asked it for a token yet."""

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        head_s: float,
        most: int,
        unfinished: Unfinished,
    ) -> None:
        super().__init__(config, state, {})
        self._unfinished = unfinished
        self._body = 0
        """Bytes of a request's body that has not ended."""
        self._head_s = head_s
        self._most = most
        self._overdue: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._most:
            transport.abort()
        else:
            self._time()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._time()
        has_begun = self.conn.their_state is h11.SEND_BODY
        self._body = self._body + len(data) if has_begun else 0
        self._unfinished.hold(self, self._body)

    def overflow(self) -> None:
        """Refuse the request, if it has no answer yet."""
        if self.conn.our_state is h11.SEND_RESPONSE:
            head = [("content-length", str(len(_OVERLOADED))), ("content-type", "application/json"),
                    ("connection", "close")]  # fmt: skip
            for event in (
                h11.Response(status_code=503, headers=head, reason="Service Unavailable"),
                h11.Data(data=_OVERLOADED),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_time()
        self._unfinished.hold(self, 0)
        super().connection_lost(exc)

    def _time(self) -> None:
        """Each head has its time, from its first byte to its last."""
        if self.conn.their_state is not h11.IDLE:
            self._in_time()
        elif self._overdue is None:
            self._overdue = self.loop.call_later(self._head_s, self.transport.abort)

    def _in_time(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None


class HttpServer:
    def __init__(
        self,
        application: ASGIApp,
        *,
        head_s: float = _HEAD_S,
        most: int | None = None,
        unfinished: Unfinished | None = None,
    ) -> None:
        """`unfinished` is the bound that other surfaces share. `most` are the connections at
        once; None: half of the files that we may open, so that whoever takes all of them leaves
        enough for the work."""
        self._head_s = head_s
        self._unfinished = unfinished or Unfinished()
        self._most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2 if most is None else most
        self._config = uvicorn.Config(
            application,
            http=H11Protocol,
            ws=cast(Any, partial(Wire, unfinished=self._unfinished)),
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
        self._config.load()
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # it would log login codes
        self._state = ServerState()
        self._acceptor: Acceptor | None = None

    def start(self, listening: socket.socket) -> None:
        self._acceptor = Acceptor(listening, self._connect)
        self._acceptor.start()

    def _connect(self) -> asyncio.Protocol:
        return _Connection(self._config, self._state, self._head_s, self._most, self._unfinished)

    def stop_accepting(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()

    async def close(self) -> None:
        """Take no more, let answers go out, and close what is left. Twice equals once."""
        self.stop_accepting()
        for connection in list(self._state.connections):
            connection.shutdown()
        tasks: set[asyncio.Task[Any]] = set(self._state.tasks)
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=_DRAIN_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        for connection in list(self._state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)
