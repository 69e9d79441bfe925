"""`callgate acp` on its two descriptors: the greeting, then an agent, until the client
disconnects.

    initialize   answered with constants, so that the client waits for no import;
                 then the agent is made in the background
    the rest     waits for the agent, which handles it

The end of the input, a closed output and a signal all end it in the same way: no answer of the
client is awaited any more, the agent releases its sessions, and running work is ended. If that
takes too long, the process ends anyway.
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

from callgate.core.tasks import start_task
from callgate.core.version import __version__
from callgate.features.editor.peer import EditorPeer, PeerGone
from callgate.protocol.acp.initialize import (
    AgentAuth,
    AgentCapabilities,
    AgentInfo,
    AgentMethod,
    Initialize,
    Initialized,
    McpCapabilities,
    PromptCapabilities,
    SessionCapabilities,
    TerminalMethod,
    agreed,
    read_params,
)
from callgate.protocol.jsonrpc import INVALID_REQUEST, METHOD_NOT_FOUND, Request, RpcError, shown
from callgate.socket.descriptors import Descriptors

SETTINGS_METHOD = "settings"
"""Sign-in method that checks if the settings have a usable model."""
SETUP_METHOD = "setup"


def greet(params: Any, *, unstable: bool) -> tuple[Initialize, Initialized]:
    """Return the client's greeting and our answer. Raises `RpcError`."""
    request = read_params(Initialize, params)
    methods: list[AgentMethod | TerminalMethod] = [
        AgentMethod(
            id=SETTINGS_METHOD,
            name="callgate settings",
            description="Use the model and the key of callgate's settings.",
        )
    ]
    if request.capabilities.signs_in_at_a_terminal:
        methods.append(
            TerminalMethod(
                id=SETUP_METHOD,
                name="callgate setup",
                description="Enter a model and its key in a terminal.",
                args=["--setup"],
                type="terminal",
            )
        )
    return request, Initialized(
        protocol_version=agreed(request.protocol_version),
        agent_capabilities=AgentCapabilities(
            load_session=True,
            prompt_capabilities=PromptCapabilities(image=True, audio=False, embedded_context=True),
            mcp_capabilities=McpCapabilities(http=True, sse=False),
            session_capabilities=SessionCapabilities(
                list={},
                resume={},
                close={},
                delete={},
                additional_directories={},
                fork={} if unstable else None,
            ),
            auth=AgentAuth(logout={}),
        ),
        agent_info=AgentInfo(name="callgate", title="callgate", version=__version__),
        auth_methods=methods,
    )


_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LAST_WORDS_S = 2.0
"""Time limit for the client to read the last answers."""
_END_S = 60.0
"""Time limit for the shutdown; remaining work is abandoned."""

_log = logging.getLogger("callgate.acp")


class AcpOptions(NamedTuple):
    """Options of the command line."""

    model: str | None = None
    """The model; None: the model of the settings. `scripted:FILE` needs no server."""
    mode: str | None = None
    """The initial mode of sessions; None: the mode of the settings."""
    unstable: bool = False
    """Whether unstable parts of the protocol are enabled."""


class EditorAgent(Protocol):
    """Answers a client after the greeting."""

    async def answer(self, method: str, params: Any, request: Request) -> Any:
        """Return the result of a request. Raises `RpcError`."""

    def noted(self, method: str, params: Any) -> None:
        """Handle a notification. Unknown notifications are ignored."""

    async def close(self) -> None:
        """Stop every turn and release every session."""


MakeAgent = Callable[[EditorPeer, Initialize], Awaitable[EditorAgent]]


class EditorClient(Protocol):
    """One client on two descriptors."""

    @property
    def peer(self) -> EditorPeer: ...

    async def close(self) -> None:
        """End all work of the client, which has disconnected."""


async def serve(read_fd: int, write_fd: int, options: AcpOptions, make_agent: MakeAgent) -> int:
    """Serve a client until it disconnects or a signal arrives. Return the exit code.

    `make_agent` is called after the greeting, and again if it failed.
    """
    return await serve_client(read_fd, write_fd, partial(Served, options, make_agent))


async def serve_client(
    read_fd: int,
    write_fd: int,
    make_client: Callable[[Callable[[bytes], None], Callable[[], None]], EditorClient],
) -> int:
    """Serve any kind of client. `make_client` receives the write function and the function that
    ends the service.
    """
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
            loop.remove_signal_handler(each)  # a second signal ends the process immediately
        _end_in_any_case()
        await served.close()
    finally:
        descriptors.close()
    return 0


class Served:
    """One client: its greeting, and its agent."""

    def __init__(
        self,
        options: AcpOptions,
        make_agent: MakeAgent,
        write: Callable[[bytes], None],
        on_disconnect: Callable[[], None],
    ) -> None:
        self._options, self._make_agent = options, make_agent
        self.peer = EditorPeer(write, self._answer, self._noted, on_gone=on_disconnect)
        self._client: Initialize | None = None
        self._making: asyncio.Task[EditorAgent] | None = None

    async def _answer(self, method: str, params: Any, request: Request) -> Any:
        if method == "initialize":
            return self._greet(params)
        if not self._knows(method):
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {shown(method)}")
        if self._client is None:
            raise RpcError(INVALID_REQUEST, "Invalid request: initialize must come first")
        agent = await self._agent(self._client)
        return await agent.answer(method, params, request)

    def _knows(self, method: str) -> bool:
        """Whether the method exists or is an extension (`_` at its start), which the agent
        handles.
        """
        from callgate.protocol.acp.requests import find_request  # lazy: not before the greeting  # noqa: PLC0415

        known = find_request(method, unstable=self._options.unstable)
        return known is not None or method.startswith("_")

    def _greet(self, params: Any) -> Any:
        if self._client is not None:
            raise RpcError(
                INVALID_REQUEST, "Invalid request: the connection is already initialized"
            )
        self._client, answer = greet(params, unstable=self._options.unstable)
        info = self._client.client_info
        name = "a client without a name" if info is None else f"{info.name} {info.version}"
        _log.info("ACP client connected: %s", shown(name, 200))
        self._making = start_task(self._make(self._client))
        return answer

    async def _make(self, client: Initialize) -> EditorAgent:
        self.peer.flush()  # send the greeting's answer before anything is loaded
        return await self._make_agent(self.peer, client)

    async def _agent(self, client: Initialize) -> EditorAgent:
        """Return the agent. Several requests may wait for it, and a cancelled one does not stop
        the others.
        """
        if self._making is None or (self._making.done() and not self._agent_if_open()):
            self._making = start_task(self._make(client))
        return await asyncio.shield(self._making)

    def _agent_if_open(self) -> EditorAgent | None:
        """Return the agent if it is ready."""
        making = self._making
        if making is None or not making.done() or making.cancelled() or making.exception():
            return None
        return making.result()

    def _noted(self, method: str, params: Any) -> None:
        agent = self._agent_if_open()
        if agent is not None:  # without an agent there is no session
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


async def last_words(peer: EditorPeer) -> None:
    """Wait a short time for a client to read the last answers."""
    try:
        async with asyncio.timeout(_LAST_WORDS_S):
            await peer.drained()
    except (TimeoutError, PeerGone):
        pass


def _end_in_any_case() -> None:
    """Exit after `_END_S` seconds, even if something in this process cannot be stopped."""
    timer = threading.Timer(_END_S, os._exit, (1,))
    timer.daemon = True
    timer.start()
