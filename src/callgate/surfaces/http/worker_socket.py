"""The WebSocket of a remote worker: who it is, its frames, and whether it still lives.

    token, pool, name -> accepted -> greeted -> frames both ways, pings -> gone: its calls end
         401, 403, 400, 426

One message is one frame of `protocol.host_v1.workers`; the worker is the host.
"""

from __future__ import annotations

import asyncio
import re
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from callgate.core.errors import ToolErrorClass
from callgate.core.sessions import is_pool_name
from callgate.core.stores import StoreError
from callgate.core.version import __version__
from callgate.protocol.host_v1.workers import VERSION
from callgate.protocol.ndjson import MAX_LINE
from callgate.sources.workers.links import WorkerIdentity, WorkerLink
from callgate.sources.workers.pools import CannotJoin, WorkerPools
from callgate.surfaces.http.contexts import Context
from callgate.surfaces.http.problems import Problem, bad_request, forbidden, not_found, problem_of
from callgate.surfaces.http.responses import problem_response, respond
from callgate.surfaces.http.stream.frames import packed
from callgate.surfaces.http.stream.websocket_protocol import WEBSOCKET, WebSocketProtocol
from callgate.surfaces.http.unauthenticated import CONNECTION

PING_S = 2.0
SILENT_S = 10.0
"""After so long without a word a worker counts as gone."""
_LONGEST_REASON = 120
"""Bytes that a WebSocket's close takes, nearly."""
_PROCESS = re.compile(r"[0-9a-f]{8,64}\Z")
NOT_JOINED = 4400


class WorkerSocket:
    """The endpoint."""

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
        if self._context.workers is None:
            raise not_found("path")
        return self._context.workers().pools

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
        """Ping, and cut a worker that says nothing any more."""
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
    """Who wants to connect. Raises `Problem`."""
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
    for what, value in (("pool", pool), ("worker", name)):
        if not is_pool_name(value):
            raise bad_request(f"{value[:80]!r} is no name of a {what}.", "name")
    if not _PROCESS.match(process):
        raise bad_request("A worker says by which name its process is known.", "process")
    try:
        return await pools.identify(_token(scope), pool, name, process)
    except CannotJoin as error:
        raise forbidden(str(error), "worker_token") from None


def _token(scope: Scope) -> str:
    """As the guard saw to it, there is one header."""
    header = next(value for key, value in scope["headers"] if key == b"authorization")
    scheme, _, token = header.decode("latin-1").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
