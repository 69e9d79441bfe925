"""HTTP answers: a response as a value, and the one place that sends it as ASGI messages.

    json_response | problem_response | html_response | redirect | HttpResponse(...)  -> respond
    Streamed                                                                         -> stream

`respond` also refuses a WebSocket: before it is accepted, it is answered as a request is.
`with_security_headers` wraps `send` around everything that goes out (the guard does it), so no
answer can lack the headers that keep a page of ours from being framed, sniffed or cached.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from starlette.types import Message, Receive, Scope, Send

from callgate.surfaces.http.encoding import encode
from callgate.surfaces.http.problems import Problem

JSON = b"application/json"
_HTML = b"text/html; charset=utf-8"
_POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
_SECURITY_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),  # who opened our window cannot steer it
)
_NO_STORE = (b"cache-control", b"no-store")

Headers = Sequence[tuple[bytes, bytes]]


class HttpResponse(NamedTuple):
    status: int
    headers: Headers
    body: bytes = b""


class Streamed(NamedTuple):
    """An answer in pieces."""

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
