"""An instance's HTTP surface, put together and running."""

from __future__ import annotations

import logging
import os
import socket

from callgate.config.places import Home
from callgate.core.errors import ToolRegistrationError
from callgate.live_sessions import LiveSessions
from callgate.surfaces.http import saved_rules, undo
from callgate.surfaces.http.application import make_application
from callgate.surfaces.http.doors import Door
from callgate.surfaces.http.fanout import Fanout
from callgate.surfaces.http.mcp_door import McpDoor
from callgate.surfaces.http.parts import Parts
from callgate.surfaces.http.server import HttpServer
from callgate.workspace.history import History

_TURNS_S = 0.2
"""How long turns may take to end when the instance stops."""
_log = logging.getLogger("callgate.http")


class Serving:
    def __init__(self, parts: Parts) -> None:
        history = History(os.path.join(parts.served.home, "undo"))
        try:
            undo.register(parts.runtime, history)
        except ToolRegistrationError as error:  # a tool of the user's has the name
            _log.warning("nothing can be undone over HTTP: %s", error)
        if parts.refresh is not None:
            try:
                saved_rules.register(parts.runtime, Home(parts.served.home), parts.refresh)
            except ToolRegistrationError as error:
                _log.warning("no rule can be saved over HTTP: %s", error)
        self.door = Door(
            runtime=parts.runtime,
            sessions=LiveSessions(
                parts.runtime, parts.open_session, parts.open_agent, parts.served.ceiling
            ),
            access=parts.access,
            names=parts.names,
            served=parts.served,
            fanout=Fanout(parts.runtime),
            hosts=parts.hosts,
            history=history,
            skills=parts.skills,
        )
        self._mcp = McpDoor(self.door)
        application = make_application(self.door, mcp=self._mcp, **parts.options)
        self._server = HttpServer(application, unfinished=parts.unfinished)

    def start(self, listening: socket.socket) -> None:
        self._server.start(listening)

    def stop_accepting(self) -> None:
        self._server.stop_accepting()

    async def close(self) -> None:
        await self.door.sessions.stop(_TURNS_S)
        await self._mcp.close()
        await self._server.close()
        self.door.fanout.close()
