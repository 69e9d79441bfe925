"""Answers of the HTTP surface: JSON, streams, security headers, and problems with their status.

    exception ---> `problem_of` ---> Problem ---> `problem_response` ---> `respond`

Each class of error has one status (`STATUSES`). A refused or failed call is an ordinary answer. A
problem is a request that was malformed, refused, or named something that does not exist.

    json_response | problem_response | html_response | redirect | HttpResponse(...)  -> respond
    Streamed                                                                         -> stream

`respond` also refuses a WebSocket, before it is accepted. The guard wraps `send` with
`with_security_headers`: every answer has headers that prevent framing, sniffing and caching.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from starlette.types import Message, Receive, Scope, Send

from callgate.core.calls import ErrorInfo
from callgate.core.errors import ToolError, ToolErrorClass, ToolShuttingDown
from callgate.core.models import ModelError
from callgate.core.stores import (
    SessionLocked,
    SessionNotFound,
    StaleOwner,
    StoreClosed,
    StoreError,
    UnstorableName,
)
from callgate.protocol.carried_requests import HEADER, MOVED, REFUSED
from callgate.sessions.session_turns import TurnInProgress
from callgate.socket.buffers import REFUSAL

RETRY_AFTER_S = 1
"""Time after which a client may retry a refused request, here or at another instance."""
STATUSES: Mapping[ToolErrorClass, int] = {
    ToolErrorClass.NOT_FOUND: 404,
    ToolErrorClass.VALIDATION_ERROR: 422,
    ToolErrorClass.PERMISSION_DENIED: 403,
    ToolErrorClass.USER_DENIED: 403,
    ToolErrorClass.CONFIRMATION_TIMEOUT: 403,
    ToolErrorClass.TIMEOUT: 500,
    ToolErrorClass.EXECUTION_ERROR: 500,
    ToolErrorClass.CANCELLED: 409,
    ToolErrorClass.SHUTTING_DOWN: 503,
    ToolErrorClass.PROTOCOL_ERROR: 400,
    ToolErrorClass.HOST_UNAVAILABLE: 503,
    ToolErrorClass.PARSE_ERROR: 400,
}


class Failure(msgspec.Struct, frozen=True):
    """Body of an error answer."""

    error: ErrorInfo


class Problem(Exception):
    def __init__(
        self,
        status: int,
        error_class: ToolErrorClass,
        message: str,
        reason: str,
        *,
        details: Any = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.body: Any = Failure(
            ErrorInfo(error_class=error_class, message=message, reason=reason, details=details)
        )


class Settled(Problem):
    """Conflict with an earlier answer to the same question, which is in the body."""

    def __init__(self, body: Any) -> None:
        super().__init__(
            409, ToolErrorClass.VALIDATION_ERROR, "The question is already answered.", "decided"
        )
        self.body = body


def bad_request(message: str, reason: str = "bad_request") -> Problem:
    return Problem(400, ToolErrorClass.PROTOCOL_ERROR, message, reason)


def unauthorized() -> Problem:
    return Problem(
        401,
        ToolErrorClass.PERMISSION_DENIED,
        "The token of this instance is missing or wrong.",
        "token",
        headers=[(b"www-authenticate", b"Bearer")],
    )


def forbidden(message: str, reason: str) -> Problem:
    return Problem(403, ToolErrorClass.PERMISSION_DENIED, message, reason)


def carried_refused(why: str) -> Problem:
    """Return the refusal of a request that another server forwarded."""
    return Problem(
        401,
        ToolErrorClass.PERMISSION_DENIED,
        f"The forwarded request of another server is refused: {why}",
        "carried_refused",
        headers=[(HEADER.encode(), REFUSED)],
    )


def moved() -> Problem:
    """Return the refusal of a forwarded request whose session now has another owner."""
    return Problem(
        421,
        ToolErrorClass.VALIDATION_ERROR,
        "Another server owns the session now. Nothing was done.",
        "moved",
        headers=[(HEADER.encode(), MOVED)],
    )


def not_found(kind: str) -> Problem:
    return Problem(404, ToolErrorClass.NOT_FOUND, f"There is no such {kind}.", "not_found")


def conflict(message: str, reason: str, **details: Any) -> Problem:
    return Problem(409, ToolErrorClass.VALIDATION_ERROR, message, reason, details=details or None)


def invalid(message: str, reason: str = "invalid") -> Problem:
    return Problem(422, ToolErrorClass.VALIDATION_ERROR, message, reason)


def overloaded() -> Problem:
    return Problem(503, ToolErrorClass.EXECUTION_ERROR, REFUSAL, "overloaded")


def draining() -> Problem:
    """Return the refusal of new work during a drain; another instance can accept it."""
    error = ToolShuttingDown.draining()
    return Problem(
        503,
        error.error_class,
        error.message,
        "draining",
        headers=[(b"retry-after", str(RETRY_AFTER_S).encode())],
    )


def stopping() -> Problem:
    """Return the answer to a request that the end of the instance interrupted."""
    return Problem(
        503,
        ToolErrorClass.SHUTTING_DOWN,
        "The instance stopped before it answered, so the effect of the request is unknown. Check "
        "before you retry.",
        "outcome_unknown",
    )


def not_ready(checks: Mapping[str, str]) -> Problem:
    """Return the answer of an instance that is not ready.

    `checks` must contain only fixed words, because the client may have no token.
    """
    failing = ", ".join(f"{name}: {found}" for name, found in checks.items() if found != "ok")
    return Problem(
        503,
        ToolErrorClass.EXECUTION_ERROR,
        f"This instance is not ready ({failing}).",
        "not_ready",
        details=dict(checks),
        headers=[(b"retry-after", str(RETRY_AFTER_S).encode())],
    )


def problem_of(error: Exception) -> Problem | None:
    """Return the answer for an error of callgate; None for an unexpected error."""
    match error:
        case Problem():
            return error
        case TurnInProgress():
            return conflict(str(error), "turn_under_way", turn_id=error.turn_id)
        case SessionNotFound():
            return not_found("session")
        case SessionLocked() | StaleOwner():
            return conflict(str(error), "session_locked")
        case UnstorableName():
            return not_found("name")
        case StoreClosed():
            return Problem(503, ToolErrorClass.SHUTTING_DOWN, str(error), "stopping")
        case StoreError():
            return Problem(503, ToolErrorClass.EXECUTION_ERROR, str(error), "store")
        case ModelError():
            return invalid(error.message, f"model_{error.kind}")
        case ToolError():
            info = ErrorInfo.of(error, "")
            reason = info.reason or str(error.error_class)
            return Problem(
                STATUSES[error.error_class],
                error.error_class,
                info.message,
                reason,
                details=info.details,
            )
    return None


_encode = msgspec.json.Encoder(enc_hook=repr).encode


def encode(value: Any) -> bytes:
    try:
        return _encode(value)
    except UnicodeEncodeError:  # a lone surrogate is written as an escape
        plain = msgspec.to_builtins(value, enc_hook=repr, str_keys=True)
        return json.dumps(plain, separators=(",", ":")).encode()


JSON = b"application/json"
_HTML = b"text/html; charset=utf-8"
_POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
_SECURITY_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),  # an opener cannot control the page
)
_NO_STORE = (b"cache-control", b"no-store")

Headers = Sequence[tuple[bytes, bytes]]


class HttpResponse(NamedTuple):
    status: int
    headers: Headers
    body: bytes = b""


class Streamed(NamedTuple):
    """A streamed answer."""

    pieces: AsyncIterator[bytes]
    media_type: str


def json_response(status: int, value: Any) -> HttpResponse:
    return _sized(status, encode(value))


def problem_response(problem: Problem) -> HttpResponse:
    return _sized(problem.status, encode(problem.body), problem.headers)


def text_response(status: int, body: bytes, media_type: str) -> HttpResponse:
    return _sized(status, body, media_type=media_type.encode())


def html_response(status: int, html: str) -> HttpResponse:
    return _sized(status, html.encode(), media_type=_HTML)


def redirect(location: str, cookie: str) -> HttpResponse:
    headers = [(b"location", location.encode()), (b"set-cookie", cookie.encode())]
    return _sized(303, b"", headers)


def _sized(
    status: int, body: bytes, headers: Headers = (), media_type: bytes = JSON
) -> HttpResponse:
    head = [(b"content-type", media_type), content_length(body), *headers]
    return HttpResponse(status, head, body)


def content_length(body: bytes) -> tuple[bytes, bytes]:
    return b"content-length", str(len(body)).encode()


async def respond(response: HttpResponse, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request, or refuse a WebSocket that is not accepted yet."""
    prefix = "http.response"
    if scope["type"] == "websocket":
        prefix = "websocket.http.response"
        await receive()  # websocket.connect
    start = {"status": response.status, "headers": [*response.headers]}
    await send({"type": f"{prefix}.start", **start})
    await send({"type": f"{prefix}.body", "body": response.body})


async def stream(answer: Streamed, send: Send) -> None:
    headers = [(b"content-type", answer.media_type.encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    async for piece in answer.pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def with_security_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            headers: list[Any] = [*message.get("headers", ()), *_SECURITY_HEADERS]
            if not any(key == b"cache-control" for key, _ in headers):
                headers.append(_NO_STORE)
            message["headers"] = headers
        await send(message)

    return sending
