"""Requests to other servers: forwarded to an owner, or sent to every server for a list.

    is it there? ---no answer---> Unsent: nothing was sent
        |
      send, signed ---silence---> is it there? ---no answer---> Lost: sent, outcome unknown
        |
      its answer: complete, or in pieces as they arrive

A call may take hours, so silence alone proves nothing. A silent server is checked with `/healthz`:
before a request is sent, and again during its silence. A stopped or disconnected server counts as
lost after two failed checks. No request is sent twice here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from callgate.core.errors import ToolErrorClass
from callgate.core.sessions import Client
from callgate.core.stored import LOCAL
from callgate.core.tasks import start_task
from callgate.features.fleet.directory import MOST_SKEW_S, Server, Servers
from callgate.features.web.responses import HttpResponse, Problem, Streamed, content_length
from callgate.protocol import carried_requests
from callgate.protocol.carried_requests import MOVED, REFUSED, Carried

if TYPE_CHECKING:
    import httpx2

EVENTS = "text/event-stream"
_CONNECT_S = 2.0
_SILENT_S = 3.0
"""Seconds of silence before a health check."""
_HEALTH_S = 3.0
_MOST_UNHEALTHY = 2
"""Number of consecutive failed health checks after which a server counts as lost."""
_FRESH_S = 1.0
"""Seconds after a message during which a server counts as reachable."""
_IDLE_S = 20.0
"""Seconds until an idle connection closes: fewer than at the server."""
_KEPT_HEADERS = ("content-type", "retry-after", "allow")
_log = logging.getLogger("callgate.servers")

T = TypeVar("T")


class Outgoing(NamedTuple):
    """A request to forward."""

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
    """The server accepts connections and does not answer."""


class Moved(Exception):
    """The server is not the owner; nothing was done."""


class Lost(Exception):
    """The request was sent, and the server has not answered."""


class Carrier:
    """Connections to other servers. One per HTTP surface."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._clients: dict[str, httpx2.AsyncClient] = {}
        """HTTP clients by scheme: only https needs certificates, which are slow to load."""
        self._heard: dict[str, float] = {}

    async def close(self) -> None:
        clients, self._clients = self._clients, {}
        for each in clients.values():
            await each.aclose()

    async def carry(self, server: Server, outgoing: Outgoing) -> HttpResponse | Streamed:
        """Forward a request to a server. Raises `Unsent`, `Moved`, `Lost` or a `Problem`."""
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
        """Return a server's answer to a GET within the time limit; None after any failure."""
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
        """Open a long answer, and return its pieces as they arrive. Raises the errors
        of `carry`.
        """
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
            raise Unsent(f"{server.url} is not a valid address: {error}") from error
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
        except Lost as error:  # the answer has started: it ends without a result
            _log.warning("the answer of %s ended early: %s", server.url, error)
        finally:
            await response.aclose()

    # Health checks.

    async def _attend(self, server: Server, work: Coroutine[Any, Any, T]) -> T:
        """Wait for work at a server, as long as it is healthy. Raises `Lost`."""
        task, unhealthy = start_task(work), 0
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=_SILENT_S)
                if task.done():
                    break
                unhealthy = 0 if await self._is_healthy(server) else unhealthy + 1
                if unhealthy >= _MOST_UNHEALTHY and not task.done():
                    raise Lost("it stopped answering")
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
    """Return a client without proxy, redirects and a limit on silence, because a call may take
    hours.
    """
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
            "The server that owns this refuses requests from other servers, and nothing was done. "
            "Its log contains the reason.",
            "carried_refused",
        )


async def _next(pieces: AsyncIterator[bytes]) -> bytes | None:
    return await anext(pieces, None)


_LIMIT_S = 2.0
"""Time limit for one request to another server."""
_RETRY_S = 0.25
"""Seconds between two attempts at a silent server."""


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """State that a server reports about itself."""

    id: str
    """Name of its process in the store, as the owner of sessions."""
    label: str
    url: str
    version: str
    started_at: float
    now: float
    """Time of its clock."""
    sessions: int
    """Number of served sessions."""
    calls: int
    """Number of running calls."""
    people: int
    """Number of connected approvers."""


class ListedServer(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    label: str
    url: str
    version: str
    started_at: float
    here: bool
    """Whether it is the server that answers this request."""
    healthy: bool
    """False: it is alive according to the store, and does not answer."""
    sessions: int | None
    calls: int | None
    people: int
    skew_s: float | None
    """Seconds by which its clock is ahead of the clock of the answering server."""
    warning: str | None


async def list_others(
    servers: Servers, carrier: Carrier, patience_s: float = 0.0
) -> list[ListedServer]:
    """List every other live server, oldest first.

    A silent server gets retries for `patience_s` seconds. The first request after an idle time
    loads the HTTP modules, which takes seconds on a busy machine.
    """
    deadline = time.monotonic() + patience_s
    requests = [_ask(servers, carrier, each, deadline) for each in await servers.others()]
    return sorted(await asyncio.gather(*requests), key=lambda each: each.started_at)


async def _ask(servers: Servers, carrier: Carrier, server: Server, deadline: float) -> ListedServer:
    begun = time.time()
    while (answer := await carrier.ask(server, "/v1/server", _LIMIT_S)) is None:
        if time.monotonic() >= deadline:
            return _silent(server)
        await asyncio.sleep(_RETRY_S)
        begun = time.time()
    state = msgspec.json.decode(answer, type=ServerState)
    skew_s = state.now - (begun + time.time()) / 2
    servers.note_skew(server.owner, skew_s)
    return listed(state, skew_s, here=False)


def listed(state: ServerState, skew_s: float, *, here: bool) -> ListedServer:
    warning = None
    if abs(skew_s) > MOST_SKEW_S:
        warning = f"Its clock differs by {skew_s:+.1f} s: synchronize the clocks of the servers."
    return ListedServer(
        id=state.id,
        label=state.label,
        url=state.url,
        version=state.version,
        started_at=state.started_at,
        here=here,
        healthy=True,
        sessions=state.sessions,
        calls=state.calls,
        people=state.people,
        skew_s=round(skew_s, 3),
        warning=warning,
    )


def _silent(server: Server) -> ListedServer:
    about = server.about
    return ListedServer(
        id=server.owner,
        label=about.label,
        url=about.url,
        version=about.version,
        started_at=about.started_at,
        here=False,
        healthy=False,
        sessions=None,
        calls=None,
        people=sum(about.people.values()),
        skew_s=None,
        warning="It is running, and does not answer at its address.",
    )
