"""MCP clients: the callgate session of each request, and notifications of changed lists."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import mcp_types as types
from mcp.server.session import ServerSession
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp.shared.subscriptions import event_to_notification
from mcp_types import LoggingLevel
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request

from callgate.core.sessions import Client, Session
from callgate.dispatch.permission.confirmations import Confirmer
from callgate.dispatch.permission.question_building import client_of
from callgate.features.mcp.server.pending_requests import Context
from callgate.runtime import Runtime

SESSION_HEADER = "mcp-session-id"
_MOST = 1_000
"""Maximum number of clients; beyond it, the least recently active one is ended."""
_LONGEST_NAME = 60

_log = logging.getLogger("callgate.mcp")


class Wish(NamedTuple):
    """Workspace and mode that a client requests for its session."""

    workspace: str | None = None
    mode: str | None = None


OpenForClient = Callable[[Wish], Session]
"""Opens the session of a client. Raises `ToolError` if the request is not allowed."""


class ClientSession:
    def __init__(self, key: str, session: Session) -> None:
        self.key = key
        self.session = session
        self.level: LoggingLevel = "info"
        """Minimum level of log messages, for a client of a legacy protocol version."""
        self.watched: set[str] = set()
        """URIs of the resources that the client has subscribed to."""
        self.channel: ServerSession | None = None
        """Connection for notifications outside a request; only for legacy protocol versions."""
        self.attached = ExitStack()


class ClientSessions:
    def __init__(self, runtime: Runtime, open_session: OpenForClient, confirmer: Confirmer) -> None:
        self._runtime = runtime
        self._open_session = open_session
        self._confirmer = confirmer
        self._client_sessions: dict[str, ClientSession] = {}
        """Clients by key, the most recently active one last."""

    def __iter__(self) -> Iterator[ClientSession]:
        return iter(list(self._client_sessions.values()))

    def of(self, ctx: Context) -> ClientSession:
        """Return the client of a request. Raises `ToolError` if its session is not allowed."""
        key, wish = _key(ctx)
        client_session = self._client_sessions.pop(key, None)
        if client_session is None:
            client_session = self._begin(key, wish, ctx)
        self._client_sessions[key] = client_session
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            client_session.channel = ctx.session
        return client_session

    def _begin(self, key: str, wish: Wish, ctx: Context) -> ClientSession:
        session = self._open_session(wish)
        client = ctx.session.client_params
        name = "client" if client is None else client.client_info.name
        session.client = _client(ctx, None if client is None else client.client_info.name)
        session.title = f"mcp {name[:_LONGEST_NAME]}"
        client_session = ClientSession(key, session)
        client_session.attached.enter_context(
            self._runtime.permission.attach(self._confirmer, session.id)
        )
        _log.info("client %s has session %s", name[:_LONGEST_NAME], session.id)
        return client_session

    def crowded(self) -> list[ClientSession]:
        """Return the clients to end because there are too many."""
        return list(self._client_sessions.values())[: max(0, len(self._client_sessions) - _MOST)]

    async def end(self, key: str) -> None:
        """Stop the calls of a client, and close its session with its grants."""
        client_session = self._client_sessions.pop(key, None)
        if client_session is not None:
            client_session.attached.close()
            await self._runtime.sessions.close(client_session.session)

    async def close(self) -> None:
        for key in list(self._client_sessions):
            await self.end(key)


def _client(ctx: Context, name: str | None) -> Client:
    """Return the parent process or the HTTP peer. The client declares the name itself."""
    request = ctx.request
    if not isinstance(request, Request):
        return client_of(os.getppid(), name)
    address = None if request.client is None else f"{request.client.host}:{request.client.port}"
    return Client(address=address, name=None if name is None else name[:_LONGEST_NAME])


def _key(ctx: Context) -> tuple[str, Wish]:
    request = ctx.request
    if not isinstance(request, Request):
        return "stdio", Wish()
    wish = Wish(request.query_params.get("workspace"), request.query_params.get("mode"))
    id = request.headers.get(SESSION_HEADER)
    if id is not None and ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return session_key(id), wish
    client = ctx.session.client_params
    name = "" if client is None else client.client_info.name
    return f"name {(name, *wish)}", wish


def session_key(id: str) -> str:
    return f"id {id}"


_S = 5.0
"""Time limit for sending a notification to one client."""


class ChangeNotices:
    def __init__(
        self,
        client_sessions: ClientSessions,
        start_task: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        """`start_task` runs a coroutine to its end."""
        self._client_sessions = client_sessions
        self._start_task = start_task
        self._bus = InMemorySubscriptionBus()
        self.listen = ListenHandler(self._bus)

    def tools(self) -> None:
        self._start_task(self._tell(ToolsListChanged()))

    def prompts(self) -> None:
        self._start_task(self._tell(PromptsListChanged()))

    def resources(self) -> None:
        self._start_task(self._tell(ResourcesListChanged()))

    def updated(self, uri: str) -> None:
        self._start_task(self._tell(ResourceUpdated(uri=uri)))

    def close(self) -> None:
        self.listen.close()

    async def _tell(self, event: ServerEvent) -> None:
        await self._bus.publish(event)
        for client_session in self._client_sessions:
            if client_session.channel is None:
                continue
            if isinstance(event, ResourceUpdated) and event.uri not in client_session.watched:
                continue
            try:
                async with asyncio.timeout(_S):
                    await client_session.channel.send_notification(_legacy(event))
            except TimeoutError:
                pass  # the client does not read; it can list again later


def _legacy(event: ServerEvent) -> types.ServerNotification:
    return event_to_notification(event, {})
