"""MCP on an instance's port: `/mcp`, behind the same wall as everything else there.

Who comes here has shown the token, and the right Host and Origin. Both generations are served
at the one address; a client that ends its session (DELETE) has its calls stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from mcp.server.streamable_http import EventStore
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import Receive, Scope, Send

from callgate.core.errors import ToolPermissionDenied
from callgate.core.sessions import Mode, Session
from callgate.core.task_sets import start_task
from callgate.runtime import Runtime
from callgate.surfaces.live_sessions import LiveSessions
from callgate.surfaces.mcp.client_sessions import SESSION_HEADER, Wish, session_key
from callgate.surfaces.mcp.local import full_server
from callgate.surfaces.mcp.replays import Replays
from callgate.surfaces.mcp.server import McpServer

if TYPE_CHECKING:  # loaded where skills are used
    from callgate.agent.skills import Skills

_IDLE_S = 30 * 60.0
_MOST_SESSIONS = 1_000
_RETRY_MS = 1_000
"""After how long a client that lost its stream comes back."""


class _Manager(StreamableHTTPSessionManager):
    @property
    def event_store(self) -> EventStore:
        """Each session has one of its own: streams have names that are unique in a session only,
        and nobody is to hear what was said to another."""
        return Replays()

    @event_store.setter
    def event_store(self, given: EventStore | None) -> None:
        """It is the one above."""


class Endpoint:
    """An ASGI application. Start it in the event loop that it answers in."""

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
        """Stop what is under way and end every stream. Idempotent."""
        await self.server.close()
        self._stopped.set()
        if self._running is not None:
            with suppress(asyncio.CancelledError):
                await self._running


async def open_endpoint(
    runtime: Runtime,
    sessions: LiveSessions,
    *,
    home: str,
    widest: Mode,
    skills: Callable[[], Skills] | None,
) -> Endpoint:
    """The endpoint of an instance. No session has a mode that is wider than `widest`."""

    def open_session(wish: Wish) -> Session:
        if wish.mode is not None and wish.mode not in list(Mode):
            raise ToolPermissionDenied(f"There is no mode {wish.mode[:20]!r}.", reason="mode")
        mode = None if wish.mode is None else min(Mode(wish.mode), widest, key=_width)
        return sessions.fresh(wish.workspace, mode)

    endpoint = Endpoint(full_server(runtime, open_session, home=home, skills=skills))
    await endpoint.start()
    return endpoint


def _width(mode: Mode) -> int:
    return list(Mode).index(mode)
