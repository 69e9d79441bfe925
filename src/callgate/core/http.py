"""Requests to other servers: connections, retries, and the page that completes a browser login.

Certificates are always verified, and redirects are never followed. The login page listens on
127.0.0.1 and accepts one request with the right state. The retry decision is pure.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from typing import Self
from urllib.parse import parse_qs, urlsplit

import httpx2

from callgate.core.tasks import TaskSet

CONNECT_S = 10.0
_MOST_CONNECTIONS = 100
_MOST_UNREAD = 64 * 1024
_TRUSTS_NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def open_client(
    url: httpx2.URL, *, silent_s: float, proxy: str | None = None
) -> httpx2.AsyncClient:
    """Return a client for one server and similar ones. Raises an httpx2 error for a bad proxy
    address.

    Args:
        silent_s: how long a server may be silent.
        proxy: an address, or `none`. Without it the environment decides.
    """
    host = url.host
    origin = f"{url.scheme}://{f'[{host}]' if ':' in host else host}"
    # Requests to this machine bypass a proxy from the environment.
    direct = proxy == "none" or (proxy is None and is_loopback(host))
    return httpx2.AsyncClient(
        timeout=httpx2.Timeout(silent_s, connect=min(CONNECT_S, silent_s)),
        limits=httpx2.Limits(max_connections=_MOST_CONNECTIONS, max_keepalive_connections=20),
        proxy=None if proxy == "none" else proxy,
        mounts={origin: None} if direct else None,
        follow_redirects=False,
        # Loading the system's certificates takes long. Plain http needs none, and the
        # empty context trusts no certificate.
        verify=True if url.scheme == "https" else _TRUSTS_NOBODY,
    )


async def post(
    client: httpx2.AsyncClient, url: httpx2.URL, content: bytes, headers: Mapping[str, str]
) -> tuple[int, Mapping[str, str]]:
    """Return status and headers of the response. Reads little of the body: it may be endless."""
    async with client.stream("POST", url, content=content, headers=headers) as response:
        size = 0
        async for part in response.aiter_raw():
            size += len(part)
            if size > _MOST_UNREAD:
                break
        return response.status_code, response.headers


def is_loopback(host: str) -> bool:
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_untrusted(error: BaseException) -> bool:
    """Whether a request failed because the server's certificate is not trusted."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLCertVerificationError):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


_LONGEST = 16 * 1024
_VISIT_S = 10.0
_MOST_SILENT = 32
"""Maximum connections without a complete request; one more closes the oldest."""
_PAGE = "<!doctype html><meta charset=utf-8><title>callgate</title><p>{} You can close this page."


class Loopback:
    """Local HTTP server that receives the redirect of a browser login.

    Usage: `async with Loopback() as back:`, open the browser with `back.address` and `back.state`,
    then `await back.visit(seconds)`.
    """

    def __init__(
        self, port: int | None = None, *, path: str = "/", state: str | None = None
    ) -> None:
        """`state` is the expected state, if the caller has chosen one."""
        self._port = port or 0
        self._path = path
        self.state = secrets.token_urlsafe(24) if state is None else state

    async def __aenter__(self) -> Self:
        """Start to listen. Raises `OSError` if the port is in use or invalid."""
        self._query: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        self._tasks = TaskSet()
        self._silent: dict[asyncio.StreamWriter, None] = {}
        """Connections without a complete request, the oldest first."""
        try:
            self._server = await asyncio.start_server(
                self._serve, "127.0.0.1", self._port, limit=_LONGEST
            )
        except OverflowError as error:
            raise OSError(str(error)) from None
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        for writer in self._silent:
            writer.transport.abort()
        await self._tasks.wait()  # the page may not be sent completely
        await self._server.wait_closed()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}{self._path}"

    async def visit(self, seconds: float) -> dict[str, str]:
        """Return the query of the redirect. Raises `TimeoutError` if none arrives."""
        async with asyncio.timeout(seconds):
            return await self._query

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._silent[writer] = None
        if len(self._silent) > _MOST_SILENT:
            next(iter(self._silent)).transport.abort()
        try:
            async with asyncio.timeout(_VISIT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                self._silent.pop(writer, None)
                status, text = self._take(head)
                page = _PAGE.format(text).encode()
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nConnection: close\r\n"
                    f"Referrer-Policy: no-referrer\r\nContent-Length: {len(page)}\r\n\r\n".encode()
                    + page
                )
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            self._silent.pop(writer, None)
            writer.close()

    def _take(self, head: bytes) -> tuple[str, str]:
        """Return status and text of the page. A request without the right state is ignored."""
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        url = urlsplit(words[1] if len(words) == 3 and words[0] == "GET" else "")
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        known = secrets.compare_digest(query.get("state", "").encode(), self.state.encode())
        if url.path != self._path or not known or self._query.done():
            return "404 Not Found", "There is nothing here."
        self._query.set_result(query)
        return "200 OK", "The login was refused." if "error" in query else "You are logged in."


FIRST_WAIT_S = 0.5
"""Approximate delay before the second attempt."""


def retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the delay in seconds that the server requests, or None without a valid header."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) / unit
        except ValueError:
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    try:
        moment = parsedate_to_datetime(headers.get("retry-after", ""))
    except (ValueError, TypeError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max((moment - now).total_seconds(), 0.0)


def back_off(attempt: int, chance: float) -> float:
    """Return the delay before the next attempt: about 0.5, 1, 2, ... 16 seconds, with jitter.

    Args:
    attempt: number of failed attempts, from 1.
    chance: random number from 0 to 1.
    """
    return float(min(FIRST_WAIT_S * 2 ** (attempt - 1), 16.0) * (0.75 + chance / 2))
