"""The ASGI application of an instance, and its server.

    Guard ---> file | operation | stream | `/mcp`

The first visitor loads all of it, and the first MCP client loads the MCP endpoint.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from starlette.routing import Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from callgate.config.home import Home
from callgate.core.errors import ToolErrorClass, ToolRegistrationError
from callgate.core.tasks import start_task
from callgate.feature import port
from callgate.features.web.contexts import Context, Operation, ParsedRequest, Routes
from callgate.features.web.guard import STREAM, AccessGuard
from callgate.features.web.operations import Endpoint, describe
from callgate.features.web.responses import (
    HttpResponse,
    Problem,
    content_length,
    draining,
    encode,
    not_found,
    problem_response,
    respond,
)
from callgate.features.web.routes import (
    approvals,
    authzen,
    calls,
    changes,
    hosts,
    instance,
    policy,
    sessions,
    stats,
)
from callgate.features.web.server import HttpServer
from callgate.features.web.websocket import PING_S, Stream

if TYPE_CHECKING:
    from callgate.features.mcp.server.local import Endpoint as McpServer


MCP = "/mcp"
_SESSION = b"mcp-session-id"
_log = logging.getLogger("callgate.http")


class McpEndpoint:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._opening: asyncio.Task[McpServer] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._context.draining.has_begun and not _has_session(scope):
            await respond(problem_response(draining()), scope, receive, send)
            return
        if self._opening is None:
            self._opening = start_task(self._open())
        try:
            endpoint = await asyncio.shield(self._opening)
        except ImportError:
            missing = "The package mcp is not installed. Run: pip install 'mcp>=2.3'"
            await respond(_unavailable(missing), scope, receive, send)
            return
        except Exception:  # the instance continues without it
            _log.exception("MCP could not be started")
            broken = "MCP could not be started; see the log of the instance."
            await respond(_unavailable(broken), scope, receive, send)
            return
        await endpoint(scope, receive, send)

    async def _open(self) -> McpServer:
        open_endpoint, context = await asyncio.to_thread(_load), self._context
        return await open_endpoint(
            context.runtime,
            context.sessions.fresh,
            home=context.served.home,
            widest=context.served.mode,
            skills=context.skills,
            search_above=context.served.search_above,
        )

    async def close(self) -> None:
        """Idempotent."""
        if self._opening is None:
            return
        if not self._opening.done():
            self._opening.cancel()
        await asyncio.wait([self._opening])
        if not self._opening.cancelled() and self._opening.exception() is None:
            await self._opening.result().close()


def _has_session(scope: Scope) -> bool:
    """Whether the request belongs to a session, whose running calls may need it."""
    return any(key == _SESSION for key, _ in scope["headers"])


def _unavailable(message: str) -> HttpResponse:
    problem = Problem(503, ToolErrorClass.EXECUTION_ERROR, message, "mcp_unavailable")
    return problem_response(problem)


def _load() -> Callable[..., Awaitable[McpServer]]:
    """Import the MCP server. Slow, so it runs in a thread."""
    from callgate.features.mcp.server.local import open_endpoint  # lazy: heavy  # noqa: PLC0415

    return open_endpoint


STATIC = os.path.join(os.path.dirname(__file__), "static")
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
    ".map": "application/json",
    ".webmanifest": "application/manifest+json",
}
_PAGE = "index.html"


class AssetFile(NamedTuple):
    path: str
    media_type: str


def find_files(root: str = STATIC) -> Mapping[str, AssetFile]:
    """Return the served files by URL path; files of unknown types are left out."""
    found: dict[str, AssetFile] = {}
    for directory, _, names in os.walk(root):
        for name in names:
            media_type = _TYPES.get(os.path.splitext(name)[1])
            if media_type is not None and not name.startswith("."):
                path = os.path.join(directory, name)
                found["/" + os.path.relpath(path, root)] = AssetFile(path, media_type)
    if f"/{_PAGE}" in found:
        found["/"] = found.pop(f"/{_PAGE}")
    return found


class Files:
    def __init__(self, files: Mapping[str, AssetFile]) -> None:
        self._files = files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await respond(self._response(scope), scope, receive, send)

    def _response(self, scope: Scope) -> HttpResponse:
        file = self._files[scope["path"]]
        if scope["method"] not in ("GET", "HEAD"):
            return HttpResponse(405, [(b"allow", b"GET, HEAD"), content_length(b"")])
        try:
            with open(file.path, "rb") as opened:
                content = opened.read()
        except OSError:  # deleted since the start
            return HttpResponse(404, [content_length(b"")])
        tag = b'"' + hashlib.sha256(content).hexdigest()[:32].encode() + b'"'
        headers = [(b"etag", tag), (b"cache-control", b"no-cache")]
        if tag in _known(scope):
            return HttpResponse(304, headers)
        headers += [(b"content-type", file.media_type.encode()), content_length(content)]
        return HttpResponse(200, headers, b"" if scope["method"] == "HEAD" else content)


def _known(scope: Scope) -> list[bytes]:
    given = [value for key, value in scope["headers"] if key == b"if-none-match"]
    return [each.strip().removeprefix(b"W/") for line in given for each in line.split(b",")]


def _added() -> Routes:
    """Return the routes of the feature `fleet`."""
    add = port("http_routes")
    return Routes() if add is None else add()


_ADDED = _added()
_RESOURCES: tuple[Operation, ...] = (
    *instance.OPERATIONS,
    *hosts.TOOL_OPERATIONS,
    *calls.OPERATIONS,
    *sessions.OPERATIONS,
    *sessions.TURN_OPERATIONS,
    *approvals.OPERATIONS,
    *changes.CHANGE_OPERATIONS,
    *changes.UNDO_OPERATIONS,
    *calls.AUDIT_OPERATIONS,
    *stats.OPERATIONS,
    *policy.OPERATIONS,
    *authzen.OPERATIONS,
    *instance.METRICS_OPERATIONS,
    *approvals.RULE_OPERATIONS,
    *policy.SUGGESTION_OPERATIONS,
    *hosts.OPERATIONS,
    *_ADDED.operations,
)


async def _get_description(context: Context, request: ParsedRequest) -> msgspec.Raw:
    return msgspec.Raw(encode(describe(OPERATIONS)))


OPERATIONS: tuple[Operation, ...] = (
    *_RESOURCES,
    Operation("GET", "/openapi.json", "This description.", _get_description, dict[str, Any]),
)


def make_application(
    context: Context,
    *,
    ping_s: float = PING_S,
    files: Mapping[str, AssetFile] | None = None,
    mcp: ASGIApp | None = None,
) -> ASGIApp:
    """Return the application. `mcp` answers at `/mcp`, and is not part of the description."""
    files = find_files() if files is None else files
    placed = sorted(
        ((path, operation) for operation in OPERATIONS for path in operation.paths),
        key=lambda each: each[0],
    )
    routes: list[Route | WebSocketRoute] = [
        Route(path, Endpoint(context, [operation for _, operation in some]), methods=None)
        for path, some in groupby(placed, key=lambda each: each[0])
    ]
    routes.append(WebSocketRoute(STREAM, Stream(context, ping_s)))
    routes += [WebSocketRoute(path, make(context)) for path, make in _ADDED.sockets.items()]
    if mcp is not None:
        routes.append(Route(MCP, mcp, methods=None))
    serve_file = Files(files)
    router = Router(routes, redirect_slashes=False, default=_no_route)

    async def inside(scope: Scope, receive: Receive, send: Send) -> None:
        is_file = scope["type"] == "http" and scope["path"] in files
        await (serve_file if is_file else router)(scope, receive, send)

    unlocked = [path for each in OPERATIONS if each.unlocked for path in each.paths]
    open_paths = [*unlocked, *files]
    return AccessGuard(inside, context, open_paths, _ADDED.sockets)


async def _no_route(scope: Scope, receive: Receive, send: Send) -> None:
    await respond(problem_response(not_found("path")), scope, receive, send)


_TURNS_S = 0.2
"""Time limit for the end of turns when the instance stops."""


class Serving:
    def __init__(self, context: Context) -> None:
        self.context = context
        try:
            changes.register_undo(context.runtime, context.history)
        except ToolRegistrationError as error:  # a tool of the user has the name
            _log.warning("undo over HTTP is unavailable: %s", error)
        if context.refresh is not None:
            try:
                approvals.register_save_rule(
                    context.runtime, Home(context.served.home), context.refresh
                )
            except ToolRegistrationError as error:
                _log.warning("rules cannot be saved over HTTP: %s", error)
        self._mcp = McpEndpoint(context)
        application = make_application(context, mcp=self._mcp, **context.options)
        self._server = HttpServer(application, unfinished=context.unfinished)

    def start(self, listening: socket.socket) -> None:
        self._server.start(listening)

    def stop_accepting(self) -> None:
        self._server.stop_accepting()

    async def close(self) -> None:
        await self.context.sessions.stop(_TURNS_S)
        await self._mcp.close()
        await self._server.close()
        self.context.fanout.close()
        await self.context.peers.close()
