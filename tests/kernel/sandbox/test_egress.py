"""The proxy by itself: what it passes on, what it refuses, and that nothing outlasts it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from callgate.sandbox.allowed_hosts import parse
from callgate.sandbox.egress import Egress, Patience
from tests.support import descriptors

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
WAIT_S = 60.0


class Server:
    """A server on the loopback that keeps what it was sent."""

    def __init__(self) -> None:
        self.port = 0
        self.seen: list[bytes] = []
        self.ended = asyncio.Event()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One HTTP request, its body read to the end of what comes, and `hello`."""
        with contextlib.suppress(asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or 0)
            self.seen.append(head + await reader.readexactly(length))
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello")
        await self.close(writer)

    async def echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Upper case, until the other side has said all."""
        while data := await reader.read(65536):
            writer.write(data.upper())
            await writer.drain()
        writer.write(b" END")
        await self.close(writer)

    async def hold(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Say nothing until the other side goes."""
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                self.seen.append(data)
        await self.close(writer)

    async def close(self, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.close()
            await writer.wait_closed()
        self.ended.set()


@contextlib.asynccontextmanager
async def serving(how: str = "answer") -> AsyncIterator[Server]:
    server = Server()
    async with asyncio.timeout(WAIT_S):
        started = await asyncio.start_server(getattr(server, how), "127.0.0.1", 0)
        async with started:
            server.port = started.sockets[0].getsockname()[1]
            yield server


class Proxy:
    def __init__(self, egress: Egress, port: int) -> None:
        self.egress = egress
        self.port = port

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def say(self, data: bytes, *, then_end: bool = False) -> bytes:
        """All that comes back for some bytes."""
        reader, writer = await self.connect()
        try:
            writer.write(data)
            if then_end:
                writer.write_eof()
            return await reader.read()
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def proxy(*hosts: str, addresses: list[str] | None = None, **patience: float) -> AsyncIterator[Proxy]:
    """`addresses` are what every name has."""

    async def resolve(host: str, port: int) -> list[str]:
        if addresses is None:
            raise AssertionError(f"{host} was looked up")
        if not addresses:
            raise socket.gaierror(-2, "unknown")
        return addresses

    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    entries = tuple(map(parse, hosts))
    egress = Egress(listener, entries, resolve=resolve, patience=Patience(**patience))  # type: ignore[arg-type]
    try:
        async with asyncio.timeout(WAIT_S):
            yield Proxy(egress, port)
    finally:
        egress.close()
        await egress.wait_closed()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


async def test_a_plain_request_reaches_its_host_with_the_hosts_own_name() -> None:
    async with serving() as server, proxy(f"127.0.0.1:{server.port}") as door:
        answer = await door.say(
            b"POST http://127.0.0.1:%d/x HTTP/1.1\r\nHost: evil.com\r\nContent-Length: 3\r\n\r\nabc" % server.port
        )
    assert answer == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello"
    assert server.seen == [
        b"POST /x HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc" % server.port
    ]
    assert (door.egress.blocked, door.egress.reached) == ((), 1)


async def test_a_tunnel_carries_both_ways_and_each_end_by_itself() -> None:
    async with serving("echo") as server, proxy(f"127.0.0.1:{server.port}") as door:
        connect = b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % server.port
        answer = await door.say(connect + b"early " + b"late" * 100_000, then_end=True)
    established = b"HTTP/1.1 200 Connection established\r\n\r\n"
    assert answer == established + b"EARLY " + b"LATE" * 100_000 + b" END"


@pytest.mark.parametrize(
    "target",
    [
        "evil.com:443",
        "pkgs.example.org.evil.com:443",
        "pkgs.example.org:444",
        "127.0.0.1:443",
        "[::1]:443",
        "localhost:443",
        "[::ffff:127.0.0.1]:443",
        "169.254.169.254:80",
        "pkgs.example.org:22",
    ],
)
async def test_another_host_or_port_is_refused_and_named_and_not_looked_up(target: str) -> None:
    async with proxy("pkgs.example.org", "*.pkgs.example.org") as door:
        assert status(await door.say(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())) == 403
        plain = f"GET http://{target}/ HTTP/1.1\r\nHost: pkgs.example.org\r\n\r\n".encode()
        answer = await door.say(plain)
    expected = target.replace("[::ffff:127.0.0.1]", "127.0.0.1")
    assert status(answer) == 403 and expected.encode() in answer
    assert (door.egress.blocked, door.egress.reached) == ((expected,), 0)


@pytest.mark.parametrize(
    ("entry", "addresses", "expected"),
    [
        ("name.test", ["127.0.0.1"], 403),
        ("name.test", ["::1"], 403),
        ("name.test", ["10.0.0.1", "169.254.169.254"], 403),
        ("*.test", ["127.0.0.1"], 403),
        ("private:name.test", ["169.254.169.254"], 403),
        ("private:name.test", ["127.0.0.1"], 200),
        ("private:*.test", ["169.254.169.254", "127.0.0.1"], 200),
        ("name.test", [], 502),
    ],
)
async def test_a_name_leads_into_a_private_network_only_if_its_entry_says_so(
    entry: str, addresses: list[str], expected: int
) -> None:
    async with serving() as server, proxy(f"{entry}:{server.port}", addresses=addresses) as door:
        answer = await door.say(b"GET http://name.test:%d/ HTTP/1.1\r\n\r\n" % server.port)
    assert status(answer) == expected
    assert door.egress.blocked == ((f"name.test:{server.port}",) if expected == 403 else ())
    assert len(server.seen) == (expected == 200)


@pytest.mark.parametrize(("entry", "expected"), [("localhost", 403), ("private:localhost", 200)])
async def test_names_are_looked_up_as_the_system_knows_them(entry: str, expected: int) -> None:
    async with serving() as server:
        listener = socket.create_server(("127.0.0.1", 0))
        egress = Egress(listener, (parse(f"{entry}:{server.port}"),))
        door = Proxy(egress, listener.getsockname()[1])
        answer = await door.say(b"GET http://LOCALHOST.:%d/ HTTP/1.1\r\n\r\n" % server.port)
        egress.close()
        await egress.wait_closed()
    assert status(answer) == expected


async def test_a_second_request_in_a_connection_goes_nowhere() -> None:
    async with serving() as server, proxy(f"127.0.0.1:{server.port}") as door:
        first = b"GET http://127.0.0.1:%d/ HTTP/1.1\r\n\r\n" % server.port
        answer = await door.say(first + b"GET http://evil.com/ HTTP/1.1\r\nHost: evil.com\r\n\r\n")
        again = await door.say(b"GET http://evil.com/ HTTP/1.1\r\n\r\n")
    assert answer == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello"
    assert len(server.seen) == 1 and b"evil" not in server.seen[0]
    assert (status(again), door.egress.blocked) == (403, ("evil.com:80",))


async def test_a_second_request_behind_a_body_is_no_part_of_it() -> None:
    async with serving("hold") as server, proxy(f"127.0.0.1:{server.port}", leave_s=0.1) as door:
        head = b"POST http://127.0.0.1:%d/ HTTP/1.1\r\nContent-Length: 2\r\n\r\n" % server.port
        await door.say(head + b"abGET / HTTP/1.1\r\nHost: evil.com\r\n\r\n")
        await server.ended.wait()
    assert b"".join(server.seen).endswith(b"\r\n\r\nab")


async def test_half_a_body_is_passed_on_with_its_end() -> None:
    async with serving("hold") as server, proxy(f"127.0.0.1:{server.port}") as door:
        head = b"POST http://127.0.0.1:%d/ HTTP/1.1\r\nContent-Length: 9\r\n\r\n" % server.port
        assert await door.say(head + b"ab", then_end=True) == b""
        await server.ended.wait()
    assert b"".join(server.seen).endswith(b"\r\n\r\nab")


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (b"GET http://127.0.0.1/\nHost: evil.com\r\n\r\n", 400),
        (b"GET http://127.0.0.1/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET http://127.0.0.1/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"GET http://127.0.0.1/ HTTP/1.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", 431),
        (b"x" * 1_000_000, 431),
        (b"\x05\x01\x00\r\n\r\n", 400),
    ],
)
async def test_what_is_not_understood_is_answered_and_goes_nowhere(asked: bytes, expected: int) -> None:
    async with proxy("127.0.0.1") as door:
        assert status(await door.say(asked)) == expected
    assert (door.egress.blocked, door.egress.reached) == ((), 0)


@pytest.mark.parametrize("refused", [True, False])
async def test_who_says_too_much_before_listening_hears_the_answer_all_the_same(refused: bool) -> None:
    def talk(port: int, head: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", port), WAIT_S) as each:
            each.sendall(head + b"x" * 30_000_000)
            each.shutdown(socket.SHUT_WR)
            return each.makefile("rb").read()

    async with serving() as server, proxy(f"127.0.0.1:{server.port}") as door:
        target = server.port + 1 if refused else server.port
        head = b"GET http://127.0.0.1:%d/ HTTP/1.1\r\n\r\n" % target
        answer = await asyncio.to_thread(talk, door.port, head)
    assert status(answer) == (403 if refused else 200)


async def test_a_head_that_comes_too_slowly_is_not_waited_for() -> None:
    async with proxy("127.0.0.1", head_s=0.1) as door:
        assert status(await door.say(b"GET http://127.0.0.1/ HTT")) == 408


async def test_a_head_that_never_comes_whole_is_let_go() -> None:
    async with proxy("127.0.0.1") as door:
        assert await door.say(b"GET http://127.0.0.1/ HTT", then_end=True) == b""


async def test_a_tunnel_in_which_nothing_moves_is_closed() -> None:
    async with serving("hold") as server, proxy(f"127.0.0.1:{server.port}", idle_s=0.1) as door:
        answer = await door.say(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % server.port)
        await server.ended.wait()
    assert status(answer) == 200


async def test_a_host_that_does_not_answer_is_reported_as_such() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    async with proxy(f"127.0.0.1:{port}") as door:
        assert status(await door.say(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % port)) == 502
    assert (door.egress.blocked, door.egress.reached) == ((), 0)


async def test_fifty_connections_at_once_are_all_served_though_few_at_a_time() -> None:
    async with serving() as server, proxy(f"127.0.0.1:{server.port}", connections=7) as door:
        asked = b"GET http://127.0.0.1:%d/ HTTP/1.1\r\n\r\n" % server.port
        answers = await asyncio.gather(*(door.say(asked) for _ in range(50)))
    assert {status(answer) for answer in answers} == {200}
    assert (len(server.seen), door.egress.reached) == (50, 50)


async def test_what_is_refused_is_named_once_and_not_without_end() -> None:
    async with proxy() as door:
        for number in [*range(60), *range(60)]:
            await door.say(b"CONNECT a%d.com:443 HTTP/1.1\r\n\r\n" % number)
    assert door.egress.blocked == tuple(f"a{number}.com:443" for number in range(50))


async def test_the_end_of_the_proxy_ends_every_connection_and_leaves_no_descriptor() -> None:
    before = descriptors()
    async with serving("hold") as server:
        async with proxy(f"127.0.0.1:{server.port}") as door:
            tunnel, writer = await door.connect()
            writer.write(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % server.port)
            await tunnel.readuntil(b"\r\n\r\n")
            silent, other = await door.connect()
        await server.ended.wait()
        with contextlib.suppress(OSError):
            assert await tunnel.read() == await silent.read() == b""
        for each in (writer, other):
            each.close()
            with contextlib.suppress(OSError):
                await each.wait_closed()
        with pytest.raises(ConnectionRefusedError):
            await door.connect()
    assert descriptors() <= before
