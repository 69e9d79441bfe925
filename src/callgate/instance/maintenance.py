"""What an instance looks after while it serves: that it can be found, its settings, its memory.

    each second -> the home is another, or gone  --------> it ends, and says so
                   its socket is gone            -> made again, or it ends, and says so
                   its record is gone            -> written again
                   the settings changed          -> read again, and said to whoever listens
                   others took us for dead       -> it ends, and says so
                   its home is a copy            -> it ends, and says so

An instance that nobody can reach or stop by name is worse than none.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Sequence

from callgate.surfaces.socket.instances import InstanceRecord, publish
from callgate.surfaces.socket.listening import CannotListen, Listener
from callgate.surfaces.socket.server import SocketServer

LOOK_EVERY_S = 1.0
_log = logging.getLogger("callgate.serve")


class Maintenance:
    def __init__(
        self,
        home: str,
        record: InstanceRecord,
        server: SocketServer,
        listener: Listener,
        chores: Sequence[Callable[[], object]],
        refusal: Callable[[], str | None],
    ) -> None:
        """`chores` are done each second, too. `refusal`: why it must end; None: it need not."""
        self._home = home
        self._directory = os.stat(home)
        self._record = record
        self._server = server
        self._chores = chores
        self._refusal = refusal
        self._listener = listener
        self._is_leaving = False

    async def run(self) -> str:
        """Look after it all until that is not possible; returns why not."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for chore in self._chores:
                chore()
            if (why := self._refusal()) is not None:
                return why
            try:
                if not self._is_leaving:
                    self._stay_known()
            except CannotListen as error:
                return str(error)
            except OSError as error:
                return f"{self._home} cannot be used: {error.strerror or error}"

    def _stay_known(self) -> None:
        """Raises `CannotListen` or OSError."""
        if not os.path.samestat(os.stat(self._home), self._directory):
            raise CannotListen(f"{self._home} is another directory than it was")
        if not self._listener.is_reachable:
            self._server.stop_accepting()
            self._listener = self._listener.renew()
            self._server.start(self._listener)
            _log.error("%s was gone and has been made again", self._listener.path)
        publish(self._home, self._record, anew=False)

    def stop_listening(self) -> None:
        """Take no more peers; those who are there stay, and `callgate stop` still knows it."""
        self._is_leaving = True
        self._server.stop_accepting()
        self._listener.close()

    def close(self) -> None:
        """Stop listening: at the socket that there was, or the one that was made again."""
        self._listener.close()
