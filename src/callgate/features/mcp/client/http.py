"""HTTP transport of an MCP server, as a pair of SDK streams.

The URL in the settings is the user's choice, so any address is allowed. Other URLs that the server
names, such as login and redirects, are untrusted: only the server's own host and port and public
addresses are allowed. The connection uses the address that was checked (no DNS rebinding).
Compressed responses are refused, and responses other than event streams have a size limit.
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

from callgate.protocol.strict_json import MAX_LINE
from callgate.sandbox.allowed_hosts import is_public

_TIMES = httpx2.Timeout(30.0, read=None)
"""No read timeout: each call has its own time limit."""
_PORTS = {"http": 80, "https": 443}


@asynccontextmanager
async def transport(
    url: str,
    headers: Mapping[str, str],
    auth: httpx2.Auth | None = None,
    *,
    login_hosts: tuple[str, ...] = (),
) -> AsyncIterator[Any]:
    """Connect to a server. `login_hosts`: allowed login servers, as `HOST:PORT` or `HOST:*`."""
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
        raise httpx2.RemoteProtocolError("the response is compressed, which was not requested")


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if size > MAX_LINE:
                raise httpx2.RemoteProtocolError(f"the response exceeds {MAX_LINE} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class _GuardedBackend(AsyncNetworkBackend):
    """Network backend that checks the address of each connection."""

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
                raise httpcore2.ConnectError(
                    f"{host} had a public address before and has a private one now"
                )
            self._is_public = public
        elif not public and not {f"{host}:{port}", f"{host}:*"} & set(self._login_hosts):
            raise httpcore2.ConnectError(
                f"{host}:{port} is not a public address. If it is the login server, add it to"
                " login_hosts of the server"
            )
        return await self._connect(addresses, port, timeout, local_address, socket_options)

    async def _connect(self, addresses: list[str], port: int, *how: Any) -> AsyncNetworkStream:
        """Connect to the checked addresses, not to the name, which may resolve differently now."""
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
    """Return whether host and port are equal. All names of this machine count as one host."""
    if one[1] != other[1]:
        return False
    return one[0] == other[0] or (one[0] in _LOOPBACK and other[0] in _LOOPBACK)


async def _look_up(host: str, port: int) -> list[str]:
    """Return the addresses of a host. Raises `ConnectError` if there are none."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise httpcore2.ConnectError(str(error)) from None
    addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    if not addresses:
        raise httpcore2.ConnectError(f"{host} has no address")
    return addresses
