"""All that answers: the table of routes, the files, the stream, and the wall around them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

import msgspec
from starlette.routing import Route, Router, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from callgate.surfaces.http.contexts import Context
from callgate.surfaces.http.encoding import encode
from callgate.surfaces.http.endpoints import Endpoint
from callgate.surfaces.http.files import File, Files, find_files
from callgate.surfaces.http.guard import STREAM, WORKERS, Guard
from callgate.surfaces.http.mcp_endpoint import MCP
from callgate.surfaces.http.openapi import describe
from callgate.surfaces.http.operations import Operation, Request
from callgate.surfaces.http.problems import not_found
from callgate.surfaces.http.responses import problem_response, respond
from callgate.surfaces.http.routes import (
    audit,
    authzen,
    calls,
    confirmations,
    hosts,
    instance,
    metrics,
    policy,
    saved_rules,
    servers,
    sessions,
    stats,
    suggestions,
    tools,
    turns,
    undo,
    workers,
)
from callgate.surfaces.http.websocket import PING_S, Stream
from callgate.surfaces.http.worker_socket import WorkerSocket

_RESOURCES: tuple[Operation, ...] = (
    *instance.OPERATIONS,
    *tools.OPERATIONS,
    *calls.OPERATIONS,
    *sessions.OPERATIONS,
    *turns.OPERATIONS,
    *confirmations.OPERATIONS,
    *undo.OPERATIONS,
    *audit.OPERATIONS,
    *stats.OPERATIONS,
    *policy.OPERATIONS,
    *authzen.OPERATIONS,
    *metrics.OPERATIONS,
    *saved_rules.OPERATIONS,
    *suggestions.OPERATIONS,
    *hosts.OPERATIONS,
    *servers.OPERATIONS,
    *workers.OPERATIONS,
)


async def _get_description(context: Context, request: Request) -> msgspec.Raw:
    return msgspec.Raw(encode(describe(OPERATIONS)))


OPERATIONS: tuple[Operation, ...] = (
    *_RESOURCES,
    Operation("GET", "/openapi.json", "This description.", _get_description, dict[str, Any]),
)


def make_application(
    context: Context,
    *,
    ping_s: float = PING_S,
    files: Mapping[str, File] | None = None,
    mcp: ASGIApp | None = None,
) -> ASGIApp:
    """`mcp` answers at `/mcp`: it is no operation, others describe it."""
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
    routes.append(WebSocketRoute(WORKERS, WorkerSocket(context)))
    if mcp is not None:
        routes.append(Route(MCP, mcp, methods=None))
    serve_file = Files(files)
    router = Router(routes, redirect_slashes=False, default=_no_route)

    async def inside(scope: Scope, receive: Receive, send: Send) -> None:
        is_file = scope["type"] == "http" and scope["path"] in files
        await (serve_file if is_file else router)(scope, receive, send)

    unlocked = [path for each in OPERATIONS if each.unlocked for path in each.paths]
    open_paths = [*unlocked, *files]
    return Guard(inside, context.access, context.names, open_paths, context.servers)


async def _no_route(scope: Scope, receive: Receive, send: Send) -> None:
    await respond(problem_response(not_found("path")), scope, receive, send)
