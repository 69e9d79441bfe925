"""Which of our sessions a request belongs to.

    stdio                     one session: whoever started us is the client
    HTTP with a session id    one for each id, until the client ends it
    HTTP without (2026-07-28) one for each name that a client gives itself, and workspace

A session is what grants, the audit record and the dashboard know: an answer "for this session"
holds as long as the client_session does.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import NamedTuple

from mcp.server.session import ServerSession
from mcp_types import LoggingLevel
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.requests import Request

from callgate.core.clients import Client
from callgate.core.sessions import Session
from callgate.dispatch.clients import client_of
from callgate.dispatch.permission.confirmations import Confirmer
from callgate.runtime import Runtime
from callgate.surfaces.mcp.pending_requests import Context

SESSION_HEADER = "mcp-session-id"
_MOST = 1_000
"""Clients at once; the one that was quiet for longest goes."""
_LONGEST_NAME = 60

_log = logging.getLogger("callgate.mcp")


class Wish(NamedTuple):
    """What a client may say of the session that it wants."""

    workspace: str | None = None
    mode: str | None = None


OpenSession = Callable[[Wish], Session]
"""Raises a `ToolError` where it may not be had."""


class ClientSession:
    def __init__(self, key: str, session: Session) -> None:
        self.key = key
        self.session = session
        self.level: LoggingLevel = "info"
        """From which on a client of the first generation hears of log lines."""
        self.watched: set[str] = set()
        """Resources whose changes it wants to hear of."""
        self.channel: ServerSession | None = None
        """To tell it something outside of a request."""
        self.attached = ExitStack()


class ClientSessions:
    def __init__(self, runtime: Runtime, open_session: OpenSession, confirmer: Confirmer) -> None:
        self._runtime = runtime
        self._open_session = open_session
        self._confirmer = confirmer
        self._client_sessions: dict[str, ClientSession] = {}
        """The one that came last is at the end."""

    def __iter__(self) -> Iterator[ClientSession]:
        return iter(list(self._client_sessions.values()))

    def of(self, ctx: Context) -> ClientSession:
        """Raises a `ToolError` where the client may not have the session that it wants."""
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
        client_session.attached.enter_context(self._runtime.attach(self._confirmer, session.id))
        _log.info("%s is here as session %s", name[:_LONGEST_NAME], session.id)
        return client_session

    def crowded(self) -> list[ClientSession]:
        """Those that have to go, for there are too many."""
        return list(self._client_sessions.values())[: max(0, len(self._client_sessions) - _MOST)]

    async def end(self, key: str) -> None:
        """Stop what the client has under way, and forget what was answered for it."""
        client_session = self._client_sessions.pop(key, None)
        if client_session is not None:
            client_session.attached.close()
            await self._runtime.close_session(client_session.session)

    async def close(self) -> None:
        for key in list(self._client_sessions):
            await self.end(key)


def _client(ctx: Context, name: str | None) -> Client:
    """Whoever started us, or connects to us; the name is the client's own word."""
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
