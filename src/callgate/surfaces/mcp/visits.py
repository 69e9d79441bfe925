"""Which of our sessions a request belongs to.

    stdio                     one session: whoever started us is the client
    HTTP with a session id    one for each id, until the client ends it
    HTTP without (2026-07-28) one for each name that a client gives itself, and workspace

A session is what grants, the audit record and the dashboard know: an answer "for this session"
holds as long as the visit does.
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
from callgate.dispatch.confirmations import Confirmer
from callgate.runtime import Runtime
from callgate.surfaces.mcp.exchanges import Context

SESSION_HEADER = "mcp-session-id"
_MOST = 1_000
"""Visits at once; the one that was quiet for longest goes."""
_LONGEST_NAME = 60

_log = logging.getLogger("callgate.mcp")


class Wish(NamedTuple):
    """What a client may say of the session that it wants."""

    workspace: str | None = None
    mode: str | None = None


OpenSession = Callable[[Wish], Session]
"""Raises a `ToolError` where it may not be had."""


class Visit:
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


class Visits:
    def __init__(self, runtime: Runtime, open_session: OpenSession, confirmer: Confirmer) -> None:
        self._runtime = runtime
        self._open_session = open_session
        self._confirmer = confirmer
        self._visits: dict[str, Visit] = {}
        """The one that came last is at the end."""

    def __iter__(self) -> Iterator[Visit]:
        return iter(list(self._visits.values()))

    def of(self, ctx: Context) -> Visit:
        """Raises a `ToolError` where the client may not have the session that it wants."""
        key, wish = _key(ctx)
        visit = self._visits.pop(key, None)
        if visit is None:
            visit = self._begin(key, wish, ctx)
        self._visits[key] = visit
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            visit.channel = ctx.session
        return visit

    def _begin(self, key: str, wish: Wish, ctx: Context) -> Visit:
        session = self._open_session(wish)
        client = ctx.session.client_params
        name = "client" if client is None else client.client_info.name
        session.client = _client(ctx, None if client is None else client.client_info.name)
        session.title = f"mcp {name[:_LONGEST_NAME]}"
        visit = Visit(key, session)
        visit.attached.enter_context(self._runtime.attach(self._confirmer, session.id))
        _log.info("%s is here as session %s", name[:_LONGEST_NAME], session.id)
        return visit

    def crowded(self) -> list[Visit]:
        """Those that have to go, for there are too many."""
        return list(self._visits.values())[: max(0, len(self._visits) - _MOST)]

    async def end(self, key: str) -> None:
        """Stop what the client has under way, and forget what was answered for it."""
        visit = self._visits.pop(key, None)
        if visit is not None:
            visit.attached.close()
            await self._runtime.close_session(visit.session)

    async def close(self) -> None:
        for key in list(self._visits):
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
