"""The wall around everything, HTTP and WebSocket alike: from where, and who.

    Host ours? -> Origin ours? -> file or open route? -> token, cookie, attach token -> inside
       403           403              inside             or a server's signature: 401, or 503
                                                         where who may come in is not known

It is the outermost application: no route can forget it. What comes out again carries the security
headers (`responses`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from urllib.parse import parse_qs, urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from callgate.core.stores import StoreError
from callgate.protocol.carried_requests import HEADER, BadSignature
from callgate.surfaces.http.access import BROWSER, USER, Access, Visitor
from callgate.surfaces.http.addresses import Names
from callgate.surfaces.http.problems import (
    Problem,
    carried_refused,
    forbidden,
    not_ready,
    problem_of,
    unauthorized,
)
from callgate.surfaces.http.responses import (
    problem_response,
    respond,
    with_security_headers,
)
from callgate.surfaces.http.servers.directory import Servers
from callgate.surfaces.http.unauthenticated import CONNECTION

STREAM = "/v1/stream"
WORKERS = "/v1/workers/connect"
"""Where workers connect. Their tokens are in the store, so the route itself looks at them."""
VISITOR = "callgate.visitor"
"""Where in the scope an application finds who was let in."""
_log = logging.getLogger("callgate.http")
_OWN_SITES = (b"same-origin", b"none")


class Guard:
    def __init__(
        self,
        inside: ASGIApp,
        access: Access,
        names: Names,
        unlocked: Collection[str],
        servers: Servers | None = None,
    ) -> None:
        """`unlocked` are the paths that need no token; `servers` may send what they carry."""
        self._inside = inside
        self._access = access
        self._names = names
        self._unlocked = frozenset(unlocked)
        self._servers = servers

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
        """Who it is; None where nobody needs to know. Raises `Problem`."""
        if scope["type"] == "websocket" and scope["path"] == WORKERS:
            _ensure_worker(scope)
            return None
        host = _only(scope, b"host")
        if host is None or not self._names.is_ours(host.decode("latin-1")):
            raise forbidden("This is not the host that you mean.", "host")
        origins = _all(scope, b"origin")
        if origins and not self._is_own(origins, host):
            raise forbidden("Another site has no business here.", "origin")
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
        """On whose behalf another server asks; None where no server is known."""
        if self._servers is None or scope["type"] != "http":
            return None
        try:
            carried = await self._servers.accept(
                header.decode("latin-1"), scope["method"], target_of(scope)
            )
        except BadSignature as error:
            _log.warning("a carried request for %s is refused: %s", scope["path"], error)
            raise carried_refused(str(error)) from None
        except StoreError:
            raise carried_refused("The key of the servers cannot be read.") from None
        return Visitor(browser=carried.browser, carried=carried)

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
    """Whether a request has anything that may let it in."""
    return bool(
        _all(scope, b"authorization")
        or _all(scope, b"cookie")
        or (scope["path"] == STREAM and b"attach=" in scope["query_string"])
    )


def target_of(scope: Scope) -> str:
    """Path and query of a request, as they were sent."""
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope["query_string"]
    return (path + b"?" + query if query else path).decode("latin-1")


def _ensure_worker(scope: Scope) -> None:
    """A worker names the server as it finds it, which may be behind a proxy. Nothing is given to
    one without a token, and no page in a browser can show one."""
    if _all(scope, b"origin") or _only(scope, b"authorization") is None:
        raise forbidden("Only a worker connects here, with its token.", "worker")


def cookie_name(names: Names) -> str:
    """Cookies know no ports: each instance has a name of its own, or that of its load balancer."""
    if names.public is not None:
        return f"callgate_{urlsplit(names.public).port or 'public'}"
    return f"callgate_{names.address.port}"


def _all(scope: Scope, name: bytes) -> list[bytes]:
    return [value for key, value in scope["headers"] if key == name]


def _only(scope: Scope, name: bytes) -> bytes | None:
    """The one value of a header; None where there is none, or where there are two."""
    found = _all(scope, name)
    return found[0] if len(found) == 1 else None
