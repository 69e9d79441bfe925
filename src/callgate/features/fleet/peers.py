"""Forwarding of requests to the server that owns the session or call.

    owner elsewhere? --no--> answered here --SessionLocked: another was quicker--+
          |                                                                      |
         yes --> carried --Moved, Unsent--> looked up again, a few times <-------+
                    |
                   Lost --> 503: the outcome is unknown; safe requests are sent once more

A route declares its owner with `Operation.bound_to`. A forwarded request is never forwarded again.
A session whose owner has died is free: the first server with a request for it takes it over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Any
from urllib.parse import quote

from callgate.core.errors import ToolErrorClass
from callgate.core.sessions import Session, pool_workspace
from callgate.core.stored import CallState
from callgate.core.stores import (
    ConfirmationNotFound,
    SessionLocked,
    SessionNotFound,
    StoreError,
)
from callgate.core.tasks import start_task
from callgate.features.fleet.carrying import Carrier, Lost, Moved, Outgoing, Silent, Unsent
from callgate.features.fleet.deltas import DeltaStream, RemoteDeltas
from callgate.features.fleet.directory import Server, Servers, connected_workers
from callgate.features.fleet.placing import PooledCalls
from callgate.features.web.contexts import BoundTo, Context, Operation, ParsedRequest, Peer, Peers
from callgate.features.web.operations import while_connected
from callgate.features.web.responses import HttpResponse, Problem, Streamed, moved
from callgate.protocol.carried_requests import Carried

_PAUSES_S = (0.0, 0.05, 0.2, 0.5)
"""Pauses before the attempts. The death of an owner is visible only after a short time."""
SETTLED = "/v1/server/settled"
_SETTLE_S = 1.0
_RETRY_AFTER = (b"retry-after", b"2")
_REPEATABLE = ("GET", "DELETE")
"""Methods that are safe to repeat if the outcome of a request is unknown."""


class FleetPeers(Peers):
    """The other servers of the store, and the remote workers."""

    def __init__(
        self, context: Context, servers: Servers, workers: Callable[[], PooledCalls]
    ) -> None:
        super().__init__(context)
        self.servers = servers
        self.carrier = Carrier(servers)
        self._workers = workers
        self.delta_streams: dict[str, DeltaStream] = {}
        """Streams of unstored events to other servers, by id."""

    @cached_property
    def workers(self) -> PooledCalls:
        return self._workers()

    @cached_property
    def _deltas(self) -> RemoteDeltas:
        return RemoteDeltas(self.context.runtime, self.servers, self.carrier, self.context.fanout)

    async def close(self) -> None:
        await self._deltas.close()
        await self.carrier.close()

    # Requests for an owner.

    async def accept(self, header: str, method: str, target: str) -> Carried | None:
        return await self.servers.accept(header, method, target)

    async def answer(self, operation: Operation, request: ParsedRequest) -> Any:
        if operation.bound_to is None:
            return await operation.run(self.context, request)
        find_owner = _FINDERS[operation.bound_to]
        server, lost = None, 0
        for pause in _PAUSES_S:
            if pause:
                await asyncio.sleep(pause)
            server = await find_owner(self, request)
            if server is not None and request.carried:
                raise moved()
            try:
                if server is None:
                    return await self._answer_here(operation, request)
                return await self._carry(server, request, operation.method)
            except Silent as error:
                raise _unreachable(server) from error
            except (Moved, Unsent):
                continue
            except Lost as error:
                lost += 1
                if operation.method not in _REPEATABLE or lost > 1:
                    raise _unknown_outcome(server) from error
        raise _unreachable(server)

    async def _answer_here(self, operation: Operation, request: ParsedRequest) -> Any:
        if not self.servers.is_announced:  # an owner must be reachable for others
            await self.servers.wait_announced()
        try:
            return await operation.run(self.context, request)
        except SessionLocked as error:
            # not a server, or another part of this process
            if await self.servers.find(error.owner) is None:
                raise
            if request.carried:
                raise moved() from None
            raise Moved from None

    async def _carry(
        self, server: Server, request: ParsedRequest, method: str
    ) -> HttpResponse | Streamed:
        """Forward a request to another server, as long as its client is connected."""
        outgoing = Outgoing(
            method,
            request.target,
            request.raw,
            request.accepts or "*/*",
            request.browser,
            request.client,
            request.principal,
        )
        answer = await while_connected(request, self.carrier.carry(server, outgoing))
        if isinstance(answer, Streamed):
            return Streamed(_while_read(request, answer.pieces), answer.media_type)
        return answer

    async def cancel_turn(self, session: str, turn: str | None) -> bool:
        try:
            server = await self.owner_of(session)
            if server is None:
                return False
            store = await self.context.runtime.sessions.store()
            turn = turn or (await store.get_session(session)).turn_id
            if turn is None:
                return False
            target = f"/v1/sessions/{quote(session, safe='')}/turns/{quote(turn, safe='')}"
            answer = await self.carrier.carry(server, Outgoing("DELETE", target))
        except (Moved, Unsent, Lost, Problem, StoreError):
            return False
        return _is_cancelled(answer)

    async def cancel_call(self, request: ParsedRequest) -> bool:
        if request.carried:
            return False

        async def cancel(server: Server) -> bool:
            try:
                return _is_cancelled(await self._carry(server, request, "DELETE"))
            except (Lost, Moved, Unsent, Problem):
                return False

        return any(await asyncio.gather(*map(cancel, await self.servers.others())))

    async def settle(self, session: str) -> None:
        """Write the events of a session to the store, also at its owner, if that answers soon."""
        await super().settle(session)
        server = await self.owner_of(session)
        if server is not None:
            await self.carrier.ask(server, SETTLED, _SETTLE_S)

    # Overviews.

    async def others(self) -> Sequence[Server]:
        return await self.servers.others()

    async def labels(self) -> Mapping[str, str]:
        return await self.servers.labels()

    async def ask(self, peer: Peer, target: str, limit_s: float) -> bytes | None:
        assert isinstance(peer, Server)
        return await self.carrier.ask(peer, target, limit_s)

    # Clients of the event stream.

    async def announce(self, session: str | None, attached: ExitStack) -> None:
        attached.enter_context(self.servers.present(session))
        await self.servers.wait_announced()

    async def watch(self, session: str | None, attached: ExitStack) -> None:
        attached.callback(self._deltas.forget, session)
        await self._deltas.watch(session)

    # Remote workers.

    async def pool_workspaces(self, pool: str) -> Sequence[str]:
        return await self.workers.pools.workspaces(pool)

    async def pool_changes(self, id: str, undoing: Session) -> Sequence[str]:
        assert undoing.pool is not None
        link, calls = await self.workers.changes(undoing.pool, id)
        if link is not None:
            self.workers.pools.bind(undoing.id, link)
        return calls

    # Owners.

    async def owner_of(self, session: str) -> Server | None:
        ours = self.context.sessions.find(session)
        if ours is not None:
            return await self._server_for_pool(ours)
        try:
            stored = await (await self.context.runtime.sessions.store()).get_session(session)
        except SessionNotFound:
            return None
        owner = await self.servers.find(stored.owner)
        workspace = pool_workspace(stored.workspace)
        if owner is not None or workspace is None:
            return owner
        return await self.server_with_worker(workspace.pool, workspace.name)

    async def _server_for_pool(self, session: Session) -> Server | None:
        """Return the server of a local session's workers if the session is idle and can move
        there.
        """
        workspace = session.pool
        if workspace is None:
            return None
        server = await self.server_with_worker(workspace.pool, workspace.name)
        if server is None or not await self.context.runtime.sessions.give_back(session):
            return None
        return server

    async def server_with_worker(self, pool: str, name: str) -> Server | None:
        """Return another server with a worker that has a workspace, or any; None if one is
        connected here, or nowhere.
        """
        here = [each for each in self.workers.pools.links() if each.identity.pool == pool]
        if any(not name or name in each.description.workspaces for each in here):
            return None
        for each in await connected_workers(await self.context.runtime.sessions.store()):
            if each.pool == pool and (not name or name in each.workspaces):
                server = await self.servers.find(each.server)
                if server is not None:
                    return server
        return None

    async def owner_of_call(self, id: str) -> Server | None:
        if self.context.runtime.calls.find(id) is not None:
            return None
        stored = await (await self.context.runtime.sessions.store()).get_call(id)
        if stored is None or stored.state is CallState.ENDED:
            return None
        return await self.servers.find(stored.owner)


async def _of_session_in_path(peers: FleetPeers, request: ParsedRequest) -> Server | None:
    return await peers.owner_of(request.path["id"])


async def _of_session_in_body(peers: FleetPeers, request: ParsedRequest) -> Server | None:
    id: str | None = request.body.session
    return None if id is None else await peers.owner_of(id)


async def _of_pool_in_body(peers: FleetPeers, request: ParsedRequest) -> Server | None:
    given: str | None = request.body.pool
    if given is None:
        return None
    pool, _, name = given.partition("/")
    return await peers.server_with_worker(pool, name)


async def _of_call_in_path(peers: FleetPeers, request: ParsedRequest) -> Server | None:
    return await peers.owner_of_call(request.path["id"])


async def _of_amended_call(peers: FleetPeers, request: ParsedRequest) -> Server | None:
    """Return the server of a call that an answer changes: only that server can check the new
    arguments.
    """
    if request.body.arguments is None:
        return None
    store = await peers.context.runtime.sessions.store()
    try:
        question = await store.get_confirmation(request.path["request"])
    except ConfirmationNotFound:
        return None
    return await peers.owner_of_call(question.call_id)


_FINDERS: Mapping[BoundTo, Callable[[FleetPeers, ParsedRequest], Awaitable[Server | None]]] = {
    BoundTo.SESSION_IN_PATH: _of_session_in_path,
    BoundTo.SESSION_IN_BODY: _of_session_in_body,
    BoundTo.CALL_IN_PATH: _of_call_in_path,
    BoundTo.AMENDED_CALL: _of_amended_call,
    BoundTo.POOL_IN_BODY: _of_pool_in_body,
}


async def _while_read(request: ParsedRequest, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the pieces of an answer until its client disconnects, and then tell the owner."""
    leaving = start_task(_wait_for_leave(request))
    try:
        while True:
            coming = start_task(_next(pieces))
            await asyncio.wait({coming, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                coming.cancel()
                await asyncio.wait({coming})
                return
            piece = coming.result()
            if piece is None:
                return
            yield piece
    finally:
        leaving.cancel()


async def _wait_for_leave(request: ParsedRequest) -> None:
    await request.disconnected()


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    return await anext(pieces, None)


def _is_cancelled(answer: HttpResponse | Streamed) -> bool:
    return isinstance(answer, HttpResponse) and b'"cancelled":true' in answer.body


def _unreachable(server: Server | None) -> Problem:
    label = "another server" if server is None else f"server {server.label} ({server.url})"
    return Problem(
        503,
        ToolErrorClass.EXECUTION_ERROR,
        f"This belongs to {label}, which is running and does not answer. Nothing was done: try "
        "again, or stop that server, so that another one takes over.",
        "owner_unreachable",
        headers=[_RETRY_AFTER],
    )


def _unknown_outcome(server: Server | None) -> Problem:
    label = "another server" if server is None else f"server {server.label} ({server.url})"
    return Problem(
        503,
        ToolErrorClass.EXECUTION_ERROR,
        f"This was sent to {label}, which was lost before it answered. The outcome is unknown: "
        "check the session before you send it again.",
        "outcome_unknown",
    )
