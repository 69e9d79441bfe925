"""Outermost checks of every connection and request, HTTP and WebSocket alike.

    Host ours? -> Origin ours? -> file or open route? -> token, cookie, attach token -> inside
       403           403              inside             or a server's signature: 401, or 503
                                                         if the credentials cannot be checked

`AccessGuard` is the outermost application, so no route can bypass it. Responses leave through it
with the security headers (`responses`).

`Unauthenticated` limits the connections that have not sent a token:

    connects -> waits, limited for each request -> sends a token -> no longer counted
                   |
                   +-- too many: the oldest is dropped, other users' connections first

A connection that has sent a token is never dropped in favour of one that has not.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Callable, Collection
from itertools import chain
from urllib.parse import parse_qs, urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from callgate.core.stores import StoreError
from callgate.features.web.access import BROWSER, USER, Names, Visitor
from callgate.features.web.contexts import Context
from callgate.features.web.responses import (
    Problem,
    carried_refused,
    forbidden,
    not_ready,
    problem_of,
    problem_response,
    respond,
    unauthorized,
    with_security_headers,
)
from callgate.protocol.carried_requests import HEADER, BadSignature

_SOCK_DIAG = 4
_BY_FAMILY = 20
_REQUEST = 1
_HEADER = struct.Struct("=IHHII")
_QUERY = struct.Struct("=BBBBI")
_ANY_STATE = 0xFFFF_FFFF
_NO_INTERFACE_NO_COOKIE = struct.pack("=III", 0, 0xFFFF_FFFF, 0xFFFF_FFFF)
_STATE_AT = _HEADER.size + 1
_UID_AT = _HEADER.size + 64
_LISTENS = 10
_LIMIT_S = 1.0


def user_of(transport: asyncio.BaseTransport) -> int | None:
    """Return the user id of a peer on this machine; None if the system does not know it."""
    ours = transport.get_extra_info("socket")
    if ours is None or ours.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        return _ask(ours.family, ours.getpeername(), ours.getsockname())
    except (OSError, AttributeError, ValueError):  # disconnected, another machine, another system
        return None


def _ask(family: int, source: tuple[str, int], target: tuple[str, int]) -> int | None:
    query = (
        _QUERY.pack(family, socket.IPPROTO_TCP, 0, 0, _ANY_STATE)
        + struct.pack("!HH", source[1], target[1])
        + _padded(family, source[0])
        + _padded(family, target[0])
        + _NO_INTERFACE_NO_COOKIE
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(_LIMIT_S)
        kernel.send(_HEADER.pack(_HEADER.size + len(query), _BY_FAMILY, _REQUEST, 0, 0) + query)
        reply = kernel.recv(4096)
    _, kind, *_ = _HEADER.unpack_from(reply)
    # Without a connection the kernel answers with the listener at that address.
    if kind != _BY_FAMILY or len(reply) < _UID_AT + 4 or reply[_STATE_AT] == _LISTENS:
        return None
    return int(struct.unpack_from("=I", reply, _UID_AT)[0])


def _padded(family: int, address: str) -> bytes:
    return socket.inet_pton(family, address.partition("%")[0]).ljust(16, b"\0")


CONNECTION = "callgate.connection"
"""Key of the request's connection in the state of a scope."""


class Unauthenticated:
    """All connections that have not sent a token, oldest first."""

    def __init__(
        self,
        most: int,
        seconds: float,
        user_of: Callable[[asyncio.BaseTransport], int | None] = user_of,
    ) -> None:
        self._most = most
        self._seconds = seconds
        self._user_of = user_of
        self._same_user: dict[PendingConnection, None] = {}
        self._foreign: dict[PendingConnection, None] = {}
        """Connections of other and unknown users."""

    def __len__(self) -> int:
        return len(self._same_user) + len(self._foreign)

    def add(self, transport: asyncio.Transport) -> PendingConnection:
        group = self._same_user if self._user_of(transport) == os.getuid() else self._foreign
        pending = PendingConnection(transport, group, self._seconds)
        if len(self) > self._most:
            self.drop_oldest()
        return pending

    def drop_oldest(self) -> bool:
        """Drop the oldest connection; return whether there was one."""
        for pending in chain(self._foreign, self._same_user):
            pending.drop()
            return True
        return False


class PendingConnection:
    """One connection until it closes or sends a token. Every method is idempotent."""

    def __init__(
        self,
        transport: asyncio.Transport,
        group: dict[PendingConnection, None],
        seconds: float,
    ) -> None:
        self._transport = transport
        self._group = group
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None
        group[self] = None
        self.renew()

    def renew(self) -> None:
        """Restart the time limit after a request was answered."""
        if self._timer is not None:
            self._timer.cancel()
        if self in self._group:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._seconds, self.drop)

    def admit(self) -> None:
        """Stop the time limit: the connection has sent a token, or is closed."""
        self._group.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()

    def drop(self) -> None:
        self.admit()
        self._transport.abort()


STREAM = "/v1/stream"
VISITOR = "callgate.visitor"
"""Key of the authenticated client in the scope."""
_log = logging.getLogger("callgate.http")
_OWN_SITES = (b"same-origin", b"none")


class AccessGuard:
    def __init__(
        self,
        inside: ASGIApp,
        context: Context,
        unlocked: Collection[str],
        tokens_inside: Collection[str] = (),
    ) -> None:
        """
        Args:
            unlocked: paths that need no token.
            tokens_inside: paths of WebSockets for programs, which verify the token themselves.
        """
        self._inside = inside
        self._context = context
        self._access = context.access
        self._names = context.names
        self._unlocked = frozenset(unlocked)
        self._tokens_inside = frozenset(tokens_inside)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return
        send = with_security_headers(send)
        try:
            scope[VISITOR] = await self._judge(scope)
        except (Problem, StoreError) as error:
            problem = problem_of(error)
            assert problem is not None
            await respond(problem_response(problem), scope, receive, send)
            return
        await self._inside(scope, receive, send)

    async def _judge(self, scope: Scope) -> Visitor | None:
        """Return the authenticated client; None if the path needs none. Raises `Problem`."""
        if scope["type"] == "websocket" and scope["path"] in self._tokens_inside:
            _ensure_worker(scope)
            return None
        host = _only(scope, b"host")
        if host is None or not self._names.is_ours(host.decode("latin-1")):
            raise forbidden("This server does not serve the requested host name.", "host")
        origins = _all(scope, b"origin")
        if origins and not self._is_own(origins, host):
            raise forbidden("Requests from pages of other sites are refused.", "origin")
        if scope["type"] == "http" and scope["path"] in self._unlocked:
            return None
        carried = _only(scope, HEADER.encode())
        visitor = (
            await self._known(scope) if carried is None else await self._carried(scope, carried)
        )
        if visitor is None:
            if _shows_something(scope) and not self._access.is_ready:
                raise not_ready({"store": "unreachable"})
            raise unauthorized()
        pending = scope.get("state", {}).get(CONNECTION)
        if pending is not None:
            pending.admit()
        return visitor

    async def _carried(self, scope: Scope, header: bytes) -> Visitor | None:
        """Return the client of a forwarded request; None if there are no other servers."""
        if scope["type"] != "http":
            return None
        try:
            carried = await self._context.peers.accept(
                header.decode("latin-1"), scope["method"], target_of(scope)
            )
        except BadSignature as error:
            _log.warning("a forwarded request for %s is refused: %s", scope["path"], error)
            raise carried_refused(str(error)) from None
        except StoreError:
            raise carried_refused("The key of the servers is unreadable.") from None
        return None if carried is None else Visitor(browser=carried.browser, carried=carried)

    def _is_own(self, origins: list[bytes], host: bytes) -> bool:
        origin = origins[0].decode("latin-1")
        return len(origins) == 1 and self._names.is_own_origin(origin, host.decode("latin-1"))

    async def _known(self, scope: Scope) -> Visitor | None:
        header = _only(scope, b"authorization")
        if header is not None:
            scheme, _, token = header.decode("latin-1").partition(" ")
            good = scheme.lower() == "bearer" and self._access.is_token(token.strip())
            return USER if good else None
        if self._has_cookie(scope):
            return BROWSER
        if scope["type"] == "websocket" and scope["path"] == STREAM:
            given = parse_qs(scope["query_string"].decode("latin-1")).get("attach", [])
            return await self._access.attach(given[0]) if len(given) == 1 else None
        return None

    def _has_cookie(self, scope: Scope) -> bool:
        sites = _all(scope, b"sec-fetch-site")
        if sites and (len(sites) > 1 or sites[0] not in _OWN_SITES):
            return False
        name = cookie_name(self._names)
        for line in _all(scope, b"cookie"):
            for part in line.decode("latin-1").split(";"):
                key, _, value = part.strip().partition("=")
                if key == name and self._access.is_cookie(value):
                    return True
        return False


def _shows_something(scope: Scope) -> bool:
    """Whether a request has any credentials."""
    return bool(
        _all(scope, b"authorization")
        or _all(scope, b"cookie")
        or (scope["path"] == STREAM and b"attach=" in scope["query_string"])
    )


def target_of(scope: Scope) -> str:
    """Return path and query of a request, unchanged."""
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope["query_string"]
    return (path + b"?" + query if query else path).decode("latin-1")


def _ensure_worker(scope: Scope) -> None:
    """Raise `Problem` unless the client is a program that sends a token.

    `Host` is not checked, because a worker may connect through a proxy. A page in a browser cannot
    send a token.
    """
    if _all(scope, b"origin") or _only(scope, b"authorization") is None:
        raise forbidden("Only workers with a token may connect here.", "worker")


def cookie_name(names: Names) -> str:
    """Return the cookie name of an instance or its load balancer; cookies ignore ports."""
    if names.public is not None:
        return f"callgate_{urlsplit(names.public).port or 'public'}"
    return f"callgate_{names.address.port}"


def _all(scope: Scope, name: bytes) -> list[bytes]:
    return [value for key, value in scope["headers"] if key == name]


def _only(scope: Scope, name: bytes) -> bytes | None:
    """Return the only value of a header; None if it has none or several."""
    found = _all(scope, name)
    return found[0] if len(found) == 1 else None
