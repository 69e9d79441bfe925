"""Every kind of HTTP answer of ours, byte for byte as it goes over the wire."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import callgate
from callgate.features.web import application, responses
from callgate.features.web.application import find_files
from callgate.features.web.contexts import Operation, Peers
from callgate.features.web.operations import Endpoint
from callgate.features.web.server import HttpServer
from callgate.socket.listening import Address, bind
from tests.features.web.instances import LIMIT_S, Instance, serving

SECURITY = [
    "content-security-policy: default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "x-content-type-options: nosniff",
    "referrer-policy: no-referrer",
    "cross-origin-resource-policy: same-origin",
    "cross-origin-opener-policy: same-origin",
]
NO_STORE = "cache-control: no-store"
CLOSE = "Connection: close"
_DATE = re.compile(rb"^Date: [^\r]+\r\n", re.MULTILINE)  # the library's, before a WebSocket
UPGRADE = [
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
]
TOKEN = '{"error":{"class":"permission_denied","message":"The token of this instance is missing or wrong.","reason":"token"}}'
FOREIGN_HOST = '{"error":{"class":"permission_denied","message":"This server does not serve the requested host name.","reason":"host"}}'
NO_SUCH_PATH = '{"error":{"class":"not_found","message":"There is no such path.","reason":"not_found"}}'


def answer(status: str, *headers: str, body: str = "") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "", body]).encode()


async def exchange(port: int, first: str, *headers: str, body: str = "", host: str | None = None) -> bytes:
    """Everything that comes back for one request, until the connection is closed."""
    connection = "Connection: Upgrade" if UPGRADE[0] in headers else CLOSE
    lines = [f"{first} HTTP/1.1", f"Host: {host or f'127.0.0.1:{port}'}", connection, *headers, "", body]
    found = await _read_all(port, "\r\n".join(lines).encode())
    return _DATE.sub(b"", found)


async def _read_all(port: int, request: bytes) -> bytes:
    async with asyncio.timeout(LIMIT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        try:
            return await reader.read()
        finally:
            writer.close()


def bearer(instance: Instance) -> str:
    return f"Authorization: Bearer {instance.token}"


async def test_the_guard_refuses_with_a_problem_and_the_security_headers(instance: Instance) -> None:
    assert await exchange(instance.port, "GET /v1/instance") == answer(
        "401 Unauthorized",
        "content-type: application/json",
        f"content-length: {len(TOKEN)}",
        "www-authenticate: Bearer",
        *SECURITY,
        NO_STORE,
        CLOSE,
        body=TOKEN,
    )
    assert await exchange(instance.port, "GET /v1/instance", bearer(instance), host="evil.example") == answer(
        "403 Forbidden",
        "content-type: application/json",
        f"content-length: {len(FOREIGN_HOST)}",
        *SECURITY,
        NO_STORE,
        CLOSE,
        body=FOREIGN_HOST,
    )


async def test_the_guard_refuses_a_websocket_in_the_same_words(instance: Instance) -> None:
    found = await exchange(instance.port, "GET /v1/stream", *UPGRADE)
    assert found == answer(
        "401 Unauthorized",
        "content-type: application/json",
        f"content-length: {len(TOKEN)}",
        "www-authenticate: Bearer",
        *SECURITY,
        NO_STORE,
        CLOSE,
        body=TOKEN,
    )


async def test_a_path_without_a_route_is_not_found_on_http_and_websocket(instance: Instance) -> None:
    head = ["content-type: application/json", f"content-length: {len(NO_SUCH_PATH)}", *SECURITY, NO_STORE]
    plain = await exchange(instance.port, "GET /v1/nothing", bearer(instance))
    upgraded = await exchange(instance.port, "GET /v1/nothing", bearer(instance), *UPGRADE)
    assert plain == answer("404 Not Found", *head, CLOSE, body=NO_SUCH_PATH)
    assert upgraded == answer("404 Not Found", *head, CLOSE, body=NO_SUCH_PATH)


@pytest.mark.parametrize(
    ("first", "headers", "status", "allow", "body"),
    [
        (
            "PUT /v1/calls",
            [],
            "405 Method Not Allowed",
            ["allow: GET, POST"],
            '{"error":{"class":"protocol_error","message":"This path supports only GET, POST.","reason":"method"}}',
        ),
        (
            "GET /v1/instance?x=1",
            [],
            "400 Bad Request",
            [],
            '{"error":{"class":"protocol_error","message":"This path has no query parameters.","reason":"bad_request"}}',
        ),
        (
            "POST /v1/calls",
            ["Content-Length: 0"],
            "415 Unsupported Media Type",
            [],
            '{"error":{"class":"protocol_error","message":"The content type must be application/json.","reason":"content_type"}}',
        ),
    ],
)
async def test_a_problem_of_a_route_is_json(
    instance: Instance, first: str, headers: list[str], status: str, allow: list[str], body: str
) -> None:
    assert await exchange(instance.port, first, bearer(instance), *headers) == answer(
        status,
        "content-type: application/json",
        f"content-length: {len(body)}",
        *allow,
        *SECURITY,
        NO_STORE,
        CLOSE,
        body=body,
    )


async def test_a_good_answer_is_json(instance: Instance) -> None:
    assert await exchange(instance.port, "GET /healthz") == answer(
        "200 OK",
        "content-type: application/json",
        "content-length: 29",
        *SECURITY,
        NO_STORE,
        CLOSE,
        body='{"ok":true,"version":"0.1.0"}',
    )


async def test_a_login_link_answers_with_a_page_or_leads_to_the_dashboard(instance: Instance) -> None:
    used = (await exchange(instance.port, "GET /login?code=wrong", "Accept: text/html")).decode()
    page = used.partition("\r\n\r\n")[2]
    assert page and used.encode() == answer(
        "401 Unauthorized",
        "content-type: text/html; charset=utf-8",
        f"content-length: {len(page.encode())}",
        *SECURITY,
        NO_STORE,
        CLOSE,
        body=page,
    )
    good = (await exchange(instance.port, f"GET /login?code={instance.access.new_code()}")).decode()
    cookie = good.partition("set-cookie: ")[2].partition("\r\n")[0]
    assert cookie.startswith(f"callgate_{instance.port}=") and good.encode() == answer(
        "303 See Other",
        "content-type: application/json",
        "content-length: 0",
        "location: /",
        f"set-cookie: {cookie}",
        *SECURITY,
        NO_STORE,
        CLOSE,
    )


async def test_an_answer_in_pieces_is_chunked_and_ends(instance: Instance) -> None:
    body = '{"tool":"show","arguments":{"what":"x"}}'
    headers = [
        bearer(instance),
        "Accept: text/event-stream",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    found = (await exchange(instance.port, "POST /v1/calls", *headers, body=body)).decode()
    head, _, pieces = found.partition("\r\n\r\n")
    wanted = ["content-type: text/event-stream", *SECURITY, NO_STORE, "Transfer-Encoding: chunked", CLOSE]
    assert head.split("\r\n") == ["HTTP/1.1 200 OK", *wanted]
    assert pieces.endswith("\r\n0\r\n\r\n") and "event: result" in pieces


async def test_files_answer_with_a_tag_and_are_not_cached_blindly(home: Path, tmp_path: Path) -> None:
    static = tmp_path / "static"
    static.mkdir()
    (static / "index.html").write_text("<p>page")
    (static / "gone.js").write_text("")
    tag = 'etag: "14f7bff480f9c15ce0390d169da1a21f"'
    head = [tag, "cache-control: no-cache"]
    page = [*head, "content-type: text/html; charset=utf-8", "content-length: 7", *SECURITY, CLOSE]
    async with serving(home, tmp_path / "ws", files=find_files(str(static))) as made:
        (static / "gone.js").unlink()
        assert await exchange(made.port, "GET /") == answer("200 OK", *page, body="<p>page")
        assert await exchange(made.port, "HEAD /") == answer("200 OK", *page)
        known = f"If-None-Match: {tag.removeprefix('etag: ')}"
        assert await exchange(made.port, "GET /", known) == answer("304 Not Modified", *head, *SECURITY, CLOSE)
        bare = ["content-length: 0", *SECURITY, NO_STORE, CLOSE]
        wrong = await exchange(made.port, "POST /", "Content-Length: 0")
        assert wrong == answer("405 Method Not Allowed", "allow: GET, HEAD", *bare)
        assert await exchange(made.port, "GET /gone.js") == answer("404 Not Found", *bare)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ImportError("mcp"), "The package mcp is not installed. Run: pip install 'mcp>=2.3'"),
        (RuntimeError("broken"), "MCP could not be started; see the log of the instance."),
    ],
)
async def test_mcp_that_cannot_be_started_is_unavailable(
    instance: Instance, error: Exception, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Any:
        raise error

    monkeypatch.setattr(application, "_load", fail)
    body = f'{{"error":{{"class":"execution_error","message":"{message}","reason":"mcp_unavailable"}}}}'
    assert await exchange(instance.port, "POST /mcp", bearer(instance), "Content-Length: 0") == answer(
        "503 Service Unavailable",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *SECURITY,
        NO_STORE,
        CLOSE,
        body=body,
    )


async def test_a_request_that_there_is_no_room_for_is_refused() -> None:
    async def never(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    listening = bind(Address("127.0.0.1", 0))
    server = HttpServer(never)
    server.start(listening)
    async with asyncio.timeout(LIMIT_S):
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        writer.write(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\n{")
        while not (open_connections := [each for each in server.state.connections if each._body]):
            await asyncio.sleep(0)
        open_connections[0].overflow()
        found = (await reader.read()).decode()
        writer.close()
        await server.close()
    body = found.partition("\r\n\r\n")[2]
    head = [f"content-length: {len(body)}", "content-type: application/json", "connection: close"]
    assert '"reason":"overloaded"' in body
    assert found.encode() == answer("503 Service Unavailable", *head, body=body)


def test_one_module_makes_all_the_messages_of_an_answer() -> None:
    root = Path(callgate.__file__).parent
    found = [path for path in root.rglob("*.py") if "response.start" in path.read_text()]
    assert found == [Path(responses.__file__)]


async def test_a_request_whose_work_is_cancelled_is_answered_with_503() -> None:
    """As at the end of a drain: whatever cancels it, the client gets an answer, and no 500."""

    async def cancelled(context: Any, request: Any) -> Any:
        raise asyncio.CancelledError

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    context: Any = SimpleNamespace(draining=SimpleNamespace(has_begun=False))
    context.peers = Peers(context)
    endpoint = Endpoint(context, [Operation("GET", "/v1/x", "Wait.", cancelled, dict)])
    scope = {"type": "http", "method": "GET", "path": "/v1/x", "query_string": b"", "headers": []}
    await endpoint(scope, receive, send)
    assert sent[0]["status"] == 503
    assert json.loads(b"".join(each.get("body", b"") for each in sent))["error"]["reason"] == "outcome_unknown"
