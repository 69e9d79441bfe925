"""Connections before anybody has shown a token: they cost little, and not for long."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, cast

import pytest
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import connect

from callgate.features.web import server
from callgate.features.web.guard import CONNECTION, Unauthenticated, user_of
from callgate.features.web.server import ConnectionLimits, HttpServer
from callgate.socket.buffers import Unfinished
from callgate.socket.listening import Address, bind

LIMIT_S = 60.0
ASK = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"] != "/":  # as the guard does for whoever shows the token
        scope["state"][CONNECTION].admit()
    if scope["type"] == "websocket":
        await echo(receive, send)
        return
    if scope["path"] == "/events":
        await hold(receive, send)
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def echo(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})


async def hold(receive: Receive, send: Send) -> None:
    """Begin a response, and end it only with the request's connection."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"begun", "more_body": True})
    while (await receive())["type"] != "http.disconnect":
        pass


@asynccontextmanager
async def listening(unfinished: Unfinished | None = None, **limits: Any) -> AsyncIterator[int]:
    listening = bind(Address("127.0.0.1", 0))
    port = listening.getsockname()[1]
    server = HttpServer(answer, ConnectionLimits(**limits), unfinished=unfinished)
    server.start(listening)
    try:
        yield port
    finally:
        await server.close()


async def read_until_closed(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(LIMIT_S):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


@pytest.mark.parametrize("said", [b"", b"GET", b"GET / HTTP/1.1\r\nHost: "])
async def test_one_that_does_not_say_what_it_wants_is_let_go(said: bytes) -> None:
    async with listening(head_s=0.05) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        assert await read_until_closed(reader) == b""
        writer.close()


async def test_the_second_head_of_a_connection_has_its_time_too() -> None:
    async with listening(head_s=0.2) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(ASK)
        async with asyncio.timeout(LIMIT_S):
            assert (await reader.readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200")
        writer.write(b"GET / HT")
        assert await read_until_closed(reader) == b""
        writer.close()


@pytest.mark.parametrize("method", [b"GET", b"POST"])
async def test_a_websocket_that_never_opens_is_let_go(method: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "OPEN_S", 0.05)
    async with listening() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = b" / HTTP/1.1\r\nHost: here\r\nConnection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\n{}"
        writer.write(method + head)
        assert b" 101 " not in await read_until_closed(reader)
        writer.close()


MINE = ASK.replace(b"GET / ", b"GET /mine ")
UNFINISHED = [
    b"",
    b"GET",
    b"GET / HTTP/1.1\r\nHost: ",
    b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\n{",
    b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
]


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(LIMIT_S):
        return await reader.readuntil(b"\r\n\r\nok")


@pytest.mark.parametrize("start", UNFINISHED)
async def test_without_a_token_a_whole_request_has_its_time_whatever_was_answered(start: bytes) -> None:
    async with listening(head_s=0.05) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(start)
        assert b"100" not in await read_until_closed(reader)
        writer.close()


async def test_a_body_that_stops_coming_ends_the_connection_of_its_owner_too() -> None:
    async with listening(body_s=0.05) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /mine HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\n{")
        await read_until_closed(reader)
        writer.close()


HELD = [
    b"GET /events HTTP/1.1\r\nHost: here\r\n\r\n",
    b"POST /events HTTP/1.1\r\nHost: here\r\nContent-Length: 2\r\n\r\n{}",
    b"POST /events HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    MINE + b"GET /events HTTP/1.1\r\nHost: here\r\n\r\n",
]
"""Requests whose responses last, the last one pipelined."""


async def test_no_limit_on_requests_ends_a_websocket_or_a_response_that_lasts() -> None:
    limit_s = 0.5
    async with listening(head_s=LIMIT_S, body_s=limit_s) as port:
        url = f"ws://127.0.0.1:{port}/stream"
        async with connect(url, proxy=None) as first, connect(url, proxy=None) as second:
            held = []
            for request in HELD:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(request)
                async with asyncio.timeout(LIMIT_S):
                    await reader.readuntil(b"begun")
                held.append((reader, writer))
            late, say = await asyncio.open_connection("127.0.0.1", port)
            say.write(b"POST /mine HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\n{")
            await read_until_closed(late)  # its limit began after all others
            for websocket in (first, second):
                async with asyncio.timeout(LIMIT_S):
                    await websocket.send("still there")
                    assert await websocket.recv() == "still there"
            for reader, _ in held:
                assert not reader.at_eof()
                assert reader.exception() is None
            for writer in (say, *(each for _, each in held)):
                writer.close()


async def test_a_request_that_was_pipelined_has_its_time_for_its_body_too() -> None:
    async with listening(head_s=LIMIT_S, body_s=0.05) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(MINE + b"POST /mine HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\n{")
        await read_until_closed(reader)
        writer.close()


async def test_an_open_websocket_holds_nothing_of_the_request_that_it_began_with() -> None:
    padding = {"x-padding": "x" * 2_000}
    async with listening(Unfinished(most=5_000)) as port, AsyncExitStack() as stack:
        url = f"ws://127.0.0.1:{port}/stream"
        websockets = [
            await stack.enter_async_context(connect(url, additional_headers=padding, proxy=None)) for _ in range(5)
        ]
        for each in websockets:
            async with asyncio.timeout(LIMIT_S):
                await each.send("still there")
                assert await each.recv() == "still there"


@pytest.mark.parametrize("start", UNFINISHED)
async def test_the_oldest_without_a_token_makes_room_and_those_with_one_stay(start: bytes) -> None:
    async with listening(unauthenticated=2) as port:
        owner, say = await asyncio.open_connection("127.0.0.1", port)
        say.write(MINE)
        await read_answer(owner)
        strangers = []
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(start)
            strangers.append((reader, writer))
        for reader, _ in strangers[:18]:
            await read_until_closed(reader)
        say.write(MINE)
        assert (await read_answer(owner)).startswith(b"HTTP/1.1 200")
        late, ask = await asyncio.open_connection("127.0.0.1", port)
        ask.write(MINE)
        assert (await read_answer(late)).startswith(b"HTTP/1.1 200")
        for writer in (say, ask, *(each for _, each in strangers)):
            writer.close()


async def test_where_all_have_shown_a_token_more_are_closed_and_those_before_go_on() -> None:
    async with listening(connections=2) as port:
        first = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for reader, writer in first:
            writer.write(MINE)
            await read_answer(reader)
        late, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await read_until_closed(late) == b""
        writer.close()
        for reader, writer in first:
            writer.write(MINE)
            assert (await read_answer(reader)).startswith(b"HTTP/1.1 200")
            writer.close()


async def test_connections_of_other_users_make_room_before_those_of_the_owner() -> None:
    class Transport(asyncio.Transport):
        dropped = False

        def abort(self) -> None:
            self.dropped = True

    own, foreign = os.getuid(), os.getuid() + 1
    users = [own, own, foreign, foreign, own, own]
    made = [Transport() for _ in users]
    waiting = Unauthenticated(3, LIMIT_S, lambda transport: users[made.index(cast(Transport, transport))])
    pending = [waiting.add(each) for each in made]
    assert [each.dropped for each in made] == [True, False, True, True, False, False]
    for each in pending:
        each.admit()
    assert len(waiting) == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_the_system_says_which_user_a_peer_on_this_machine_is(host: str) -> None:
    seen: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    class Asking(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            seen.set_result(user_of(transport))
            transport.close()

    try:
        server = await asyncio.get_running_loop().create_server(Asking, host, 0)
    except OSError:
        pytest.skip(f"no {host} here")
    _, writer = await asyncio.open_connection(host, server.sockets[0].getsockname()[1])
    async with asyncio.timeout(LIMIT_S):
        found = await seen
    writer.close()
    server.close()
    if found is None:
        pytest.skip("this system does not tell whose a TCP connection is")
    assert found == os.getuid()
