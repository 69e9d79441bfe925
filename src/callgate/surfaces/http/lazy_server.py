"""The HTTP address of an instance before anybody came: a socket, a token, and nothing loaded.

    bound ---first connection---> loaded ---> served ---close---> drained within a second

An instance that nobody visits pays for a listening socket and no more.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING

from callgate.core.task_sets import start_task
from callgate.surfaces.http.dependencies import Dependencies
from callgate.surfaces.http.servers.directory import Servers

if TYPE_CHECKING:  # heavy
    from callgate.surfaces.http.serving import Serving

_log = logging.getLogger("callgate.http")


class LazyHttpServer:
    def __init__(self, listening: socket.socket, dependencies: Dependencies) -> None:
        self._listening = listening
        self._dependencies = dependencies
        self._loading: asyncio.Task[None] | None = None
        self._serving: Serving | None = None

    @property
    def servers(self) -> Servers | None:
        return self._dependencies.servers

    @property
    def url(self) -> str:
        return self._dependencies.names.url

    @property
    def page_url(self) -> str:
        """Where a browser finds it."""
        return self._dependencies.names.page_url

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._listening, self._come)

    async def load(self) -> None:
        """Do not wait for the first one."""
        self._come()
        assert self._loading is not None
        await self._loading

    def _come(self) -> None:
        """Load the server; the first connection waits in the backlog meanwhile."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listening)
        if self._loading is None:
            self._loading = start_task(self._load())

    async def _load(self) -> None:
        try:
            serving = await asyncio.to_thread(_serving_class)
            self._serving = serving(self._dependencies)
            self._serving.start(self._listening)
        except Exception:  # the instance goes on without it, and nobody waits in its backlog
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
        """Let answers go out, and close. What runs was stopped before."""
        self.stop_accepting()
        if self._serving is not None:
            await self._serving.close()
        self._dependencies.access.close()


def _serving_class() -> type[Serving]:
    """In a thread: it takes long, and the event loop goes on meanwhile."""
    from callgate.surfaces.http.serving import Serving  # lazy: with the first visitor  # noqa: PLC0415

    return Serving
