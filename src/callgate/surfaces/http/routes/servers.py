"""The servers that share the store: this one, all of them, and what they tell each other."""

from __future__ import annotations

import asyncio
import time

import msgspec

from callgate.core.errors import ToolErrorClass
from callgate.surfaces.http.contexts import Context
from callgate.surfaces.http.operations import Operation, Request
from callgate.surfaces.http.problems import Problem
from callgate.surfaces.http.routes.rows import open_rows
from callgate.surfaces.http.routes.values import CallRow, Input, Value
from callgate.surfaces.http.servers.directory import MOST_SKEW_S, Server, Servers

_LIMIT_S = 2.0
"""How long another server may take to say how it is."""


class ServerState(Value, frozen=True, kw_only=True):
    """A server, as it describes itself."""

    id: str
    """The store's name of its process, as the owner of sessions."""
    label: str
    url: str
    version: str
    started_at: float
    now: float
    """Its clock."""
    sessions: int
    """Those that it owns and serves."""
    calls: int
    """Those that have not ended."""
    people: int
    """Who is there to be asked."""


class ListedServer(Value, frozen=True, kw_only=True):
    id: str
    label: str
    url: str
    version: str
    started_at: float
    here: bool
    """It is the one that answers."""
    healthy: bool
    """False: it lives, as far as the store can tell, and does not answer."""
    sessions: int | None
    calls: int | None
    people: int
    skew_s: float | None
    """How far its clock is ahead of the one that answers."""
    warning: str | None


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
    own = _listed(await get_server(context, request), 0.0, here=True)
    others = await asyncio.gather(
        *(_ask(context, each) for each in await _servers(context).others())
    )
    return ServerList(servers=sorted([own, *others], key=lambda each: each.started_at))


async def list_running(context: Context, request: Request) -> RunningCalls:
    query: CallsQuery = request.query
    return RunningCalls(calls=open_rows((), context.runtime.in_flight(), query.session))


def _servers(context: Context) -> Servers:
    if context.servers is None:
        message = "This instance is not announced to others."
        raise Problem(404, ToolErrorClass.NOT_FOUND, message, "not_announced")
    return context.servers


async def _ask(context: Context, server: Server) -> ListedServer:
    assert context.carrier is not None
    begun = time.time()
    answer = await context.carrier.ask(server, "/v1/server", _LIMIT_S)
    if answer is None:
        return _silent(server)
    state = msgspec.json.decode(answer, type=ServerState)
    skew_s = state.now - (begun + time.time()) / 2
    _servers(context).note_skew(server.owner, skew_s)
    return _listed(state, skew_s, here=False)


def _listed(state: ServerState, skew_s: float, *, here: bool) -> ListedServer:
    warning = None
    if abs(skew_s) > MOST_SKEW_S:
        warning = f"Its clock differs by {skew_s:+.1f} s: set the clocks of the servers right."
    return ListedServer(
        id=state.id,
        label=state.label,
        url=state.url,
        version=state.version,
        started_at=state.started_at,
        here=here,
        healthy=True,
        sessions=state.sessions,
        calls=state.calls,
        people=state.people,
        skew_s=round(skew_s, 3),
        warning=warning,
    )


def _silent(server: Server) -> ListedServer:
    about = server.about
    return ListedServer(
        id=server.owner,
        label=about.label,
        url=about.url,
        version=about.version,
        started_at=about.started_at,
        here=False,
        healthy=False,
        sessions=None,
        calls=None,
        people=sum(about.people.values()),
        skew_s=None,
        warning="It lives, and does not answer at its address.",
    )


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
