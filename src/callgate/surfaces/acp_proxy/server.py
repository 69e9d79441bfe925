"""One editor on two descriptors, and the proxy that it speaks with.

initialize         makes the proxy, which starts and greets the agent
proxy/initialize   the same in a chain, where a conductor starts it (`chain`)
proxy/successor    what the agent says there
the rest           is the proxy's
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from callgate.protocol.acp.initialize import Initialize
from callgate.protocol.acp.reading import read_params
from callgate.protocol.jsonrpc import INVALID_REQUEST, METHOD_NOT_FOUND, Request, RpcError, shown
from callgate.surfaces.acp.peer import Peer
from callgate.surfaces.acp.stdio import last_words
from callgate.surfaces.acp_proxy.capabilities import combined
from callgate.surfaces.acp_proxy.chain import SUCCESSOR, Chain
from callgate.surfaces.acp_proxy.dependencies import AgentPlace, Handlers

PROXY_INITIALIZE = "proxy/initialize"
"""Not in the stable protocol: the greeting of a conductor, which starts the agent itself."""

_log = logging.getLogger("callgate.acp")


class Greeted(Protocol):
    """Who answers an editor: the proxy."""

    async def initialize(self, params: Any) -> Any: ...
    async def answer(self, method: str, params: Any, request: Request) -> Any: ...
    def noted(self, method: str, params: Any) -> None: ...
    async def close(self) -> None: ...


MakeChain = Callable[[AgentPlace, Handlers], Chain]
MakeProxy = Callable[[Peer, Initialize, MakeChain | None], Awaitable[Greeted]]
"""With the chain that it is one of, or None: the agent is its own to start."""


class ProxyServer:
    """`stdio.Client`: the editor of one proxy."""

    def __init__(
        self,
        make_proxy: MakeProxy,
        unstable: bool,
        write: Callable[[bytes], None],
        on_disconnect: Callable[[], None],
    ) -> None:
        self._make_proxy, self._unstable = make_proxy, unstable
        self._chain: Chain | None = None
        self.peer = Peer(write, self._answer, self._noted, on_gone=on_disconnect)
        self._proxy: Greeted | None = None
        self._greeted = False

    async def _answer(self, method: str, params: Any, request: Request) -> Any:
        if method in (PROXY_INITIALIZE, SUCCESSOR) and not self._unstable:
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {shown(method)}")
        if method == "initialize":
            return await self._greet(params, None)
        if method == PROXY_INITIALIZE:
            return await self._greet(params, self._make_chain)
        if self._proxy is None and (self._chain is None or method != SUCCESSOR):
            raise RpcError(INVALID_REQUEST, "Invalid request: initialize has to come first")
        if method == SUCCESSOR:
            if self._chain is None:
                raise RpcError(METHOD_NOT_FOUND, f"Method not found: {shown(method)}")
            return await self._chain.answer(params, request)
        assert self._proxy is not None
        return await self._proxy.answer(method, params, request)

    def _make_chain(self, place: AgentPlace, handlers: Handlers) -> Chain:
        self._chain = Chain(self.peer, place, handlers)
        return self._chain

    async def _greet(self, params: Any, make_chain: MakeChain | None) -> Any:
        if self._greeted:
            raise RpcError(INVALID_REQUEST, "Invalid request: this was initialized before")
        client = read_params(Initialize, params)
        self._greeted = True
        try:
            proxy = await self._make_proxy(self.peer, client, make_chain)
            self._proxy = proxy
            return await proxy.initialize(combined(params))
        except BaseException:
            self._greeted = False
            failed, self._proxy = self._proxy, None
            if failed is not None:
                await failed.close()
            raise

    def _noted(self, method: str, params: Any) -> None:
        if method == SUCCESSOR and self._chain is not None:
            self._chain.noted(params)
        elif self._proxy is not None:  # before, there is no session that it could be about
            self._proxy.noted(method, params)

    async def close(self) -> None:
        await self.peer.taken()
        self.peer.unheard()
        try:
            if self._proxy is not None:
                await self._proxy.close()
        finally:
            await self.peer.close()
        await last_words(self.peer)
