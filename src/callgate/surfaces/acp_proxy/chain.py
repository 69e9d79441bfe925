"""The proxy as one of a chain, in which a conductor starts the agent (not in the stable protocol).

    conductor --proxy/initialize, session/prompt ...--> us     from our predecessor
    conductor --proxy/successor {method, params}------> us     from our successor
    us        --proxy/successor {method, params}------> conductor, for our successor

Results and errors come back as they are, `_meta` of an envelope stays where it is. The agent is
not ours to start, so no sandbox of ours is around it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from callgate.protocol.acp.reading import Received, read_params
from callgate.protocol.jsonrpc import INTERNAL_ERROR, Request, RpcError
from callgate.surfaces.acp.peer import Peer, PeerGone
from callgate.surfaces.acp_proxy.dependencies import Agent, AgentPlace, Handlers

SUCCESSOR = "proxy/successor"
_OUTSIDE = "the agent's own process, which callgate did not start: no sandbox is around it"


class Envelope(Received, frozen=True, kw_only=True):
    """The parameters of `proxy/successor`."""

    method: str
    params: dict[str, Any] | list[Any] | None = None


class _Wrapped(msgspec.Struct, frozen=True, omit_defaults=True):
    method: str
    params: Any = None


class Successor:
    """`dependencies.Agent` for whoever comes next in a chain."""

    runs_in = _OUTSIDE
    is_alive = True

    def __init__(self, conductor: Peer, place: AgentPlace) -> None:
        self._conductor = conductor
        self.place = place

    async def request(self, method: str, params: Any) -> Any:
        try:
            return await self._conductor.request(SUCCESSOR, _Wrapped(method, params))
        except PeerGone:
            raise self.failure() from None

    def notify(self, method: str, params: Any) -> None:
        self._conductor.notify(SUCCESSOR, _Wrapped(method, params))

    def failure(self) -> RpcError:
        return RpcError(INTERNAL_ERROR, "the conductor has gone", {"reason": "agent_ended"})

    def kill(self, why: str) -> None:
        """It is the conductor's to end."""


class Chain:
    """`dependencies.Agents` with one agent, which is told nothing but through the conductor."""

    def __init__(self, conductor: Peer, place: AgentPlace, handlers: Handlers) -> None:
        self._successor = Successor(conductor, place)
        self._handlers = handlers

    async def greet(self, params: Any) -> Any:
        return await self._successor.request("initialize", params)

    def logged_in(self, params: Any) -> None:
        """There is no other agent to sign in."""

    async def at(self, place: AgentPlace) -> Agent:
        return self._successor

    def every(self) -> list[Agent]:
        return [self._successor]

    def usual(self) -> Agent:
        return self._successor

    async def close(self) -> None:
        """It is the conductor's to end."""

    async def answer(self, params: Any, request: Request) -> Any:
        """A request of our successor, in its envelope."""
        wrapped = read_params(Envelope, params)
        return await self._handlers.answer(self._successor, wrapped.method, wrapped.params, request)

    def noted(self, params: Any) -> None:
        wrapped = read_params(Envelope, params)
        self._handlers.noted(self._successor, wrapped.method, wrapped.params)
