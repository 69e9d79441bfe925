"""The servers that share the store: this one, all of them, and what they tell each other."""

from __future__ import annotations

import time

from callgate.core.errors import ToolErrorClass
from callgate.surfaces.http.contexts import Context
from callgate.surfaces.http.operations import Operation, Request
from callgate.surfaces.http.problems import Problem
from callgate.surfaces.http.routes.rows import open_rows
from callgate.surfaces.http.routes.values import CallRow, Input, Value
from callgate.surfaces.http.servers.directory import Servers
from callgate.surfaces.http.servers.listing import (
    ListedServer,
    ServerState,
    list_others,
    listed,
)


class ServerList(Value, frozen=True, kw_only=True):
    servers: list[ListedServer]


class CallsQuery(Input, frozen=True, kw_only=True):
    session: str | None = None


class RunningCalls(Value, frozen=True, kw_only=True):
    calls: list[CallRow]


async def get_server(context: Context, request: Request) -> ServerState:
    servers = _servers(context)
    about = servers.about
    return ServerState(
        id=await servers.owner(),
        label=about.label,
        url=about.url,
        version=about.version,
        started_at=about.started_at,
        now=time.time(),
        sessions=context.sessions.count,
        calls=len(context.runtime.in_flight()),
        people=sum(about.people.values()),
    )


async def list_servers(context: Context, request: Request) -> ServerList:
    """Every living server, each asked for its state."""
    servers = _servers(context)
    assert context.carrier is not None
    own = listed(await get_server(context, request), 0.0, here=True)
    others = await list_others(servers, context.carrier)
    return ServerList(servers=sorted([own, *others], key=lambda each: each.started_at))


async def list_running(context: Context, request: Request) -> RunningCalls:
    query: CallsQuery = request.query
    return RunningCalls(calls=open_rows((), context.runtime.in_flight(), query.session))


def _servers(context: Context) -> Servers:
    if context.servers is None:
        message = "This instance is not announced to others."
        raise Problem(404, ToolErrorClass.NOT_FOUND, message, "not_announced")
    return context.servers


OPERATIONS = (
    Operation(
        "GET",
        "/v1/servers",
        "The servers that share the store.",
        list_servers,
        ServerList,
        errors=(404, 503),
    ),
    Operation("GET", "/v1/server", "This server.", get_server, ServerState, errors=(404, 503)),
    Operation(
        "GET",
        "/v1/server/calls",
        "The calls that run in this server.",
        list_running,
        RunningCalls,
        query=CallsQuery,
    ),
)
