"""A request sent on to the server that owns what it is about, and its answer sent back.

    is it there? ---no answer---> Unsent: nothing was sent
        |
      send, signed ---silence---> is it there? ---no answer---> Lost: sent, outcome unknown
        |
      its answer: whole, or in pieces as they come

A call may take hours, so silence alone says nothing. A server that has not been heard for a while
is asked for `/healthz`: before anything is sent, and again whenever it is silent. One that is
stopped, or cut off, is given up after two such questions. No request is sent twice here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from callgate.core.clients import Client
from callgate.core.errors import ToolErrorClass
from callgate.core.stored import LOCAL
from callgate.core.task_sets import start_task
from callgate.protocol import carried_requests
from callgate.protocol.carried_requests import MOVED, REFUSED, Carried
from callgate.surfaces.http.problems import Problem
from callgate.surfaces.http.responses import HttpResponse, Streamed, content_length
from callgate.surfaces.http.servers.directory import Server, Servers

if TYPE_CHECKING:  # heavy, and needed where there is more than one server
    import httpx2

EVENTS = "text/event-stream"
_CONNECT_S = 2.0
_SILENT_S = 3.0
"""How long a server may be silent before it is asked whether it is there."""
_HEALTH_S = 3.0
_MOST_UNHEALTHY = 2
"""Questions without an answer, one after the other, until it is given up."""
_FRESH_S = 1.0
"""A server that was heard so recently is there."""
_IDLE_S = 20.0
"""How long a connection is kept: less than a server keeps it."""
_KEPT_HEADERS = ("content-type", "retry-after", "allow")
_log = logging.getLogger("callgate.servers")

T = TypeVar("T")


class Outgoing(NamedTuple):
    """A request as it is sent on."""

    method: str
    target: str
    body: bytes = b""
    accepts: str = "application/json"
    browser: bool = False
    client: Client = Client()
    principal: str = LOCAL


class Unsent(Exception):
    """The server cannot be reached, and nothing was sent."""


class Silent(Unsent):
    """It takes connections and does not answer."""


class Moved(Exception):
    """The server says that it is not the owner; nothing was done."""


class Lost(Exception):
    """The request was sent, and the server has not answered."""


class Carrier:
    """Connections to other servers. One per HTTP surface."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._clients: dict[str, httpx2.AsyncClient] = {}
        """By scheme: only https needs certificates, which take long to load."""
        self._heard: dict[str, float] = {}

    async def close(self) -> None:
        clients, self._clients = self._clients, {}
        for each in clients.values():
            await each.aclose()

    async def carry(self, server: Server, outgoing: Outgoing) -> HttpResponse | Streamed:
        """Have a server answer a request. Raises `Unsent`, `Moved`, `Lost` or a `Problem`."""
        await self._ensure_there(server)
        response = await self._send(server, outgoing)
        try:
            _ensure_accepted(response)
            if response.headers.get("content-type", "").startswith(EVENTS):
                return Streamed(self._stream(server, response), EVENTS)
            body = b"".join([piece async for piece in self._pieces(server, response)])
        except BaseException:
            await response.aclose()
            raise
        await response.aclose()
        headers = [
            (name.encode(), response.headers[name].encode())
            for name in _KEPT_HEADERS
            if name in response.headers
        ]
        return HttpResponse(response.status_code, [*headers, content_length(body)], body)

    async def ask(self, server: Server, target: str, limit_s: float) -> bytes | None:
        """What a server answers to a GET of ours within so long; None: nothing good."""
        try:
            async with asyncio.timeout(limit_s):
                answer = await self.carry(server, Outgoing("GET", target))
        except (Unsent, Moved, Lost, Problem, TimeoutError) as error:
            _log.info("%s does not answer: %r", server.url, error)
            return None
        good = isinstance(answer, HttpResponse) and answer.status == 200
        return answer.body if good and isinstance(answer, HttpResponse) else None

    @asynccontextmanager
    async def open(self, server: Server, outgoing: Outgoing) -> AsyncIterator[AsyncIterator[bytes]]:
        """The pieces of a long answer as they come. Raises as `carry` does."""
        await self._ensure_there(server)
        response = await self._send(server, outgoing)
        try:
            _ensure_accepted(response)
            if response.status_code != 200:
                raise Lost(f"it answers {response.status_code}")
            yield self._pieces(server, response)
        finally:
            await response.aclose()

    # Sending.

    async def _send(self, server: Server, outgoing: Outgoing) -> httpx2.Response:
        import httpx2  # lazy: as above  # noqa: PLC0415

        headers = {carried_requests.HEADER: await self._sign(server, outgoing)}
        headers["accept"] = outgoing.accepts
        if outgoing.method in ("POST", "PATCH"):
            headers["content-type"] = "application/json"
        client = self._client(server)
        try:
            request = client.build_request(
                outgoing.method,
                server.url + outgoing.target,
                headers=headers,
                content=outgoing.body or None,
            )
            return await self._attend(server, client.send(request, stream=True))
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            raise Unsent(str(error)) from error
        except (httpx2.InvalidURL, httpx2.UnsupportedProtocol) as error:
            raise Unsent(f"{server.url} is no address: {error}") from error
        except httpx2.HTTPError as error:
            raise Lost(str(error)) from error

    async def _sign(self, server: Server, outgoing: Outgoing) -> str:
        carried = Carried(
            to=server.owner,
            sender=await self._servers.owner(),
            method=outgoing.method,
            target=outgoing.target,
            body_sha256=carried_requests.hash_of(outgoing.body),
            at=time.time(),
            nonce=carried_requests.new_nonce(),
            browser=outgoing.browser,
            client=outgoing.client,
            principal=outgoing.principal,
        )
        return carried_requests.sign(carried, await self._servers.key())

    async def _pieces(self, server: Server, response: httpx2.Response) -> AsyncIterator[bytes]:
        import httpx2  # lazy: as above  # noqa: PLC0415

        pieces = aiter(response.aiter_bytes())
        try:
            while (piece := await self._attend(server, _next(pieces))) is not None:
                yield piece
        except httpx2.HTTPError as error:
            raise Lost(str(error)) from error

    async def _stream(self, server: Server, response: httpx2.Response) -> AsyncIterator[bytes]:
        try:
            async for piece in self._pieces(server, response):
                yield piece
        except Lost as error:  # the answer has begun: it ends without a result
            _log.warning("the answer of %s broke off: %s", server.url, error)
        finally:
            await response.aclose()

    # Whether a server is there.

    async def _attend(self, server: Server, work: Coroutine[Any, Any, T]) -> T:
        """Wait for something of a server, as long as it is there. Raises `Lost`."""
        task, unhealthy = start_task(work), 0
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=_SILENT_S)
                if task.done():
                    break
                unhealthy = 0 if await self._is_healthy(server) else unhealthy + 1
                if unhealthy >= _MOST_UNHEALTHY and not task.done():
                    raise Lost("it does not answer any more")
            self._heard[server.owner] = time.monotonic()
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    async def _ensure_there(self, server: Server) -> None:
        if time.monotonic() - self._heard.get(server.owner, float("-inf")) < _FRESH_S:
            return
        begun = time.monotonic()
        if not await self._is_healthy(server):
            silent = time.monotonic() - begun >= _CONNECT_S
            raise Silent("it does not answer") if silent else Unsent("it cannot be reached")

    async def _is_healthy(self, server: Server) -> bool:
        import httpx2  # lazy: as above  # noqa: PLC0415

        try:
            async with asyncio.timeout(_HEALTH_S):
                response = await self._client(server).get(f"{server.url}/healthz")
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError):
            return False
        if response.status_code == 200:
            self._heard[server.owner] = time.monotonic()
        return response.status_code == 200

    def _client(self, server: Server) -> httpx2.AsyncClient:
        scheme = server.url.partition(":")[0]
        if scheme not in self._clients:
            self._clients[scheme] = _open_client(encrypted=scheme == "https")
        return self._clients[scheme]


def _open_client(*, encrypted: bool) -> httpx2.AsyncClient:
    """No proxy, no redirect, no limit on silence: a call may take hours."""
    import ssl  # lazy: as above  # noqa: PLC0415

    import httpx2  # lazy: as above  # noqa: PLC0415

    return httpx2.AsyncClient(
        timeout=httpx2.Timeout(None, connect=_CONNECT_S, pool=_CONNECT_S),
        limits=httpx2.Limits(
            max_connections=None, max_keepalive_connections=64, keepalive_expiry=_IDLE_S
        ),
        follow_redirects=False,
        trust_env=False,
        verify=True if encrypted else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
    )


def _ensure_accepted(response: httpx2.Response) -> None:
    refusal = response.headers.get(carried_requests.HEADER, "").encode()
    if refusal == MOVED:
        raise Moved
    if refusal == REFUSED:
        raise Problem(
            503,
            ToolErrorClass.EXECUTION_ERROR,
            "The server that owns this refuses what other servers carry to it: its log says why. "
            "Nothing was done.",
            "carried_refused",
        )


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    return await anext(pieces, None)
