"""The inputs of the proxy: the editor's descriptors, and the hook of its agent.

A conductor starts the agent in a proxy chain (not in the stable protocol).

The proxy answers the hook of its agent, so that one call has one question. The socket accepts
events of this agent and of processes that it started. An instance answers the hooks of all other
processes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from callgate.core.errors import ToolError
from callgate.core.local.disk import make_private_directory
from callgate.core.sessions import Root
from callgate.core.tasks import start_task
from callgate.features.agents import known
from callgate.features.agents.hooks import events
from callgate.features.agents.hooks.agent_calls import Tickets
from callgate.features.agents.hooks.agent_tools import translate
from callgate.features.agents.hooks.events import BadHookEvent, HookEvent, HookPhase, Verdict
from callgate.features.agents.hooks.listener import HookListener, bind_in
from callgate.features.agents.hooks.prompts import Sender
from callgate.features.agents.known import hook_directory, proxies_directory, token_file
from callgate.features.agents.proxy.agents import AgentLocation, Handlers, ProxiedAgent
from callgate.features.agents.proxy.messages import combined
from callgate.features.agents.proxy.proxy import Proxy
from callgate.features.agents.proxy.sessions import ProxiedSession
from callgate.features.editor.peer import EditorPeer, PeerGone
from callgate.features.editor.stdio import last_words
from callgate.protocol.acp.initialize import Initialize, Received, read_params
from callgate.protocol.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Request,
    RpcError,
    shown,
)

SUCCESSOR = "proxy/successor"
_OUTSIDE = "the agent's own process, which callgate did not start, without a sandbox"


class Envelope(Received, frozen=True, kw_only=True):
    """The parameters of `proxy/successor`."""

    method: str
    params: dict[str, Any] | list[Any] | None = None


class _Wrapped(msgspec.Struct, frozen=True, omit_defaults=True):
    method: str
    params: Any = None


class Successor:
    """Implements `agents.Agent` with the successor in a proxy chain."""

    runs_in = _OUTSIDE
    is_alive = True

    def __init__(self, conductor: EditorPeer, location: AgentLocation) -> None:
        self._conductor = conductor
        self.location = location

    async def request(self, method: str, params: Any) -> Any:
        try:
            return await self._conductor.request(SUCCESSOR, _Wrapped(method, params))
        except PeerGone:
            raise self.failure() from None

    def notify(self, method: str, params: Any) -> None:
        self._conductor.notify(SUCCESSOR, _Wrapped(method, params))

    def failure(self) -> RpcError:
        return RpcError(INTERNAL_ERROR, "the conductor has disconnected", {"reason": "agent_ended"})

    def kill(self, why: str) -> None:
        """Do nothing: the conductor owns the agent."""


class Chain:
    """Implements `agents.Agents` with one agent, which is reached through the conductor."""

    def __init__(self, conductor: EditorPeer, location: AgentLocation, handlers: Handlers) -> None:
        self._successor = Successor(conductor, location)
        self._handlers = handlers

    async def greet(self, params: Any) -> Any:
        return await self._successor.request("initialize", params)

    def logged_in(self, params: Any) -> None:
        """Do nothing: there is no other agent to log in."""

    async def at(self, location: AgentLocation) -> ProxiedAgent:
        return self._successor

    def every(self) -> list[ProxiedAgent]:
        return [self._successor]

    def usual(self) -> ProxiedAgent:
        return self._successor

    async def close(self) -> None:
        """Do nothing: the conductor owns the agent."""

    async def answer(self, params: Any, request: Request) -> Any:
        """Answer a request of the successor, which is in an envelope."""
        wrapped = read_params(Envelope, params)
        return await self._handlers.answer(self._successor, wrapped.method, wrapped.params, request)

    def noted(self, params: Any) -> None:
        wrapped = read_params(Envelope, params)
        self._handlers.noted(self._successor, wrapped.method, wrapped.params)


PROXY_INITIALIZE = "proxy/initialize"
"""Initialization by a conductor, which starts the agent itself. Not in the stable protocol."""

_log = logging.getLogger("callgate.acp")


class Greeted(Protocol):
    """The part of the proxy that answers an editor."""

    async def initialize(self, params: Any) -> Any: ...
    async def answer(self, method: str, params: Any, request: Request) -> Any: ...
    def noted(self, method: str, params: Any) -> None: ...
    async def close(self) -> None: ...


MakeChain = Callable[[AgentLocation, Handlers], Chain]
MakeProxy = Callable[[EditorPeer, Initialize, MakeChain | None], Awaitable[Greeted]]
"""Creates the proxy, in a chain or, if None, with an agent that it starts itself."""


class ProxyServer:
    """Implements `stdio.Client` for the editor of one proxy."""

    def __init__(
        self,
        make_proxy: MakeProxy,
        unstable: bool,
        write: Callable[[bytes], None],
        on_disconnect: Callable[[], None],
    ) -> None:
        self._make_proxy, self._unstable = make_proxy, unstable
        self._chain: Chain | None = None
        self.peer = EditorPeer(write, self._answer, self._noted, on_gone=on_disconnect)
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
            raise RpcError(INVALID_REQUEST, "Invalid request: initialize must come first")
        if method == SUCCESSOR:
            if self._chain is None:
                raise RpcError(METHOD_NOT_FOUND, f"Method not found: {shown(method)}")
            return await self._chain.answer(params, request)
        assert self._proxy is not None
        return await self._proxy.answer(method, params, request)

    def _make_chain(self, location: AgentLocation, handlers: Handlers) -> Chain:
        self._chain = Chain(self.peer, location, handlers)
        return self._chain

    async def _greet(self, params: Any, make_chain: MakeChain | None) -> Any:
        if self._greeted:
            raise RpcError(INVALID_REQUEST, "Invalid request: the proxy is already initialized")
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
        elif self._proxy is not None:  # before initialization there are no sessions
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


_NO_SESSION = "The session of the hook is not open in the editor."


class ProxyHooks:
    """Implements `listener.Answering` for the agent of one proxy."""

    def __init__(
        self,
        find_session: Callable[[HookEvent], ProxiedSession | None],
        classes: Mapping[str, str],
    ) -> None:
        """`classes` is `[hooks.tools]`."""
        self._find_session = find_session
        self._classes = classes
        self.tickets = Tickets()

    async def submit(
        self,
        agent: str,
        data: bytes,
        disconnected: Callable[[], Awaitable[Any]] | None = None,
        phase: str | None = None,
        sender: Sender | None = None,
    ) -> bytes:
        """Return the answer to one event in the agent's format. Any failure is a refusal.

        The editor reports prompts, so the hook's reports of them are not read.
        """
        if phase == HookPhase.PROMPT:
            return events.heard(agent)
        try:
            event = await asyncio.to_thread(events.read, agent, data)  # it may be large
            if phase is not None and phase != event.phase:
                raise BadHookEvent(
                    f"The hook was called for {phase[:20]}, but its event is for {event.phase}."
                )
            session = self._find_session(event)
            if session is None:
                raise BadHookEvent(_NO_SESSION)
            if event.phase is HookPhase.AFTER:
                session.hook_ended(event)
                return events.noted(agent)
            call = await asyncio.to_thread(translate, event, self._classes, agent)
            verdict = await _unless_gone(start_task(session.hook_called(event, call)), disconnected)
            return events.write(agent, verdict)
        except (BadHookEvent, ToolError) as error:
            _log.warning("an event of the agent's hook is refused: %s", error)
            return events.refusal(agent, str(error))
        except Exception:  # a defect of callgate must not let a call run
            _log.exception("the agent's hook met a defect")
            return events.refusal(agent, "callgate failed because of a defect. See its log.")


async def _unless_gone(
    deciding: asyncio.Task[Verdict], disconnected: Callable[[], Awaitable[Any]] | None
) -> Verdict:
    """Return the verdict. The question is withdrawn if the hook stops waiting."""
    leaving = None if disconnected is None else start_task(_until(disconnected))
    try:
        waiting = {deciding} if leaving is None else {deciding, leaving}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if deciding.done():
            return deciding.result()
        return Verdict(allowed=False, reason="The hook did not wait for the answer.")
    finally:
        deciding.cancel()
        if leaving is not None:
            leaving.cancel()


async def _until(disconnected: Callable[[], Awaitable[Any]]) -> None:
    await disconnected()


_MOST_PARENTS = 64


class AgentHook:
    """The hook of one agent, while its proxy runs."""

    def __init__(self, home: str, agent: str) -> None:
        self._home, self._agent = home, agent
        self._directory = os.path.join(proxies_directory(home), str(os.getpid()))
        self._listening: socket.socket | None = None
        self._listener: HookListener | None = None

    @property
    def roots(self) -> tuple[Root, ...]:
        """Directories of callgate's home that the agent needs."""
        return (Root(hook_directory(self._home, self._agent)), Root(self._directory))

    def bind(self) -> None:
        """Create the socket. Raises `OSError`."""
        _reap(proxies_directory(self._home))
        make_private_directory(self._directory)
        self._listening = bind_in(self._directory)

    def serve(self, proxy: Proxy, classes: Mapping[str, str]) -> None:
        assert self._listening is not None
        hooks = ProxyHooks(proxy.find_session, classes)
        self._listener = HookListener(hooks, self._home, self._listening, _is_our_descendant)
        self._listener.start()

    async def close(self) -> None:
        if self._listener is not None:
            await self._listener.close()
        shutil.rmtree(self._directory, ignore_errors=True)


def installed_hook(home: str, argv: Sequence[str]) -> AgentHook | None:
    """Return callgate's hook of the agent; None if it is not installed."""
    agent = known.find(argv)[1] if argv else known.UNKNOWN
    if agent.hooks is None or not os.path.exists(token_file(home, agent.name)):
        return None
    return AgentHook(home, agent.name)


def _is_our_descendant(connection: socket.socket) -> bool:
    """Return whether the peer is this proxy's agent or a process that it started.

    An instance answers the hooks of all other processes.
    """
    if not hasattr(socket, "SO_PEERCRED"):  # only Linux identifies the peer process
        return False
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", data)[0]
    for _ in range(_MOST_PARENTS):
        if pid == os.getpid():
            return True
        pid = _parent(pid)
    return False


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _reap(directory: str) -> None:
    """Remove the directories of killed proxies."""
    if os.path.isdir(directory):
        for name in os.listdir(directory):
            if not os.path.exists(f"/proc/{name}"):
                shutil.rmtree(os.path.join(directory, name), ignore_errors=True)
