"""Takes connections from a listening socket: few in one turn of the loop, none without files.

asyncio's own servers listen again with a queue of 100, take the whole queue in one turn, and
where no file can be opened log a traceback for each place in it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Protocol

from callgate.core.task_sets import TaskSet

BACKLOG = 512
"""Peers that wait for us before the system turns more away."""
_MOST_AT_ONCE = 16
_RETRY_S = 1.0
"""How long nobody is taken where the system has no room for one more."""
_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_log = logging.getLogger("callgate.surfaces")


class Listening(Protocol):
    """A bound, listening, non-blocking socket."""

    def fileno(self) -> int: ...

    def accept(self) -> tuple[socket.socket, object]: ...

    def close(self) -> None: ...


class Acceptor:
    def __init__(
        self,
        listening: Listening,
        factory: Callable[[], asyncio.BaseProtocol],
        *,
        retry_s: float = _RETRY_S,
    ) -> None:
        self._listening = listening
        self._factory = factory
        self._retry_s = retry_s
        self._retry: asyncio.TimerHandle | None = None
        self._is_full = False
        """The system had no room the last time."""
        self._tasks = TaskSet(_log, "a connection could not be made")

    def start(self) -> None:
        self._retry = None
        asyncio.get_running_loop().add_reader(self._listening.fileno(), self._accept)

    def close(self) -> None:
        """Take no more, and close the listening socket. Idempotent."""
        if self._retry is not None:
            self._retry.cancel()
        elif self._listening.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._listening.fileno())
        self._listening.close()

    def _accept(self) -> None:
        for _ in range(_MOST_AT_ONCE):
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(error)
                return
            self._is_full = False
            connection.setblocking(False)
            self._connect(connection)

    def _pause(self, error: OSError) -> None:
        """Those who wait stay in the queue; the socket would wake us all the time for them."""
        if not self._is_full:
            self._is_full = True
            effect = "peers wait" if error.errno in _NO_ROOM else "no peer was taken"
            _log.error("%s: %s", effect, error.strerror or error)
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listening.fileno())
        self._retry = loop.call_later(self._retry_s, self.start)

    def _connect(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._tasks.start(loop.connect_accepted_socket(self._factory, connection))
