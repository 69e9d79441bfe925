"""A route as a value, and how a request becomes a call of its function.

    request -> path, query and body as types, or 400, 413, 415, 422 -> run -> JSON

A route says what it takes and gives as types; nothing reaches its function that is not of them.
From the same values the router is made, and the description of it (`openapi`). `endpoints` is what
answers at a path.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl

import msgspec
from starlette.types import Receive, Scope

from callgate.core.clients import Client
from callgate.core.errors import ToolErrorClass
from callgate.core.stored import LOCAL
from callgate.protocol import strict_json
from callgate.protocol.carried_requests import Carried
from callgate.redaction.texts import redact
from callgate.surfaces.http.contexts import Context
from callgate.surfaces.http.guard import VISITOR, target_of
from callgate.surfaces.http.problems import (
    Problem,
    bad_request,
    carried_refused,
    invalid,
    not_found,
)
from callgate.surfaces.http.responses import JSON
from callgate.surfaces.http.servers.directory import Server

_LONGEST_NAME = 80
DASHBOARD = "dashboard"
"""The client of whoever is logged in to the page."""
MAX_BODY = 8 * 1024 * 1024

Method = Literal["GET", "POST", "PATCH", "DELETE"]


class Request(NamedTuple):
    """A request, read."""

    path: Mapping[str, str]
    query: Any
    body: Any
    accepts: str
    disconnected: Callable[[], Awaitable[None]]
    """Returns when the client has disconnected."""
    client: Client
    browser: bool
    """Somebody is logged in to our page."""
    target: str = ""
    """Path and query, as they were sent."""
    raw: bytes = b""
    """The body, as it was sent."""
    carried: bool = False
    """Another server sends it, for its own client or for itself."""
    principal: str = LOCAL
    traceparent: str = ""
    tracestate: str = ""
    request_id: str = ""
    """`x-request-id`, as the client sent it."""


class Operation(NamedTuple):
    method: Method
    path: str
    summary: str
    run: Callable[[Context, Request], Awaitable[Any]]
    answer: Any
    """The type of a good answer."""
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    status: int = 200
    errors: tuple[int, ...] = ()
    """Statuses beside those that any route of its shape may have."""
    short: bool = False
    """Also at the same path without `/v1`."""
    unlocked: bool = False
    """Needs no token."""
    events: bool = False
    """Also as server-sent events."""
    declined: Any = None
    """The type of a 409 answer that is no plain error."""
    owner: Callable[[Context, Request], Awaitable[Server | None]] | None = None
    """Finds the other server that has to answer; None: this one may (`owners`)."""
    for_servers: bool = False
    """Other servers ask for it themselves."""
    malformed: int = 422
    """The status for a body that is JSON and not what is taken here."""
    while_draining: bool = False
    """Also done while the instance drains, though it is no GET and no DELETE."""

    @property
    def paths(self) -> list[str]:
        return [self.path, self.path.removeprefix("/v1")] if self.short else [self.path]

    @property
    def begins_work(self) -> bool:
        return self.method in ("POST", "PATCH") and not self.while_draining


# Reading a request.


async def read_request(operation: Operation, scope: Scope, receive: Receive) -> Request:
    """Raises `Problem`."""
    if any(map(_is_unstorable, scope.get("path_params", {}).values())):
        raise not_found("name")
    query = _query(operation, scope["query_string"])
    raw = b""
    if operation.method in ("POST", "PATCH"):
        _ensure_json(scope)
        raw = await _read_body(scope, receive)
    visitor = scope.get(VISITOR)
    browser = visitor is not None and visitor.browser
    carried = None if visitor is None else visitor.carried
    if carried is not None:
        _ensure_carriable(operation, carried, raw)
    return Request(
        path=scope.get("path_params", {}),
        query=query,
        body=_body(operation, raw),
        accepts=_header(scope, b"accept").decode("latin-1"),
        disconnected=lambda: _disconnected(receive),
        client=_client(scope, browser) if carried is None else carried.client,
        browser=browser,
        target=target_of(scope),
        raw=raw,
        carried=carried is not None,
        principal=LOCAL if carried is None else carried.principal,
        traceparent=_header(scope, b"traceparent").decode("latin-1"),
        tracestate=_header(scope, b"tracestate").decode("latin-1"),
        request_id=_header(scope, b"x-request-id").decode("latin-1"),
    )


def _is_unstorable(name: str) -> bool:
    """Whether no id can be so: with a NUL character, or not Unicode."""
    return "\0" in name or any("\ud800" <= each <= "\udfff" for each in name)


def _ensure_carriable(operation: Operation, carried: Carried, raw: bytes) -> None:
    if operation.owner is None and not operation.for_servers:
        raise carried_refused("This is not carried.")
    if not carried.covers(raw):
        raise carried_refused("It was signed for another body.")


def _client(scope: Scope, browser: bool) -> Client:
    peer = scope.get("client")
    name = redact(_header(scope, b"user-agent").decode("latin-1")[:_LONGEST_NAME])
    address = f"{peer[0]}:{peer[1]}" if peer else None
    if browser:
        return Client(address=address, program=DASHBOARD)
    return Client(address=address, name=name or None)


def _query(operation: Operation, raw: bytes) -> Any:
    try:
        fields = parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(raw),
            errors="strict",
            max_num_fields=100,
        )
    except ValueError:
        raise bad_request("The query cannot be read.") from None
    given = dict(fields)
    if len(given) < len(fields):
        raise bad_request("A name stands twice in the query.")
    if operation.query is None:
        if given:
            raise bad_request("There is nothing to choose here.")
        return None
    try:
        return msgspec.convert(given, operation.query, strict=False)
    except msgspec.ValidationError as error:
        raise bad_request(f"The query is wrong: {error}") from None


def _ensure_json(scope: Scope) -> None:
    kind, _, more = _header(scope, b"content-type").partition(b";")
    charset = more.strip().lower().replace(b'"', b"")
    if kind.strip().lower() != JSON or charset not in (b"", b"charset=utf-8"):
        message = "Send application/json."
        raise Problem(415, ToolErrorClass.PROTOCOL_ERROR, message, "content_type")


async def _read_body(scope: Scope, receive: Receive) -> bytes:
    length = _header(scope, b"content-length")
    if length.isdigit() and int(length[:19]) > MAX_BODY:
        raise _too_large()
    chunks, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise bad_request("The request broke off.")
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > MAX_BODY:
            raise _too_large()
        if not message.get("more_body", False):
            return b"".join(chunks)


def _body(operation: Operation, raw: bytes) -> Any:
    if operation.method not in ("POST", "PATCH"):
        return None
    try:
        given = strict_json.loads(raw, max_bytes=MAX_BODY) if raw else {}
    except strict_json.StrictJsonError as error:
        raise bad_request(f"This is no JSON that we take: {error}", error.refusal) from None
    if operation.body is None:
        if given != {}:
            raise invalid("Nothing is to be said here: send {}.")
        return None
    try:
        return msgspec.convert(given, operation.body)
    except msgspec.ValidationError as error:
        sentence = f"The body is wrong: {error}"
        problem = bad_request if operation.malformed == 400 else invalid
        raise problem(sentence) from None


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _header(scope: Scope, name: bytes) -> bytes:
    """The value of a header; of several, all of them, so that none is taken for the only one."""
    return b", ".join(value for key, value in scope["headers"] if key == name)


def _too_large() -> Problem:
    message = f"At most {MAX_BODY} bytes are taken."
    return Problem(413, ToolErrorClass.PROTOCOL_ERROR, message, "size")


def wrong_method(known: Iterable[str]) -> Problem:
    allowed = ", ".join(sorted(known))
    return Problem(
        405,
        ToolErrorClass.PROTOCOL_ERROR,
        f"Only {allowed} here.",
        "method",
        headers=[(b"allow", allowed.encode())],
    )


def defect() -> Problem:
    message = "The instance met a defect; its log says more."
    return Problem(500, ToolErrorClass.EXECUTION_ERROR, message, "internal")
