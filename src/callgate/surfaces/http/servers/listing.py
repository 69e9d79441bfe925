"""The servers that share a store, each asked how it is: for the route and for the command."""

from __future__ import annotations

import asyncio
import time

import msgspec

from callgate.surfaces.http.servers.carrying import Carrier
from callgate.surfaces.http.servers.directory import MOST_SKEW_S, Server, Servers

_LIMIT_S = 2.0
"""Time limit for one request to another server."""
_RETRY_S = 0.25
"""Pause before a server that did not answer is asked again."""


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
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


class ListedServer(msgspec.Struct, frozen=True, kw_only=True):
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


async def list_others(
    servers: Servers, carrier: Carrier, patience_s: float = 0.0
) -> list[ListedServer]:
    """List every other live server, oldest first.

    A server that does not answer is asked again for `patience_s` before it is listed as silent:
    the first request after an idle time loads the HTTP modules, which takes seconds on a busy
    machine.
    """
    deadline = time.monotonic() + patience_s
    requests = [_ask(servers, carrier, each, deadline) for each in await servers.others()]
    return sorted(await asyncio.gather(*requests), key=lambda each: each.started_at)


async def _ask(servers: Servers, carrier: Carrier, server: Server, deadline: float) -> ListedServer:
    begun = time.time()
    while (answer := await carrier.ask(server, "/v1/server", _LIMIT_S)) is None:
        if time.monotonic() >= deadline:
            return _silent(server)
        await asyncio.sleep(_RETRY_S)
        begun = time.time()
    state = msgspec.json.decode(answer, type=ServerState)
    skew_s = state.now - (begun + time.time()) / 2
    servers.note_skew(server.owner, skew_s)
    return listed(state, skew_s, here=False)


def listed(state: ServerState, skew_s: float, *, here: bool) -> ListedServer:
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
