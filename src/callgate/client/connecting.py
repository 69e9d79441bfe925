"""`callgate.connect`: finds a running instance of this user and opens a connection to it.

explicit socket -> explicit instance -> newest -> config file -> usual place
"""

from __future__ import annotations

import asyncio
import os
import socket as sockets
from typing import Literal

from callgate.client.blocking import BlockingGate
from callgate.client.errors import InstanceGone, NoInstance
from callgate.client.reaching import pauses, why_not
from callgate.client.remote import Peer, RemoteGate
from callgate.config import instance_records
from callgate.config.home import Home

PATIENCE_S = 15.0
"""How long an instance may say nothing before it is asked whether it lives, and then again."""


class Connecting:
    """A connection to be: `async with` it, or `with` it. Each opens one of its own."""

    def __init__(
        self,
        peer: Peer,
        home: str,
        socket: str | None,
        instance: str | None,
        patience_s: float,
    ) -> None:
        self._peer = peer
        self._home = home
        self._socket = socket
        self._instance = instance
        self._patience_s = patience_s
        self._remote: list[RemoteGate] = []
        self._blocking: list[BlockingGate] = []

    async def __aenter__(self) -> RemoteGate:
        gate = await self._open()
        self._remote.append(gate)
        return gate

    async def __aexit__(self, *exc: object) -> None:
        await self._remote.pop().close()

    def __enter__(self) -> BlockingGate:
        gate = BlockingGate(self._open)
        self._blocking.append(gate)
        return gate

    def __exit__(self, *exc: object) -> None:
        self._blocking.pop().close()

    async def _open(self) -> RemoteGate:
        path = self._find()
        gate = RemoteGate(self._peer, self._patience_s)
        connection = await _reach(path, self._patience_s)
        await asyncio.get_running_loop().create_unix_connection(lambda: gate.link, sock=connection)
        try:
            await gate.greet()
        except InstanceGone as gone:
            await gate.close()
            raise NoInstance(f"{path} was reached, but: {gone}") from gone
        except BaseException:
            await gate.close()
            raise
        return gate

    def _find(self) -> str:
        try:
            path = instance_records.find(self._home, socket=self._socket, instance=self._instance)
        except instance_records.NoInstance:
            raise NoInstance(
                f"No instance {self._instance!r} runs (`callgate status` shows those that do)."
            ) from None
        if path is None:
            raise NoInstance(f"No instance of callgate runs in {self._home}.")
        return path


def connect(
    *,
    socket: str | os.PathLike[str] | None = None,
    instance: str | int | None = None,
    cwd: str | os.PathLike[str] | None = ".",
    caller: Literal["cli", "plugin"] = "plugin",
    confirmer: bool = False,
    home: str | os.PathLike[str] | None = None,
    patience_s: float = PATIENCE_S,
) -> Connecting:
    """Connect to a running instance: `async with connect() as gate`, or `with connect() as gate`.

    Args:
        socket: where it listens; beats `instance`, its pid or label. Else the newest.
        cwd: the directory to work in, which the instance must serve; None means its own.
        confirmer: what must be asked about our calls waits for a person, who answers elsewhere.
            Without, it is refused where nobody can be asked.
        patience_s: how long the instance may say nothing.
    """
    if caller not in ("cli", "plugin"):
        raise ValueError("a caller over the socket is cli or plugin")
    directory = Home.from_environment().path if home is None else os.path.abspath(home)
    peer = Peer(
        caller=caller,
        cwd=None if cwd is None else os.path.abspath(cwd),
        confirmer=confirmer,
    )
    path = None if socket is None else os.fspath(socket)
    return Connecting(
        peer, directory, path, None if instance is None else str(instance), patience_s
    )


async def _reach(path: str, patience_s: float) -> sockets.socket:
    """A connected socket, with a process of our own user at the other end."""
    connection = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
    connection.setblocking(False)
    try:
        await _connect(connection, path, patience_s)
        if not instance_records.is_own_peer(connection):
            raise NoInstance(f"What listens at {path} belongs to another user.")
    except OSError as error:
        connection.close()
        raise NoInstance(f"Nobody answers at {path}: {why_not(error)}.") from error
    except BaseException:
        connection.close()
        raise
    return connection


async def _connect(connection: sockets.socket, path: str, patience_s: float) -> None:
    """Not `sock_connect`: it takes a full queue for a connection that is under way."""
    loop = asyncio.get_running_loop()
    until = loop.time() + patience_s
    for pause in pauses():
        try:
            connection.connect(path)
            return
        except BlockingIOError:
            if loop.time() + pause > until:
                raise
            await asyncio.sleep(pause)
