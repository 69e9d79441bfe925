"""`callgate acp` on its two descriptors: the greeting, then an agent, until the client goes.

    initialize   answered at once, by `greeting`
                 then the agent is made, while nobody waits for it
    the rest     waits for the agent, and is the agent's

The end of the input, an output that nobody reads any more and a signal all end it in the same
way: no answer of the client is waited for any more, the agent lets go of its sessions, what is
still under way is ended. If that takes too long, the process ends all the same.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from callgate.core.task_sets import start_task
from callgate.protocol.acp.initialize import Initialize
from callgate.protocol.jsonrpc import INVALID_REQUEST, METHOD_NOT_FOUND, Request, RpcError, shown
from callgate.surfaces.acp.greeting import greet
from callgate.surfaces.acp.peer import Peer, PeerGone
from callgate.surfaces.descriptors import Descriptors

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LAST_WORDS_S = 2.0
"""How long a client may take to read the last answers."""
_END_S = 60.0
"""What has not ended by then is left behind."""

_log = logging.getLogger("callgate.acp")


class AcpOptions(NamedTuple):
    """What was asked for on the command line."""

    model: str | None = None
    """None: that of the settings. `scripted:FILE` needs no server."""
    mode: str | None = None
    """In which sessions begin; None: that of the settings."""
    unstable: bool = False
    """Also what is not in the stable protocol."""


class Agent(Protocol):
    """Who answers a client once it has introduced itself."""

    async def answer(self, method: str, params: Any, request: Request) -> Any:
        """The result of a request. Raises `RpcError`."""

    def noted(self, method: str, params: Any) -> None:
        """A notification; one that is not known is ignored."""

    async def close(self) -> None:
        """Stop every turn and let go of every session."""


MakeAgent = Callable[[Peer, Initialize], Awaitable[Agent]]


class Client(Protocol):
    """One client that is served on two descriptors."""

    @property
    def peer(self) -> Peer: ...

    async def close(self) -> None:
        """It has gone: end what is under way for it."""


async def serve(read_fd: int, write_fd: int, options: AcpOptions, make_agent: MakeAgent) -> int:
    """Speak with a client until it goes or a signal comes; returns the exit code.

    `make_agent` is called once the greeting is answered, and again if it failed.
    """
    return await serve_client(read_fd, write_fd, partial(Served, options, make_agent))


async def serve_client(
    read_fd: int,
    write_fd: int,
    make_client: Callable[[Callable[[bytes], None], Callable[[], None]], Client],
) -> int:
    """The same for whoever answers: it is made with what writes, and with what ends it."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for each in _SIGNALS:
        loop.add_signal_handler(each, ended.set)
    descriptors = Descriptors(read_fd, write_fd)
    served = make_client(descriptors.write, ended.set)
    await descriptors.open(served.peer, ended.set)
    try:
        await ended.wait()
        for each in _SIGNALS:
            loop.remove_signal_handler(each)  # a second one ends us at once
        _end_in_any_case()
        await served.close()
    finally:
        descriptors.close()
    return 0


class Served:
    """One client: its greeting, and the agent that it is given to."""

    def __init__(
        self,
        options: AcpOptions,
        make_agent: MakeAgent,
        write: Callable[[bytes], None],
        on_disconnect: Callable[[], None],
    ) -> None:
        self._options, self._make_agent = options, make_agent
        self.peer = Peer(write, self._answer, self._noted, on_gone=on_disconnect)
        self._client: Initialize | None = None
        self._making: asyncio.Task[Agent] | None = None

    async def _answer(self, method: str, params: Any, request: Request) -> Any:
        if method == "initialize":
            return self._greet(params)
        if not self._knows(method):
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {shown(method)}")
        if self._client is None:
            raise RpcError(INVALID_REQUEST, "Invalid request: initialize has to come first")
        agent = await self._agent(self._client)
        return await agent.answer(method, params, request)

    def _knows(self, method: str) -> bool:
        """An extension, with `_` before it, is the agent's to know."""
        from callgate.protocol.acp.requests import find_request  # lazy: not before the greeting  # noqa: PLC0415

        known = find_request(method, unstable=self._options.unstable)
        return known is not None or method.startswith("_")

    def _greet(self, params: Any) -> Any:
        if self._client is not None:
            raise RpcError(INVALID_REQUEST, "Invalid request: this was initialized before")
        self._client, answer = greet(params, unstable=self._options.unstable)
        info = self._client.client_info
        name = "a client without a name" if info is None else f"{info.name} {info.version}"
        _log.info("ACP client connected: %s", shown(name, 200))
        self._making = start_task(self._make(self._client))
        return answer

    async def _make(self, client: Initialize) -> Agent:
        self.peer.flush()  # the greeting's answer is on its way before anything is loaded
        return await self._make_agent(self.peer, client)

    async def _agent(self, client: Initialize) -> Agent:
        """The agent; several requests may wait for it, and be cancelled meanwhile."""
        if self._making is None or (self._making.done() and not self._agent_if_open()):
            self._making = start_task(self._make(client))
        return await asyncio.shield(self._making)

    def _agent_if_open(self) -> Agent | None:
        """The agent, if there is one by now."""
        making = self._making
        if making is None or not making.done() or making.cancelled() or making.exception():
            return None
        return making.result()

    def _noted(self, method: str, params: Any) -> None:
        agent = self._agent_if_open()
        if agent is not None:  # before, there is no session that it could be about
            agent.noted(method, params)

    async def close(self) -> None:
        await self.peer.taken()
        self.peer.unheard()
        if self._making is not None and not self._making.done():
            self._making.cancel()
            await asyncio.wait([self._making])
        agent = self._agent_if_open()
        try:
            if agent is not None:
                await agent.close()
        finally:
            await self.peer.close()
        await last_words(self.peer)


async def last_words(peer: Peer) -> None:
    """Wait a little for a client to read the last answers."""
    try:
        async with asyncio.timeout(_LAST_WORDS_S):
            await peer.drained()
    except (TimeoutError, PeerGone):
        pass


def _end_in_any_case() -> None:
    """Also if something in this process cannot be stopped."""
    timer = threading.Timer(_END_S, os._exit, (1,))
    timer.daemon = True
    timer.start()
