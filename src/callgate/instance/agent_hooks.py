"""The hooks of other agents, as an instance serves them: loaded with the first event.

listening socket --first connection--> service, listener --close--> what agents run is let go
"""

from __future__ import annotations

import asyncio
import logging
import socket
from functools import cached_property
from typing import TYPE_CHECKING

from callgate.config.schema import HooksTable
from callgate.instance.directories import ServedDirectories
from callgate.surfaces.draining import Draining
from callgate.surfaces.hooks.socket_files import bind, release
from callgate.wiring.runtime import Wired

if TYPE_CHECKING:  # loaded with the first event
    from callgate.surfaces.hooks.listener import HookListener
    from callgate.surfaces.hooks.service import HookService

_log = logging.getLogger("callgate.hooks")


class AgentHooks:
    def __init__(self, wired: Wired, directories: ServedDirectories, draining: Draining) -> None:
        self._wired = wired
        self._directories = directories
        self._draining = draining
        self._listening: socket.socket | None = None
        self._listener: HookListener | None = None

    @cached_property
    def service(self) -> HookService:
        from callgate.surfaces.hooks.service import HookService  # lazy: few have hooks  # noqa: PLC0415

        return HookService(
            self._wired.runtime,
            self._directories.open_session,
            self._wired.home.path,
            self._settings,
            lambda: self._draining.has_begun,
            lambda: self._wired.settings.web.allow,
        )

    def _settings(self) -> HooksTable:
        self._wired.policies.refresh()
        return self._wired.settings.hooks

    def start(self) -> None:
        """Listen. Without a socket the hooks refuse every call."""
        try:
            self._listening = bind(self._wired.home.path)
        except OSError as error:
            _log.error("hooks of agents cannot be served: %s", error)
            return
        asyncio.get_running_loop().add_reader(self._listening, self._come)

    def _come(self) -> None:
        from callgate.surfaces.hooks.listener import HookListener  # lazy: as above  # noqa: PLC0415

        assert self._listening is not None
        asyncio.get_running_loop().remove_reader(self._listening)
        self._listener = HookListener(self.service, self._wired.home.path, self._listening)
        self._listener.start()

    async def close(self) -> None:
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening)
            release(self._wired.home.path, self._listening)
        if "service" in self.__dict__:
            await self.service.close()
        if self._listener is not None:
            await self._listener.close()
