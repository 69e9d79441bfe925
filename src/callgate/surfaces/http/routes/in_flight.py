"""Calls that have not ended, of every server.

Calls with effects are in the store from their start. Calls without are known to the process that
runs them alone, so the other servers are asked; one that does not answer soon is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from urllib.parse import quote

import msgspec

from callgate.core.stored import StoredCall
from callgate.surfaces.http.contexts import Context
from callgate.surfaces.http.operations import Request
from callgate.surfaces.http.owners import carry, server_of_session
from callgate.surfaces.http.problems import Problem
from callgate.surfaces.http.responses import HttpResponse
from callgate.surfaces.http.routes.rows import open_rows
from callgate.surfaces.http.routes.values import CallRow
from callgate.surfaces.http.servers.carrying import Lost, Moved, Unsent
from callgate.surfaces.http.servers.directory import Server

_LIMIT_S = 1.0


async def open_calls(
    context: Context, stored: Sequence[StoredCall], session: str | None = None
) -> list[CallRow]:
    """The calls that have not ended, newest first; `stored` are those that the store has."""
    elsewhere = await _running_elsewhere(context, session)
    return open_rows(stored, context.runtime.in_flight(), session, elsewhere)


async def _running_elsewhere(context: Context, session: str | None) -> list[CallRow]:
    carrier = context.carrier
    if carrier is None:
        return []
    target = "/v1/server/calls" + ("" if session is None else f"?session={quote(session)}")
    answers = await asyncio.gather(
        *(carrier.ask(each, target, _LIMIT_S) for each in await _servers(context, session))
    )
    found: list[CallRow] = []
    for answer in answers:
        if answer is not None:
            found += msgspec.json.decode(answer, type=_Calls).calls
    return found


class _Calls(msgspec.Struct):
    calls: list[CallRow]


async def _servers(context: Context, session: str | None) -> list[Server]:
    if session is not None:
        owner = await server_of_session(context, session)
        return [] if owner is None else [owner]
    return [] if context.servers is None else await context.servers.others()


async def cancel_elsewhere(context: Context, request: Request) -> bool:
    """Have every other server cancel a call that the store does not know; whether one did."""
    if context.servers is None or request.carried:
        return False

    async def cancel(server: Server) -> bool:
        try:
            answer = await carry(context, server, request, "DELETE")
        except (Lost, Moved, Unsent, Problem):
            return False
        return isinstance(answer, HttpResponse) and b'"cancelled":true' in answer.body

    return any(await asyncio.gather(*map(cancel, await context.servers.others())))
