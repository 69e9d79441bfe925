"""HTTP operations on servers and between them, and the WebSocket for a remote worker.

    token, pool, name -> accepted -> greeted -> frames both ways, pings -> gone: its calls end
         401, 403, 400, 426

One message is one frame of `protocol.host_v1.workers`; the worker is the host.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from typing import Annotated, Literal
from urllib.parse import parse_qs

from msgspec import UNSET, Meta, UnsetType
from starlette.types import Receive, Scope, Send

from callgate.audit.reading import Filter
from callgate.core.errors import ToolErrorClass
from callgate.core.sessions import is_pool_name
from callgate.core.stores import StoreError
from callgate.core.tasks import start_task
from callgate.core.version import __version__
from callgate.features.fleet.carrying import ListedServer, ServerState, list_others, listed
from callgate.features.fleet.deltas import DeltaStream
from callgate.features.fleet.directory import WorkerEntry, connected_workers
from callgate.features.fleet.peers import SETTLED, FleetPeers
from callgate.features.fleet.pools import CannotJoin, WorkerIdentity, WorkerLink, WorkerPools
from callgate.features.web.contexts import Context, Operation, ParsedRequest, Routes
from callgate.features.web.frames import packed
from callgate.features.web.guard import CONNECTION
from callgate.features.web.responses import (
    Problem,
    Streamed,
    bad_request,
    forbidden,
    not_found,
    problem_of,
    problem_response,
    respond,
)
from callgate.features.web.routes import records
from callgate.features.web.routes.records import open_rows
from callgate.features.web.routes.values import CallRow, Input, Limit, Value
from callgate.features.web.server import WEBSOCKET, WebSocketProtocol
from callgate.protocol.host_v1.workers import VERSION
from callgate.protocol.strict_json import MAX_LINE


class RecordsQuery(Input, frozen=True, kw_only=True):
    text: str | None = None
    tool: str | None = None
    session: str | None = None
    call: str | None = None
    decision: str | None = None
    errors: str | None = None
    """Error classes, separated by commas."""
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
    """None: all sessions."""


class NewDeltaStream(DeltaFilter, frozen=True, kw_only=True):
    id: Annotated[str, Meta(min_length=16, max_length=64)]


class Changed(Value, frozen=True, kw_only=True):
    changed: Literal[True] = True


async def get_server(context: Context, request: ParsedRequest) -> ServerState:
    servers = _peers(context).servers
    about = servers.about
    return ServerState(
        id=await servers.owner(),
        label=about.label,
        url=about.url,
        version=about.version,
        started_at=about.started_at,
        now=time.time(),
        sessions=context.sessions.count,
        calls=len(context.runtime.calls.in_flight()),
        people=sum(about.people.values()),
    )


async def list_servers(context: Context, request: ParsedRequest) -> ServerList:
    """List every live server, with its present state."""
    peers = _peers(context)
    this = listed(await get_server(context, request), 0.0, here=True)
    others = await list_others(peers.servers, peers.carrier)
    return ServerList(servers=sorted([this, *others], key=lambda each: each.started_at))


async def list_running(context: Context, request: ParsedRequest) -> RunningCalls:
    query: CallsQuery = request.query
    return RunningCalls(calls=open_rows((), context.runtime.calls.in_flight(), query.session))


async def get_settled(context: Context, request: ParsedRequest) -> Settled:
    """Answer when all events of this server so far are in the store, for readers elsewhere."""
    await context.runtime.sessions.conversations.flush()
    return Settled()


async def open_deltas(context: Context, request: ParsedRequest) -> Streamed:
    """Stream unstored events of the sessions that clients of another server watch."""
    if not request.carried:
        raise forbidden("Only another server may read this.", "carried")
    body: NewDeltaStream = request.body
    stream = DeltaStream(context.runtime, _filter(body.sessions))
    streams = _peers(context).delta_streams
    streams[body.id] = stream
    return Streamed(_deltas(streams, request, body.id, stream), "application/x-ndjson")


async def _deltas(
    streams: dict[str, DeltaStream], request: ParsedRequest, id: str, stream: DeltaStream
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
        streams.pop(id, None)


async def change_deltas(context: Context, request: ParsedRequest) -> Changed:
    body: DeltaFilter = request.body
    stream = _peers(context).delta_streams.get(request.path["id"])
    if stream is None or not request.carried:
        raise not_found("stream")
    stream.sessions = _filter(body.sessions)
    return Changed()


async def list_records(context: Context, request: ParsedRequest) -> records.RecordPage:
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


def _peers(context: Context) -> FleetPeers:
    if not isinstance(context.peers, FleetPeers):
        message = "This instance is not announced to other servers."
        raise Problem(404, ToolErrorClass.NOT_FOUND, message, "not_announced")
    return context.peers


SERVER_OPERATIONS = (
    Operation(
        "GET",
        "/v1/servers",
        "List the servers that share the store.",
        list_servers,
        ServerList,
        errors=(404, 503),
    ),
    Operation(
        "GET",
        "/v1/server",
        "Describe this server.",
        get_server,
        ServerState,
        errors=(404, 503),
        for_servers=True,
    ),
    Operation(
        "GET",
        "/v1/server/calls",
        "List the running calls of this server.",
        list_running,
        RunningCalls,
        query=CallsQuery,
        for_servers=True,
    ),
    Operation(
        "GET",
        records.TARGET,
        "For other servers: search this server's audit log.",
        list_records,
        records.RecordPage,
        query=RecordsQuery,
        for_servers=True,
    ),
    Operation(
        "GET",
        SETTLED,
        "Answer when all events of this server are in the store.",
        get_settled,
        Settled,
        for_servers=True,
    ),
    Operation(
        "POST",
        "/v1/server/deltas",
        "For other servers: stream unstored events, one per line.",
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
        "For other servers: choose the sessions of a stream.",
        change_deltas,
        Changed,
        body=DeltaFilter,
        errors=(404,),
        for_servers=True,
        while_draining=True,
    ),
)


class Worker(Value, frozen=True, kw_only=True):
    pool: str
    name: str
    generation: int
    """Increases with each connection; results of an older connection do not count."""
    server: str
    """URL of its server."""
    here: bool
    """Whether it is connected to this server, which then knows `calls` and `silent_s`."""
    version: str
    platform: str
    workspaces: list[str]
    tools: list[str]
    slots: int
    sandbox: str
    connected_at: float
    calls: int | UnsetType = UNSET
    """Number of running calls."""
    silent_s: float | UnsetType = UNSET
    """Seconds since its last message."""


class WorkerList(Value, frozen=True, kw_only=True):
    workers: list[Worker]


async def list_workers(context: Context, request: ParsedRequest) -> WorkerList:
    store = await context.runtime.sessions.store()
    peers = context.peers
    links = peers.workers.pools.links() if isinstance(peers, FleetPeers) else []
    here = {(each.identity.key, each.generation): each for each in links}
    urls = await _urls(context)
    return WorkerList(
        workers=[
            _worker(
                each,
                here.get((f"{each.pool}/{each.name}", each.generation)),
                urls.get(each.server, each.server),
            )
            for each in await connected_workers(store)
        ]
    )


async def _urls(context: Context) -> dict[str, str]:
    """Return the URLs of the servers, by owner."""
    if not isinstance(context.peers, FleetPeers):
        return {}
    urls = {(await context.runtime.sessions.store()).owner: context.names.servers_url}
    return urls | {each.owner: each.url for each in await context.peers.others()}


def _worker(entry: WorkerEntry, link: WorkerLink | None, url: str) -> Worker:
    return Worker(
        pool=entry.pool,
        name=entry.name,
        generation=entry.generation,
        server=url,
        here=link is not None,
        version=entry.version,
        platform=entry.platform,
        workspaces=list(entry.workspaces),
        tools=list(entry.tools),
        slots=entry.slots,
        sandbox=entry.sandbox,
        connected_at=entry.connected_at,
        calls=UNSET if link is None else link.calls,
        silent_s=UNSET if link is None else round(link.heard_s(), 1),
    )


WORKER_OPERATIONS = (
    Operation(
        "GET",
        "/v1/workers",
        "List the connected workers.",
        list_workers,
        WorkerList,
    ),
)


PATH = "/v1/workers/connect"
PING_S = 2.0
SILENT_S = 10.0
"""Seconds of silence after which a worker counts as lost."""
_LONGEST_REASON = 120
"""Maximum number of bytes of the reason in a WebSocket close frame."""
_PROCESS = re.compile(r"[0-9a-f]{8,64}\Z")
NOT_JOINED = 4400


class WorkerSocket:
    """The WebSocket endpoint."""

    def __init__(
        self, context: Context, *, ping_s: float = PING_S, silent_s: float = SILENT_S
    ) -> None:
        self._context = context
        self._ping_s = ping_s
        self._silent_s = silent_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            pools = self._pools()
            identity = await _identify(pools, scope)
        except (Problem, StoreError) as error:
            problem = problem_of(error)
            assert problem is not None
            await respond(problem_response(problem), scope, receive, send)
            return
        pending = scope.get("state", {}).get(CONNECTION)
        if pending is not None:
            pending.admit()
        websocket: WebSocketProtocol = scope["extensions"][WEBSOCKET]
        await receive()  # websocket.connect
        await send({"type": "websocket.accept"})
        websocket.take_large(MAX_LINE + 1)
        await self._serve(pools, identity, websocket, receive)

    def _pools(self) -> WorkerPools:
        peers = self._context.peers
        if not isinstance(peers, FleetPeers):
            raise not_found("path")
        return peers.workers.pools

    async def _serve(
        self,
        pools: WorkerPools,
        identity: WorkerIdentity,
        websocket: WebSocketProtocol,
        receive: Receive,
    ) -> None:
        link = WorkerLink(
            identity, lambda frame: websocket.put(packed(frame.rstrip(b"\n"))), websocket.end
        )
        link.heard_s = lambda: websocket.silent_s
        try:
            async with asyncio.TaskGroup() as group:
                others = [
                    group.create_task(_join(pools, link)),
                    group.create_task(self._watch(link, websocket)),
                ]
                while (message := await receive())["type"] == "websocket.receive":
                    text, data = message.get("text"), message.get("bytes")
                    link.receive(text.encode() if text is not None else data or b"")
                link.lose()
                for each in others:
                    each.cancel()
        finally:
            await pools.leave(link)

    async def _watch(self, link: WorkerLink, websocket: WebSocketProtocol) -> None:
        """Send pings, and disconnect a silent worker."""
        while not link.is_lost:
            websocket.ping()
            await asyncio.sleep(self._ping_s)
            if websocket.silent_s > self._silent_s:
                link.end(4408, "silent")


async def _join(pools: WorkerPools, link: WorkerLink) -> None:
    try:
        await pools.join(link)
    except (CannotJoin, StoreError) as error:
        reason = str(error).encode()[:_LONGEST_REASON].decode("utf-8", "ignore")
        link.end(NOT_JOINED, reason)


async def _identify(pools: WorkerPools, scope: Scope) -> WorkerIdentity:
    """Return the identity of a worker that connects. Raises `Problem`."""
    query = parse_qs(scope["query_string"].decode("latin-1"))
    given = {key: found[0] for key, found in query.items() if len(found) == 1}
    protocol, version = given.get("protocol", ""), given.get("version", "?")[:40]
    if protocol != str(VERSION):
        raise Problem(
            426,
            ToolErrorClass.PROTOCOL_ERROR,
            f"This server (callgate {__version__}) speaks version {VERSION} of the worker protocol,"
            f" the worker (callgate {version}) version {protocol[:20] or 'none'}: run the same"
            " callgate on both.",
            "version",
        )
    pool, name, process = (given.get(key, "") for key in ("pool", "name", "process"))
    for kind, value in (("pool", pool), ("worker", name)):
        if not is_pool_name(value):
            raise bad_request(f"{value[:80]!r} is not a valid name of a {kind}.", "name")
    if not _PROCESS.match(process):
        raise bad_request("The parameter process is missing or invalid.", "process")
    try:
        return await pools.identify(_token(scope), pool, name, process)
    except CannotJoin as error:
        raise forbidden(str(error), "worker_token") from None


def _token(scope: Scope) -> str:
    """Return the bearer token. An earlier check ensures that the header exists."""
    header = next(value for key, value in scope["headers"] if key == b"authorization")
    scheme, _, token = header.decode("latin-1").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


ROUTES = Routes((*SERVER_OPERATIONS, *WORKER_OPERATIONS), {PATH: WorkerSocket})
