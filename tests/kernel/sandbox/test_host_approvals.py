"""Connections that wait for approval in the proxy, and the server names of its tunnels."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from callgate.core.commands import Connection, ConnectionVerdict
from callgate.sandbox import server_names
from callgate.sandbox.allowed_hosts import parse
from callgate.sandbox.egress import Egress, Patience
from callgate.sandbox.host_approvals import HostApprovals, Unapproved

WAIT_S = 30.0


class Approver:
    """Holds each question until the test answers it."""

    def __init__(self) -> None:
        self.asked: list[Connection] = []
        self.news = asyncio.Event()
        self.answers: dict[str, asyncio.Future[ConnectionVerdict]] = {}

    async def __call__(self, connection: Connection) -> ConnectionVerdict:
        self.asked.append(connection)
        future = self.answers[connection.entry] = asyncio.get_running_loop().create_future()
        self.news.set()
        return await future

    async def question(self, count: int = 1) -> Connection:
        async with asyncio.timeout(WAIT_S):
            while len(self.asked) < count:
                self.news.clear()
                await self.news.wait()
        return self.asked[count - 1]


async def _addresses(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


@asynccontextmanager
async def echo() -> AsyncIterator[int]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data.upper())
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@asynccontextmanager
async def proxy(approvals: HostApprovals, patience: Patience | None = None) -> AsyncIterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    egress = Egress(listener, approvals, patience=patience or Patience(), resolve=_addresses)
    try:
        async with asyncio.timeout(WAIT_S):
            yield listener.getsockname()[1]
    finally:
        egress.close()
        await egress.wait_closed()


async def tunnel(port: int, host: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    return reader, writer


async def test_held_connections_leave_room_for_those_to_listed_hosts() -> None:
    approver = Approver()
    async with echo() as there:
        approvals = HostApprovals((parse(f"private:listed.test:{there}"),), approver)
        async with proxy(approvals, Patience(connections=1)) as port:
            held = await tunnel(port, f"other.test:{there}")
            await approver.question()
            reader, writer = await tunnel(port, f"listed.test:{there}")
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"free")
            assert await reader.readexactly(4) == b"FREE"
            writer.close()
            held[1].close()


async def test_an_approval_for_one_connection_that_was_given_up_covers_its_retry() -> None:
    approver = Approver()
    async with echo() as there:
        approvals = HostApprovals((), approver)
        async with proxy(approvals) as port:
            _, given_up = await tunnel(port, f"127.0.0.1:{there}")
            await approver.question()
            given_up.close()
            await given_up.wait_closed()
            async with asyncio.timeout(WAIT_S):
                while any(each.waiting for each in approvals._pending.values()):
                    await asyncio.sleep(0.01)
            approver.answers[f"127.0.0.1:{there}"].set_result(ConnectionVerdict(once=True))
            reader, writer = await tunnel(port, f"127.0.0.1:{there}")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            writer.close()
            assert len(approver.asked) == 1
            _, again = await tunnel(port, f"127.0.0.1:{there}")
            await approver.question(2)
            again.close()


async def test_a_name_with_private_addresses_alone_is_asked_about_with_its_address() -> None:
    approver = Approver()
    async with echo() as there:
        approvals = HostApprovals((), approver)
        async with proxy(approvals) as port:
            reader, writer = await tunnel(port, f"rebound.test:{there}")
            first = await approver.question()
            approver.answers[first.entry].set_result(ConnectionVerdict())
            second = await approver.question(2)
            approver.answers[second.entry].set_result(ConnectionVerdict(refusal="User denied this operation."))
            answer = await reader.read()
            writer.close()
    assert (first.entry, first.address) == (f"rebound.test:{there}", None)
    assert (second.entry, second.address) == (f"private:rebound.test:{there}", "127.0.0.1")
    assert answer.startswith(b"HTTP/1.1 403")


async def test_a_hundred_hosts_are_asked_about_a_few_at_a_time() -> None:
    approver = Approver()
    approvals = HostApprovals((), approver)
    waits = [asyncio.ensure_future(approvals.entries(f"h{n}.test", 443)) for n in range(100)]
    for number in range(1, 101):
        asked = await approver.question(number)
        assert len(approver.asked) <= number + 7
        approver.answers[asked.entry].set_result(ConnectionVerdict())
    assert [str(entry) for (entry,) in await asyncio.gather(*waits)] == [f"h{n}.test" for n in range(100)]


async def test_too_many_connections_that_wait_are_refused() -> None:
    approvals = HostApprovals((), Approver())
    waits = [asyncio.ensure_future(approvals.entries("a.test", 443)) for _ in range(256)]
    await asyncio.sleep(0)
    with pytest.raises(Unapproved, match="too many"):
        await approvals.entries("b.test", 443)
    approvals.close()
    assert all(
        isinstance(each, asyncio.CancelledError) for each in await asyncio.gather(*waits, return_exceptions=True)
    )


def hello(name: str | None) -> bytes:
    """The ClientHello of OpenSSL for a host."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname = False
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("name", ["example.com", "EXAMPLE.com", None])
def test_the_server_name_of_tls_is_read_from_any_pieces(name: str | None) -> None:
    data = hello(name)
    assert server_names.read(data) == (name and name.lower())
    for end in range(len(data)):
        with pytest.raises(server_names.Incomplete):
            server_names.read(data[:end])
    body = data[5:]
    split = b"".join(b"\x16\x03\x01" + len(part).to_bytes(2) + part for part in (body[:7], body[7:]))
    assert server_names.read(split) == (name and name.lower())


@pytest.mark.parametrize(
    "change", [lambda data: data[:5] + b"\x02" + data[6:], lambda data: b"\x16\x03\x01\x00\x00" + data]
)
def test_a_hello_that_cannot_be_read_is_refused(change: object) -> None:
    assert callable(change)
    with pytest.raises(ValueError, match="cannot be read"):
        server_names.read(change(hello("example.com")))


@pytest.mark.parametrize(("name", "passes"), [("front.test", True), ("hidden.test", False), (None, True)])
async def test_a_tunnel_to_one_host_cannot_name_another_one_in_tls(name: str | None, passes: bool) -> None:
    async with echo() as there:
        approvals = HostApprovals((parse(f"private:front.test:{there}"),))
        async with proxy(approvals) as port:
            reader, writer = await tunnel(port, f"front.test:{there}")
            await reader.readuntil(b"\r\n\r\n")
            data = hello(name)
            writer.write(data[:40])
            await asyncio.sleep(0.01)
            writer.write(data[40:])
            writer.write_eof()
            answer = await reader.read()
            writer.close()
    assert answer == (data.upper() if passes else b"")
    assert approvals.blocked == (() if passes else (f"front.test:{there}",))
