"""MCP over HTTP: `/mcp` on an instance's port, with the same access checks as all other routes."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import JSONRPCMessage
from starlette.types import Receive, Scope, Send

from callgate.core.errors import ToolPermissionDenied
from callgate.core.sessions import Mode, Session
from callgate.core.tasks import start_task
from callgate.features.mcp.server.client_sessions import SESSION_HEADER, Wish, session_key
from callgate.features.mcp.server.local import full_server
from callgate.features.mcp.server.server import McpServer
from callgate.runtime import Runtime

if TYPE_CHECKING:
    from callgate.sources.skills import Skills


_MOST = 256
_MOST_BYTES = 1024 * 1024


class Replays(EventStore):
    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._messages: deque[tuple[int, str, JSONRPCMessage | None, int]] = deque()
        """Number, stream, message, size."""
        self._bytes = 0

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        size = 0 if message is None else len(message.model_dump_json(by_alias=True))
        number = next(self._numbers)
        self._messages.append((number, stream_id, message, size))
        self._bytes += size
        while self._messages and (len(self._messages) > _MOST or self._bytes > _MOST_BYTES):
            self._bytes -= self._messages.popleft()[3]
        return str(number)

    async def replay_events_after(
        self, last_event_id: str, send_callback: EventCallback
    ) -> str | None:
        """Send the later events of an event's stream; None if the event was discarded."""
        if not last_event_id.isascii() or not last_event_id.isdecimal():
            return None
        last = int(last_event_id[:20])
        streams = [stream for number, stream, _, _ in self._messages if number == last]
        if not streams:
            return None
        for number, stream, message, _ in list(self._messages):
            if stream == streams[0] and number > last and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return streams[0]


_IDLE_S = 30 * 60.0
_MOST_SESSIONS = 1_000
_RETRY_MS = 1_000
"""Time after which a client reconnects a lost stream."""


class _Manager(StreamableHTTPSessionManager):
    @property
    def event_store(self) -> EventStore:
        """A new store for each session: stream names are unique only within a session.

        A session could receive another session's messages from a shared store.
        """
        return Replays()

    @event_store.setter
    def event_store(self, given: EventStore | None) -> None:
        """Ignored: each session has its own store."""


class Endpoint:
    """An ASGI application. Start it in the event loop that serves it."""

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self._manager = _Manager(
            server.sdk,
            retry_interval=_RETRY_MS,
            session_idle_timeout=_IDLE_S,
            max_sessions=_MOST_SESSIONS,
        )
        self._stopped = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        ready = asyncio.Event()

        async def run() -> None:
            async with self._manager.run():
                ready.set()
                await self._stopped.wait()

        self._running = start_task(run())
        await ready.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._manager.handle_request(scope, receive, send)
        if scope["method"] == "DELETE":
            ids = [value for key, value in scope["headers"] if key == SESSION_HEADER.encode()]
            for id in ids:
                await self.server.client_sessions.end(session_key(id.decode("latin-1")))

    async def close(self) -> None:
        """Stop all requests and end every stream. Idempotent."""
        await self.server.close()
        self._stopped.set()
        if self._running is not None:
            with suppress(asyncio.CancelledError):
                await self._running


async def open_endpoint(
    runtime: Runtime,
    open_fresh: Callable[[str | None, Mode | None], Session],
    *,
    home: str,
    widest: Mode,
    skills: Callable[[], Skills] | None,
    search_above: int = 0,
) -> Endpoint:
    """Return the endpoint of an instance. `open_fresh` opens a session in a workspace and a mode.

    A mode that a client requests is limited to `widest`.
    """

    def open_session(wish: Wish) -> Session:
        if wish.mode is not None and wish.mode not in list(Mode):
            raise ToolPermissionDenied(
                f"The mode {wish.mode[:20]!r} does not exist.", reason="mode"
            )
        mode = None if wish.mode is None else min(Mode(wish.mode), widest, key=_width)
        return open_fresh(wish.workspace, mode)

    server = full_server(runtime, open_session, home=home, skills=skills, search_above=search_above)
    endpoint = Endpoint(server)
    await endpoint.start()
    return endpoint


def _width(mode: Mode) -> int:
    return list(Mode).index(mode)
