"""HTTP and WebSocket connections on one listening socket, in the event loop of the instance.

uvicorn reads and writes them (h11, strict about what a request is, and the `websockets` library
without its own I/O); signals, logs and the life of the process stay ours.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from callgate.surfaces.http.frames import MAX_IN
from callgate.surfaces.http.wires import Wire

_DRAIN_S = 0.7
"""How long answers under way may take when the instance stops."""
_HEAD = 64 * 1024
"""Bytes of a request's head."""
_KEEP_S = 75
"""How long a connection may be idle."""


class HttpServer:
    def __init__(self, application: ASGIApp) -> None:
        self._config = uvicorn.Config(
            application,
            http=H11Protocol,
            ws=Wire,
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
        self._server: asyncio.Server | None = None

    async def start(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connect, sock=listening)

    def _connect(self) -> asyncio.Protocol:
        return H11Protocol(self._config, self._state, {})

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()

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
