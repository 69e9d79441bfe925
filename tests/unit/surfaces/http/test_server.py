"""Connections before anybody has shown a token: they cost little, and not for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from callgate.surfaces.http import wires
from callgate.surfaces.http.addresses import Address, bind
from callgate.surfaces.http.server import HttpServer

LIMIT_S = 20.0
ASK = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def listening(**limits: Any) -> AsyncIterator[int]:
    listening = bind(Address("127.0.0.1", 0))
    port = listening.getsockname()[1]
    server = HttpServer(answer, **limits)
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
    monkeypatch.setattr(wires, "OPEN_S", 0.05)
    async with listening() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = b" / HTTP/1.1\r\nHost: here\r\nConnection: upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\n{}"
        writer.write(method + head)
        assert b" 101 " not in await read_until_closed(reader)
        writer.close()


async def test_more_connections_than_there_may_be_are_closed_and_those_before_go_on() -> None:
    async with listening(most=2) as port:
        first = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        late, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await read_until_closed(late) == b""
        writer.close()
        for reader, writer in first:
            writer.write(ASK)
            async with asyncio.timeout(LIMIT_S):
                assert (await reader.readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200")
            writer.close()
