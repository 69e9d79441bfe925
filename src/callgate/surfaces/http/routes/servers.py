"""The servers that share the store: this one, all of them, and what they tell each other."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Annotated, Literal

from msgspec import Meta

from callgate.audit.reading import Filter
from callgate.core.errors import ToolErrorClass
from callgate.core.task_sets import start_task
from callgate.surfaces.http.contexts import Context
from callgate.surfaces.http.operations import Operation, Request
from callgate.surfaces.http.owners import SETTLED
from callgate.surfaces.http.problems import Problem, forbidden, not_found
from callgate.surfaces.http.responses import Streamed
from callgate.surfaces.http.routes import records
from callgate.surfaces.http.routes.calls import Limit
from callgate.surfaces.http.routes.rows import open_rows
from callgate.surfaces.http.routes.values import CallRow, Input, Value
from callgate.surfaces.http.servers.directory import Servers
from callgate.surfaces.http.servers.listing import (
    ListedServer,
    ServerState,
    list_others,
    listed,
)
from callgate.surfaces.http.stream.delta_streams import DeltaStream


class RecordsQuery(Input, frozen=True, kw_only=True):
    text: str | None = None
    tool: str | None = None
    session: str | None = None
    call: str | None = None
    decision: str | None = None
    errors: str | None = None
    """Classes, with commas between them."""
    without_error: bool = False
    since_ms: int | None = None
    limit: Limit = 100
    before: str | None = None


class ServerList(Value, frozen=True, kw_only=True):
    servers: list[ListedServer]


class CallsQuery(Input, frozen=True, kw_only=True):
    session: str | None = None


class RunningCalls(Value, frozen=True, kw_only=True):
    calls: list[CallRow]


class Settled(Value, frozen=True, kw_only=True):
    settled: Literal[True] = True


class DeltaFilter(Input, frozen=True, kw_only=True):
    sessions: list[str] | None
    """None: all."""


class NewDeltaStream(DeltaFilter, frozen=True, kw_only=True):
    id: Annotated[str, Meta(min_length=16, max_length=64)]


class Changed(Value, frozen=True, kw_only=True):
    changed: Literal[True] = True


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


async def get_settled(context: Context, request: Request) -> Settled:
    """Answers when all that happened here so far is in the store, for who reads it elsewhere."""
    await context.runtime.conversations.flush()
    return Settled()


async def open_deltas(context: Context, request: Request) -> Streamed:
    """What is not kept, of the sessions that clients of another server watch."""
    if not request.carried:
        raise forbidden("Only another server reads this.", "carried")
    body: NewDeltaStream = request.body
    stream = DeltaStream(context.runtime, _filter(body.sessions))
    context.delta_streams[body.id] = stream
    return Streamed(_deltas(context, request, body.id, stream), "application/x-ndjson")


async def _deltas(
    context: Context, request: Request, id: str, stream: DeltaStream
) -> AsyncIterator[bytes]:
    async def end_with_client() -> None:
        await request.disconnected()
        stream.close()

    leaving = start_task(end_with_client())
    try:
        async for line in stream.lines():
            yield line
    finally:
        leaving.cancel()
        stream.close()
        context.delta_streams.pop(id, None)


async def change_deltas(context: Context, request: Request) -> Changed:
    body: DeltaFilter = request.body
    stream = context.delta_streams.get(request.path["id"])
    if stream is None or not request.carried:
        raise not_found("stream")
    stream.sessions = _filter(body.sessions)
    return Changed()


async def list_records(context: Context, request: Request) -> records.RecordPage:
    query: RecordsQuery = request.query
    wanted = Filter(
        text=query.text,
        tool=query.tool,
        session=query.session,
        call=query.call,
        decision=query.decision,
        error_classes=None if query.errors is None else query.errors.split(","),
        without_error=query.without_error,
        since_ms=query.since_ms,
    )
    return await records.read_page(context, wanted, query.limit, query.before)


def _filter(sessions: list[str] | None) -> frozenset[str] | None:
    return None if sessions is None else frozenset(sessions)


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
    Operation(
        "GET",
        "/v1/server",
        "This server.",
        get_server,
        ServerState,
        errors=(404, 503),
        for_servers=True,
    ),
    Operation(
        "GET",
        "/v1/server/calls",
        "The calls that run in this server.",
        list_running,
        RunningCalls,
        query=CallsQuery,
        for_servers=True,
    ),
    Operation(
        "GET",
        records.TARGET,
        "For another server: calls on record in this server's log.",
        list_records,
        records.RecordPage,
        query=RecordsQuery,
        for_servers=True,
    ),
    Operation(
        "GET",
        SETTLED,
        "Answers when what happened in this server is in the store.",
        get_settled,
        Settled,
        for_servers=True,
    ),
    Operation(
        "POST",
        "/v1/server/deltas",
        "For another server: what is not kept, line by line.",
        open_deltas,
        None,
        body=NewDeltaStream,
        errors=(403,),
        for_servers=True,
        while_draining=True,
    ),
    Operation(
        "POST",
        "/v1/server/deltas/{id}",
        "For another server: of which sessions.",
        change_deltas,
        Changed,
        body=DeltaFilter,
        errors=(404,),
        for_servers=True,
        while_draining=True,
    ),
)
