"""A request about a session or a call that another server owns is carried there, in one place.

    owner elsewhere? --no--> answered here --SessionLocked: another was quicker--+
          |                                                                      |
         yes --> carried --Moved, Unsent--> looked up again, a few times <-------+
                    |
                   Lost --> 503: the outcome is unknown; what is safe to repeat is sent once more

A route says by `Operation.owner` what it is bound to. A request that was carried is never carried
on. A session whose owner is gone belongs to nobody: whoever is asked first takes it over.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
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
from callgate.core.task_sets import start_task
from callgate.sources.workers.directory import connected_workers
from callgate.surfaces.http.contexts import Context
from callgate.surfaces.http.disconnects import while_connected
from callgate.surfaces.http.operations import Operation, Request
from callgate.surfaces.http.problems import Problem, moved
from callgate.surfaces.http.responses import HttpResponse, Streamed
from callgate.surfaces.http.servers.carrying import Lost, Moved, Outgoing, Silent, Unsent
from callgate.surfaces.http.servers.directory import Server

_PAUSES_S = (0.0, 0.05, 0.2, 0.5)
"""Before each attempt: an owner that has just died is known to be dead a little later."""
SETTLED = "/v1/server/settled"
_SETTLE_S = 1.0
_RETRY_AFTER = (b"retry-after", b"2")
_REPEATABLE = ("GET", "DELETE")
"""Methods whose requests may be sent again where nobody knows whether they arrived."""


async def answer_or_carry(context: Context, operation: Operation, request: Request) -> Any:
    """Answer a request here, or have the server answer that owns what it is about."""
    if context.carrier is None or operation.owner is None:
        return await operation.run(context, request)
    server, lost = None, 0
    for pause in _PAUSES_S:
        if pause:
            await asyncio.sleep(pause)
        server = await operation.owner(context, request)
        if server is not None and request.carried:
            raise moved()
        try:
            if server is None:
                return await _answer_here(context, operation, request)
            return await carry(context, server, request, operation.method)
        except Silent as error:
            raise _unreachable(server) from error
        except (Moved, Unsent):
            continue
        except Lost as error:
            lost += 1
            if operation.method not in _REPEATABLE or lost > 1:
                raise _unknown_outcome(server) from error
    raise _unreachable(server)


async def _answer_here(context: Context, operation: Operation, request: Request) -> Any:
    assert context.servers is not None
    if not context.servers.is_announced:  # who finds us as an owner has to find our address
        await context.servers.told()
    try:
        return await operation.run(context, request)
    except SessionLocked as error:
        if await context.servers.find(error.owner) is None:  # no server, or another part of us
            raise
        if request.carried:
            raise moved() from None
        raise Moved from None


async def carry(
    context: Context, server: Server, request: Request, method: str
) -> HttpResponse | Streamed:
    """Have another server answer a request, as long as its client is connected."""
    assert context.carrier is not None
    outgoing = Outgoing(
        method,
        request.target,
        request.raw,
        request.accepts or "*/*",
        request.browser,
        request.client,
        request.principal,
    )
    answer = await while_connected(request, context.carrier.carry(server, outgoing))
    if isinstance(answer, Streamed):
        return Streamed(_while_read(request, answer.pieces), answer.media_type)
    return answer


async def _while_read(request: Request, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The pieces of an answer until its client is gone: then the owner hears of that."""
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


async def _wait_for_leave(request: Request) -> None:
    await request.disconnected()


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    return await anext(pieces, None)


async def settle(context: Context, session: str) -> None:
    """Have what happened in a session so far in the store, also by the server that owns it; one
    that does not answer soon is not waited for."""
    await context.runtime.conversations.flush()
    if context.carrier is not None and (server := await server_of_session(context, session)):
        await context.carrier.ask(server, SETTLED, _SETTLE_S)


async def cancel_turn_elsewhere(context: Context, session: str, turn: str | None) -> bool:
    """Have the owner of a session cancel its turn, or just that one; whether it does."""
    if context.carrier is None:
        return False
    try:
        server = await server_of_session(context, session)
        if server is None:
            return False
        store = await context.runtime.store()
        turn = turn or (await store.get_session(session)).turn_id
        if turn is None:
            return False
        target = f"/v1/sessions/{quote(session, safe='')}/turns/{quote(turn, safe='')}"
        answer = await context.carrier.carry(server, Outgoing("DELETE", target))
    except (Moved, Unsent, Lost, Problem, StoreError):
        return False
    return isinstance(answer, HttpResponse) and b'"cancelled":true' in answer.body


# What routes are bound to.


async def of_session_in_path(context: Context, request: Request) -> Server | None:
    return await server_of_session(context, request.path["id"])


async def of_session_in_body(context: Context, request: Request) -> Server | None:
    """Of a call in a session that is there already."""
    id: str | None = request.body.session
    return None if id is None else await server_of_session(context, id)


async def of_pool_in_body(context: Context, request: Request) -> Server | None:
    """Where a worker of the pool is connected, if none is here."""
    given: str | None = request.body.pool
    if given is None:
        return None
    pool, _, name = given.partition("/")
    return await _server_with_worker(context, pool, name)


async def _server_with_worker(context: Context, pool: str, name: str) -> Server | None:
    """The other server to which a worker is connected that has a workspace, or any; None if one
    is connected here, or nowhere."""
    if context.workers is None or context.servers is None:
        return None
    pools = context.workers().pools
    here = [each for each in pools.links() if each.identity.pool == pool]
    if any(not name or name in each.description.workspaces for each in here):
        return None
    for each in await connected_workers(await context.runtime.store()):
        if each.pool == pool and (not name or name in each.workspaces):
            server = await context.servers.find(each.server)
            if server is not None:
                return server
    return None


async def of_call_in_path(context: Context, request: Request) -> Server | None:
    return await _server_of_call(context, request.path["id"])


async def of_amended_call(context: Context, request: Request) -> Server | None:
    """Of the call that an answer changes: only who asks can check other arguments."""
    if request.body.arguments is None:
        return None
    store = await context.runtime.store()
    try:
        question = await store.get_confirmation(request.path["request"])
    except ConfirmationNotFound:
        return None
    return await _server_of_call(context, question.call_id)


async def server_of_session(context: Context, id: str) -> Server | None:
    """The other server that owns a session."""
    if context.servers is None:
        return None
    ours = context.sessions.find(id)
    if ours is not None:
        return await _server_for_pool(context, ours)
    try:
        stored = await (await context.runtime.store()).get_session(id)
    except SessionNotFound:
        return None
    owner = await context.servers.find(stored.owner)
    workspace = pool_workspace(stored.workspace)
    if owner is not None or workspace is None:
        return owner
    return await _server_with_worker(context, workspace.pool, workspace.name)


async def _server_for_pool(context: Context, session: Session) -> Server | None:
    """Where the workers of our session are now, if nothing is under way in it: that server may
    have it."""
    workspace = session.pool
    if workspace is None:
        return None
    server = await _server_with_worker(context, workspace.pool, workspace.name)
    if server is None or not await context.runtime.give_back(session):
        return None
    return server


async def _server_of_call(context: Context, id: str) -> Server | None:
    if context.servers is None or context.runtime.find(id) is not None:
        return None
    stored = await (await context.runtime.store()).get_call(id)
    if stored is None or stored.state is CallState.ENDED:
        return None
    return await context.servers.find(stored.owner)


def _unreachable(server: Server | None) -> Problem:
    label = "another server" if server is None else f"server {server.about.label} ({server.url})"
    return Problem(
        503,
        ToolErrorClass.EXECUTION_ERROR,
        f"This belongs to {label}, which lives and does not answer. Nothing was done: try again, "
        "or end that server, so that another takes over.",
        "owner_unreachable",
        headers=[_RETRY_AFTER],
    )


def _unknown_outcome(server: Server | None) -> Problem:
    label = "another server" if server is None else f"server {server.about.label} ({server.url})"
    return Problem(
        503,
        ToolErrorClass.EXECUTION_ERROR,
        f"This was sent to {label}, which was lost before it answered. Whether it was done is "
        "unknown: look at the session before you send it again.",
        "outcome_unknown",
    )
