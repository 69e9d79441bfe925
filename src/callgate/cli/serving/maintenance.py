"""What an instance looks after while it serves: that it can be found, its memory and its log.

    each second -> the home is another, or gone  --------> it ends, and says so
                   its socket is gone            -> made again, or it ends, and says so
                   its record is gone            -> written again
                   the settings changed          -> read again, and said to whoever listens

An instance that nobody can reach or stop by name is worse than none.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

from callgate.cli.log_limits import rotate
from callgate.cli.serving.memory_release import Memory
from callgate.surfaces.socket.instances import Instance, publish
from callgate.surfaces.socket.listening import CannotListen, Listener
from callgate.surfaces.socket.server import SocketServer

LOOK_EVERY_S = 1.0
_log = logging.getLogger("callgate.serve")


class Upkeep:
    def __init__(
        self,
        home: str,
        instance: Instance,
        server: SocketServer,
        listener: Listener,
        log: str,
        refresh: Callable[[], None],
    ) -> None:
        """`log` is the file that an instance in the background writes to; `refresh` looks at the
        settings."""
        self._home = home
        self._directory = os.stat(home)
        self._instance = instance
        self._server = server
        self._memory = Memory()
        self._log = log
        self._refresh = refresh
        self.listener = listener

    async def watch(self) -> str:
        """Look after it all until that is not possible; returns why not."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self._memory.tidy()
            rotate(self._log)
            self._refresh()
            try:
                self._stay_known()
            except CannotListen as error:
                return str(error)
            except OSError as error:
                return f"{self._home} cannot be used: {error.strerror or error}"

    def _stay_known(self) -> None:
        """Raises `CannotListen` or OSError."""
        if not os.path.samestat(os.stat(self._home), self._directory):
            raise CannotListen(f"{self._home} is another directory than it was")
        if not self.listener.is_reachable:
            self._server.stop_accepting()
            self.listener = self.listener.renew()
            self._server.start(self.listener)
            _log.error("%s was gone and has been made again", self.listener.path)
        publish(self._home, self._instance, anew=False)
