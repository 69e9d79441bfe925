"""Connections on behalf of a command: later ones take the remembered route, and no other."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Iterator

import pytest

from callgate.core.commands import Connection, ConnectionVerdict
from callgate.sandbox import allowed_hosts
from callgate.sandbox.connector import Connector
from callgate.sandbox.host_approvals import HostApprovals

NAME_SERVER = ipaddress.IPv6Address("::ffff:192.0.2.53").packed


class Runtime:
    """Collects the replies of a connector, and the lookups that it made."""

    def __init__(self, approvals: HostApprovals, addresses: list[str]) -> None:
        self.lookups = 0
        self.addresses = addresses
        self._replies: dict[int, asyncio.Future[tuple[int, socket.socket | None]]] = {}
        self.connector = Connector(approvals, self._reply, (1, socket.socket.close), resolve=self._resolve)

    async def _resolve(self, host: str, port: int) -> list[str]:
        self.lookups += 1
        return self.addresses

    def _reply(self, id: int, number: int, connection: socket.socket | None) -> None:
        self._replies[id].set_result((number, None if connection is None else connection.dup()))

    async def connect(self, port: int, address: bytes) -> tuple[int, socket.socket | None]:
        id = len(self._replies)
        self._replies[id] = asyncio.get_running_loop().create_future()
        self.connector.connect(id, port, address, False, "/bin/program")
        return await asyncio.wait_for(self._replies[id], 30)

    async def address_of(self, name: str) -> bytes:
        """What the command's resolver says to a name."""
        _, connection = await self.connect(53, NAME_SERVER)
        assert connection is not None
        labels = b"".join(bytes([len(each)]) + each.encode() for each in name.split("."))
        query = b"\0\1\1\0\0\1" + bytes(6) + labels + b"\0" + b"\0\1\0\1"
        reader, writer = await asyncio.open_connection(sock=connection)
        writer.write(len(query).to_bytes(2) + query)
        answer = await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
        writer.close()
        return bytes(10) + b"\xff\xff" + answer[-4:]


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listener:
        yield listener.getsockname()[1]


async def reached(runtime: Runtime, port: int, address: bytes) -> str | int:
    """The address that a connection reached, or the error number."""
    number, connection = await runtime.connect(port, address)
    if connection is None:
        return number
    with connection:
        return str(connection.getpeername()[0])


async def test_a_listed_host_is_looked_up_once_for_many_connections(port: int) -> None:
    entry = allowed_hosts.parse(f"private:build.test:{port}")
    runtime = Runtime(HostApprovals((entry,)), ["127.0.0.1"])
    address = await runtime.address_of("build.test")
    assert [await reached(runtime, port, address) for _ in range(4)] == ["127.0.0.1"] * 4
    assert (runtime.lookups, runtime.connector.reached) == (1, 4)


async def test_a_route_to_a_server_that_is_gone_is_replaced_by_a_lookup(port: int) -> None:
    entry = allowed_hosts.parse(f"private:build.test:{port}")
    runtime = Runtime(HostApprovals((entry,)), ["127.0.0.2", "127.0.0.1"])
    with socket.create_server(("127.0.0.2", port)):
        address = await runtime.address_of("build.test")
        assert await reached(runtime, port, address) == "127.0.0.2"
    assert await reached(runtime, port, address) == "127.0.0.1"
    runtime.addresses = []
    assert await reached(runtime, port + 1, address) == errno.EACCES  # a route counts for its port


async def test_an_approval_for_one_connection_makes_no_route(port: int) -> None:
    questions: list[str] = []

    async def approve(connection: Connection) -> ConnectionVerdict:
        questions.append(connection.entry)
        return ConnectionVerdict(once=True)

    entry = allowed_hosts.parse("private:other.test")
    runtime = Runtime(HostApprovals((entry,), approve), ["127.0.0.1"])
    address = await runtime.address_of("build.test")
    for _ in range(2):
        assert await reached(runtime, port, address) == "127.0.0.1"
    assert len(questions) == 4  # the name, and its private address, for each connection
    assert runtime.lookups == 2
