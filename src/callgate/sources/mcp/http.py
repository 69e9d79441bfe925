"""An MCP server by HTTP, as the streams on which the SDK speaks.

The address in the settings is the user's own choice and is reached wherever it is. What a server
names beside it (where to log in) is a stranger's: it is reached only at public addresses, and the
address that was looked at is the one that is connected to. No answer is unpacked, and none that is
no stream is longer than a line of a process may be.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import httpcore2
import httpx2
from httpcore2 import AsyncNetworkBackend, AsyncNetworkStream
from mcp.client.streamable_http import streamable_http_client

from callgate.protocol.ndjson import MAX_LINE
from callgate.sandbox.allowed_hosts import is_public

_TIMES = httpx2.Timeout(30.0, read=None)
"""How long a call may take, its own limit says."""
_PORTS = {"http": 80, "https": 443}


@asynccontextmanager
async def transport(
    url: str, headers: Mapping[str, str], auth: httpx2.Auth | None = None
) -> AsyncIterator[Any]:
    parts = urlsplit(url)
    own = (str(parts.hostname), parts.port or _PORTS[parts.scheme])
    async with (
        httpx2.AsyncClient(
            transport=_Guarded(own),
            headers={"Accept-Encoding": "identity", **headers},
            auth=auth,
            timeout=_TIMES,
            event_hooks={"response": [_refuse_packed]},
        ) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=MAX_LINE) as streams,
    ):
        yield streams


class _Guarded(httpx2.AsyncHTTPTransport):
    def __init__(self, own: tuple[str, int]) -> None:
        super().__init__()
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=httpx2.create_ssl_context(), network_backend=_Ways(own)
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        kind = response.headers.get("content-type", "")
        if not kind.lower().startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _Bounded(response.stream)
        return response


async def _refuse_packed(response: httpx2.Response) -> None:
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.RemoteProtocolError("the answer is packed, which was not asked for")


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if size > MAX_LINE:
                raise httpx2.RemoteProtocolError(f"the answer is longer than {MAX_LINE} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Ways(AsyncNetworkBackend):
    """Where connections may go."""

    def __init__(self, own: tuple[str, int]) -> None:
        self._own = own
        self._plain = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> AsyncNetworkStream:
        if (host, port) != self._own and not await self._is_beside(host):
            host = await _public(host, port)
        return await self._plain.connect_tcp(host, port, timeout, local_address, socket_options)

    async def _is_beside(self, host: str) -> bool:
        """On this very machine, if the server itself is there, too."""
        loopback = ("localhost", "127.0.0.1", "::1")
        return self._own[0] in loopback and host in loopback

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


async def _public(host: str, port: int) -> str:
    """The address to connect to. `ConnectError` where one of the host's is not public."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise httpcore2.ConnectError(str(error)) from None
    addresses = [str(each[4][0]).split("%")[0] for each in found]
    if not addresses or not all(map(is_public, addresses)):
        raise httpcore2.ConnectError(f"{host} is not a public address: it is not asked")
    return addresses[0]
