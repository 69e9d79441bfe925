"""The HTTP address of an instance: a listening socket, access, and a server that loads lazily.

    bound ---first connection---> loaded ---> served ---close---> drained within a second

Without visitors, an instance has only a listening socket.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Protocol

from callgate.audit.forward import end_of
from callgate.core.tasks import start_task
from callgate.feature import port
from callgate.features.chat.settings import ChatSettings
from callgate.features.web.access import (
    Access,
    Names,
    private_name,
    read_advertised,
    read_public,
    reap_tokens,
)
from callgate.features.web.contexts import Context, Peers, Served
from callgate.instance.instance import Service, ServiceContext
from callgate.instance.startup import CannotServe
from callgate.socket.instances import token_path
from callgate.socket.listening import Address, BadAddress, bind

if TYPE_CHECKING:
    from callgate.features.web.application import Serving


_log = logging.getLogger("callgate.http")


class LazyHttpServer:
    def __init__(self, listening: socket.socket, context: Context) -> None:
        self._listening = listening
        self.context = context
        self._loading: asyncio.Task[None] | None = None
        self._serving: Serving | None = None

    @property
    def url(self) -> str:
        return self.context.names.url

    @property
    def page_url(self) -> str:
        """The URL for browsers."""
        return self.context.names.page_url

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._listening, self._come)

    async def load(self) -> None:
        """Load the server without waiting for the first connection."""
        self._come()
        assert self._loading is not None
        await self._loading

    def _come(self) -> None:
        """Start loading the server, while the first connection waits in the backlog."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listening)
        if self._loading is None:
            self._loading = start_task(self._load())

    async def _load(self) -> None:
        try:
            serving = await asyncio.to_thread(_serving_class)
            self._serving = serving(self.context)
            self._serving.start(self._listening)
        except Exception:  # the instance continues without HTTP, and closes the backlog
            _log.exception("HTTP could not be started")
            self._serving = None
            self._listening.close()

    def stop_accepting(self) -> None:
        """Accept no more connections. Idempotent."""
        if self._serving is not None:
            self._serving.stop_accepting()
        elif self._listening.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._listening)
            if self._loading is not None:
                self._loading.cancel()
            self._listening.close()

    async def close(self) -> None:
        """Finish the answers and close. The caller has stopped running calls before."""
        self.stop_accepting()
        if self._serving is not None:
            await self._serving.close()
        self.context.access.close()


def _serving_class() -> type[Serving]:
    """Import the server. Slow, so it runs in a thread."""
    from callgate.features.web.application import Serving  # lazy: with the first visitor  # noqa: PLC0415

    return Serving


class Membership(Protocol):
    """Membership of this server in the group that shares a store.

    The port `join_servers` returns the membership for several servers.
    """

    def open_access(self, path: str) -> Access: ...

    def open_peers(self, context: Context) -> Peers: ...

    def start(self, access: Access, closing: AsyncExitStack) -> None:
        """Announce this server's address to the others, until `closing` closes."""
        ...


class Alone:
    """The membership of a single server."""

    open_access = Access
    open_peers = Peers

    def start(self, access: Access, closing: AsyncExitStack) -> None:
        """Do nothing, because there is no other server."""


class HttpService(Service):
    """The HTTP address of an instance."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    def open(self, closing: AsyncExitStack) -> None:
        self.server, self.access, self._membership = open_http(self._context)
        closing.push_async_callback(self.server.close)
        self._context.http = self

    def start(self, closing: AsyncExitStack) -> None:
        reap_tokens(self._context.wired.home.path)
        closing.callback(self.server.stop_accepting)
        self.server.start()
        self._membership.start(self.access, closing)

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def page_url(self) -> str:
        return self.server.page_url

    @property
    def token(self) -> str:
        """The present token for clients; a rotation changes it."""
        return self.access.token


def open_http(context: ServiceContext) -> tuple[LazyHttpServer, Access, Membership]:
    """Return a listening server, its access and its membership. Raises `CannotServe`."""
    listening, bound = listen_http(context.endpoints.http)
    wired, directories, record = context.wired, context.directories, context.record
    home, settings = wired.home, wired.settings
    try:
        private = private_name(home.path) if bound.is_local else None
        names = Names(
            bound,
            private,
            advertised=_advertised(settings.instance.advertise_url),
            public=_public(settings.instance.public_url),
        )
        join = port("join_servers")
        membership: Membership = Alone() if join is None else join(wired, names, record)
        access = membership.open_access(token_path(home.path, record.pid))
    except BaseException:
        listening.close()
        raise
    served = Served(
        pid=record.pid,
        version=record.version,
        started_at=record.started_at / 1000,
        workspaces=list(directories.roots),
        mode=directories.mode,
        ceiling=context.ceiling,
        model=settings.of(ChatSettings).model,
        models=sorted(settings.of(ChatSettings).models),
        home=home.path,
        audit=home.audit,
        search_above=settings.tools.search_above,
    )
    surface = Context(
        runtime=wired.runtime,
        open_session=directories.open_session,
        open_agent=wired.open_agent,
        hosts=wired.hosting,
        served=served,
        settings=settings,
        access=access,
        names=names,
        skills=lambda: wired.skills,
        refresh=wired.policies.refresh,
        unfinished=context.unfinished,
        draining=context.draining,
        open_peers=membership.open_peers,
        chain=lambda: wired.chain,
        counted_from=end_of(home.audit),
    )
    return LazyHttpServer(listening, surface), access, membership


def listen_http(addresses: Sequence[Address]) -> tuple[socket.socket, Address]:
    """Return a listening socket, and its address with the actual port. Raises `CannotServe`."""
    problems: list[BadAddress] = []
    for address in addresses:
        try:
            listening = bind(address)
        except BadAddress as error:
            problems.append(error)
        else:
            return listening, Address(address.host, listening.getsockname()[1])
    raise CannotServe(str(problems[0])) from problems[0]


def _advertised(url: str | None) -> str | None:
    try:
        return None if url is None else read_advertised(url)
    except BadAddress as error:
        raise CannotServe(f"[instance] advertise_url: {error}") from error


def _public(url: str | None) -> str | None:
    try:
        return None if url is None else read_public(url)
    except BadAddress as error:
        raise CannotServe(f"[instance] public_url: {error}") from error
