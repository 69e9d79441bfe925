"""An instance's HTTP surface, put together and running."""

from __future__ import annotations

import logging
import os
import socket

from callgate.config.home import Home
from callgate.core.errors import ToolRegistrationError
from callgate.surfaces.draining import Draining
from callgate.surfaces.http.application import make_application
from callgate.surfaces.http.contexts import Context
from callgate.surfaces.http.dependencies import Dependencies
from callgate.surfaces.http.mcp_endpoint import McpEndpoint
from callgate.surfaces.http.readiness import Readiness
from callgate.surfaces.http.routes import saved_rules, undo
from callgate.surfaces.http.server import HttpServer
from callgate.surfaces.http.servers.carrying import Carrier
from callgate.surfaces.http.stream.fanout import Fanout
from callgate.surfaces.http.stream.remote_deltas import RemoteDeltas
from callgate.surfaces.live_sessions import LiveSessions
from callgate.telemetry.prometheus import CallMetrics
from callgate.workspace.undo.history import History

_TURNS_S = 0.2
"""How long turns may take to end when the instance stops."""
_log = logging.getLogger("callgate.http")


class Serving:
    def __init__(self, dependencies: Dependencies) -> None:
        history = History(os.path.join(dependencies.served.home, "undo"))
        try:
            undo.register(dependencies.runtime, history)
        except ToolRegistrationError as error:  # a tool of the user's has the name
            _log.warning("nothing can be undone over HTTP: %s", error)
        if dependencies.refresh is not None:
            try:
                saved_rules.register(
                    dependencies.runtime, Home(dependencies.served.home), dependencies.refresh
                )
            except ToolRegistrationError as error:
                _log.warning("no rule can be saved over HTTP: %s", error)
        runtime, servers = dependencies.runtime, dependencies.servers
        fanout = Fanout(runtime)
        carrier = None if servers is None else Carrier(servers)
        draining = dependencies.draining or Draining()
        self.context = Context(
            runtime=dependencies.runtime,
            sessions=LiveSessions(
                dependencies.runtime,
                dependencies.open_session,
                dependencies.open_agent,
                dependencies.served.ceiling,
            ),
            access=dependencies.access,
            names=dependencies.names,
            served=dependencies.served,
            fanout=fanout,
            hosts=dependencies.hosts,
            history=history,
            draining=draining,
            readiness=Readiness(dependencies.runtime, draining, dependencies.served.workspaces[0]),
            skills=dependencies.skills,
            servers=servers,
            carrier=carrier,
            delta_streams={},
            deltas=None
            if servers is None or carrier is None
            else RemoteDeltas(runtime, servers, carrier, fanout),
            workers=dependencies.workers,
            metrics=CallMetrics(
                dependencies.served.audit, dependencies.chain, dependencies.counted_from
            ),
        )
        self._mcp = McpEndpoint(self.context)
        application = make_application(self.context, mcp=self._mcp, **dependencies.options)
        self._server = HttpServer(application, unfinished=dependencies.unfinished)

    def start(self, listening: socket.socket) -> None:
        self._server.start(listening)

    def stop_accepting(self) -> None:
        self._server.stop_accepting()

    async def close(self) -> None:
        await self.context.sessions.stop(_TURNS_S)
        await self._mcp.close()
        await self._server.close()
        self.context.fanout.close()
        if self.context.deltas is not None:
            await self.context.deltas.close()
        if self.context.carrier is not None:
            await self.context.carrier.close()
