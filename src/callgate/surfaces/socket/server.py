"""The socket server: accepts peers of its own user, and closes within a second."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine
from typing import Any

from callgate.config.instance_records import peer
from callgate.core.events import Event
from callgate.core.ids import session_id
from callgate.core.task_sets import TaskSet
from callgate.dispatch.clients import client_of
from callgate.protocol.socket_v1.tool_events import HAPPENINGS
from callgate.runtime import Runtime, Stop
from callgate.sandbox.processes.command_marks import inherited_mark
from callgate.surfaces.accepting import Acceptor
from callgate.surfaces.socket.callers import OpenSession
from callgate.surfaces.socket.connections import Connection
from callgate.surfaces.socket.hosting import Hosting
from callgate.surfaces.socket.listening import Listener, file_limit
from callgate.surfaces.unfinished import Unfinished

_DRAIN_S = 0.7
"""How long calls may take to end when the instance stops."""

_log = logging.getLogger("callgate.socket")


class SocketServer:
    def __init__(
        self,
        runtime: Runtime,
        open_session: OpenSession,
        hosts: Hosting | None = None,
        unfinished: Unfinished | None = None,
    ) -> None:
        """`unfinished`: the bound that other surfaces share."""
        self.runtime = runtime
        self.open_session = open_session
        self.hosts = hosts
        self.unfinished = unfinished or Unfinished()
        self._connections: dict[str, Connection] = {}
        """By session id."""
        self._subscribers: set[Connection] = set()
        self._tasks = TaskSet(_log, "a connection's work failed")
        self._unlisten = runtime.listen(self._hear)
        self._acceptor: Acceptor | None = None

    def start(self, listener: Listener) -> None:
        self._acceptor = Acceptor(listener.socket, lambda: Connection(self, session_id()))
        self._acceptor.start()

    def stop_accepting(self) -> None:
        """Take no more peers; those who are there stay."""
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None

    def __len__(self) -> int:
        return len(self._connections)

    async def close(self) -> None:
        """Take no more peers, stop what runs, tell everyone, and close. Idempotent."""
        self.stop_accepting()
        stopping = self.start_task(self.runtime.close())
        await asyncio.wait({stopping}, timeout=_DRAIN_S)
        for connection in list(self._connections.values()):
            connection.shut_down()
        self._unlisten()
        await asyncio.sleep(0)

    # What a connection asks of us.

    def joined(self, connection: Connection) -> bool:
        assert connection.transport is not None
        uid, pid = peer(connection.transport.get_extra_info("socket"))
        if uid != os.getuid():
            _log.warning("a peer of user %d was turned away", uid)
            return False
        # Peers leave half of the files for the work.
        if len(self._connections) >= file_limit() // 2 and not self._drop_silent():
            _log.warning("there are too many peers for another one")
            return False
        connection.watcher.may_answer = pid == 0 or not inherited_mark(pid)
        connection.caller.client = client_of(pid)
        self._connections[connection.session_id] = connection
        return True

    def _drop_silent(self) -> bool:
        """Let the oldest peer go that never asked for anything; whether there was one."""
        silent = (each for each in self._connections.values() if not each.has_asked)
        oldest = next(silent, None)
        if oldest is not None:
            oldest.abort()
            self.left(oldest)
        return oldest is not None

    def left(self, connection: Connection) -> None:
        self._subscribers.discard(connection)
        if self._connections.pop(connection.session_id, None) is not None:
            for session in connection.sessions[:1]:  # all have the one id
                self.start_task(self.runtime.close_session(session, Stop.CALLER_GONE))

    def start_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self._tasks.start(work)

    def subscribed(self, connection: Connection) -> None:
        if connection.watcher.is_subscribed:
            self._subscribers.add(connection)
        else:
            self._subscribers.discard(connection)

    def _hear(self, event: Event) -> None:
        if event.type in HAPPENINGS or self._subscribers:
            connection = self._connections.get(event.session_id)
            if connection is not None:
                connection.hear(event)
