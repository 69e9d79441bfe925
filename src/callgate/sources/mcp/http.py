"""An MCP server by HTTP, as the streams on which the SDK speaks.

The address in the settings is the user's own choice and is reached wherever it is. What a server
names beside it (where to log in, where to go on) is a stranger's: it is reached at its own host and
port, or at public addresses, and the address that was looked at is the one that is connected to.
No answer is unpacked, and none that is no stream is longer than a line of a process may be.
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
    url: str,
    headers: Mapping[str, str],
    auth: httpx2.Auth | None = None,
    *,
    login_hosts: tuple[str, ...] = (),
) -> AsyncIterator[Any]:
    """`login_hosts` are `HOST:PORT` or `HOST:*` that the user lets the server lead to."""
    address = urlsplit(url)
    server = (str(address.hostname), address.port or _PORTS[address.scheme])
    async with (
        httpx2.AsyncClient(
            transport=_GuardedTransport(server, login_hosts),
            headers={"Accept-Encoding": "identity", **headers},
            auth=auth,
            timeout=_TIMES,
            event_hooks={"response": [_refuse_packed]},
        ) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=MAX_LINE) as streams,
    ):
        yield streams


class _GuardedTransport(httpx2.AsyncHTTPTransport):
    def __init__(self, server: tuple[str, int], login_hosts: tuple[str, ...]) -> None:
        super().__init__()
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=httpx2.create_ssl_context(),
            network_backend=_GuardedBackend(server, login_hosts),
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        kind = response.headers.get("content-type", "")
        if not kind.lower().startswith("text/event-stream"):
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _BoundedStream(response.stream)
        return response


async def _refuse_packed(response: httpx2.Response) -> None:
    if response.headers.get("content-encoding", "identity") != "identity":
        raise httpx2.RemoteProtocolError("the answer is packed, which was not asked for")


class _BoundedStream(httpx2.AsyncByteStream):
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


class _GuardedBackend(AsyncNetworkBackend):
    """Where connections may go."""

    def __init__(self, server: tuple[str, int], login_hosts: tuple[str, ...] = ()) -> None:
        self._server = server
        self._login_hosts = login_hosts
        self._is_public = False
        """Whether the server itself was reached at a public address."""
        self._plain = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> AsyncNetworkStream:
        addresses = await _look_up(host, port)
        public = all(is_public(each.split("%")[0]) for each in addresses)
        if _same_endpoint((host, port), self._server):
            if self._is_public and not public:
                raise httpcore2.ConnectError(f"{host} had a public address, and now has another")
            self._is_public = public
        elif not public and not {f"{host}:{port}", f"{host}:*"} & set(self._login_hosts):
            raise httpcore2.ConnectError(f"{host}:{port} is not a public address: it is not asked")
        return await self._connect(addresses, port, timeout, local_address, socket_options)

    async def _connect(self, addresses: list[str], port: int, *how: Any) -> AsyncNetworkStream:
        """To what was looked at, and not to the name: it could mean another address by now."""
        for address in addresses[:-1]:
            try:
                return await self._plain.connect_tcp(address, port, *how)
            except httpcore2.ConnectError:
                continue
        return await self._plain.connect_tcp(addresses[-1], port, *how)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def _same_endpoint(one: tuple[str, int], other: tuple[str, int]) -> bool:
    """The same port of the same host. Another port of this machine is another program."""
    if one[1] != other[1]:
        return False
    return one[0] == other[0] or (one[0] in _LOOPBACK and other[0] in _LOOPBACK)


async def _look_up(host: str, port: int) -> list[str]:
    """The addresses of a host, at least one; else `ConnectError`."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise httpcore2.ConnectError(str(error)) from None
    addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    if not addresses:
        raise httpcore2.ConnectError(f"{host} has no address")
    return addresses
