"""Requests: what is retried and what is not, how they end, and what errors never say."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import ssl
import subprocess
import traceback
from base64 import b64encode
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from callgate.core.models import ModelError, ModelErrorKind, Reply, Retrying, TextDelta
from tests.features.chat.models.asking import HELLO, KEY, KINDS, model_at, pieces_of, reply_of
from tests.models_server import Answer, Fails, Hangs, Leaves, ModelServer, Says, Streams
from tests.needs import needs

K = ModelErrorKind


async def error_of(*answers: Answer, kind: str = "openai", **table: Any) -> ModelError:
    async with ModelServer(*answers) as server:
        with pytest.raises(ModelError) as caught:
            await pieces_of(model_at(kind, server.url, **table))
    return caught.value


def said(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, **more}}


FAILURES = [
    (400, said("bad"), K.REQUEST, False),
    (400, said("prompt is too long: 210000 tokens > 200000 maximum"), K.CONTEXT, False),
    (400, said("no", code="context_length_exceeded"), K.CONTEXT, False),
    (400, said("request exceeds", type="exceed_context_size_error"), K.CONTEXT, False),
    (401, said("who?"), K.KEY, False),
    (402, said("pay"), K.KEY, False),
    (403, "<html>forbidden</html>", K.KEY, False),
    (404, said("no such model"), K.REQUEST, False),
    (408, None, K.TIMEOUT, True),
    (409, None, K.OVERLOADED, True),
    (413, said("request_too_large"), K.CONTEXT, False),
    (425, None, K.OVERLOADED, True),
    (429, said("slow down"), K.RATE, True),
    (429, said("no money", code="insufficient_quota"), K.RATE, False),
    (500, "oops", K.OVERLOADED, True),
    (503, {"detail": "loading"}, K.OVERLOADED, True),
    (529, said("Overloaded", type="overloaded_error"), K.OVERLOADED, True),
    (204, None, K.REQUEST, False),
    (302, None, K.REQUEST, False),
]


@pytest.mark.parametrize("dialect", KINDS)
@pytest.mark.parametrize(("status", "body", "kind", "again"), FAILURES)
async def test_each_status_has_its_kind(
    dialect: str, status: int, body: Any, kind: ModelErrorKind, again: bool
) -> None:
    error = await error_of(Fails(status, body), kind=dialect, retries=0)
    assert (error.kind, error.retryable) == (kind, again)


@pytest.mark.parametrize("dialect", KINDS)
@pytest.mark.parametrize(
    ("failing", "kind"),
    [
        (Fails(429, said("slow")), K.RATE),
        (Fails(500, "oops"), K.OVERLOADED),
        (Fails(529, said("busy")), K.OVERLOADED),
        (Leaves(), K.UNREACHABLE),
        (Says("Half of it", cut=400), K.CUT),
    ],
    ids=["429", "500", "529", "gone", "cut"],
)
async def test_what_may_succeed_later_is_asked_again(dialect: str, failing: Answer, kind: ModelErrorKind) -> None:
    async with ModelServer(failing, failing, Says("At last.")) as server:
        got = await pieces_of(model_at(dialect, server.url))
        bodies = [request.body for request in server.requests]
    again = [each for each in got if isinstance(each, Retrying)]
    assert [(each.kind, each.attempt) for each in again] == [(kind, 1), (kind, 2)]
    after = got[got.index(again[-1]) + 1 :]
    assert "".join(each.text for each in after if isinstance(each, TextDelta)) == "At last."
    assert isinstance(got[-1], Reply)
    assert sum(isinstance(each, Reply) for each in got) == 1
    assert bodies[0] == bodies[1] == bodies[2]


async def test_retries_have_an_end() -> None:
    async with ModelServer(Fails(500)) as server:
        with pytest.raises(ModelError):
            await pieces_of(model_at("openai", server.url, retries=3))
        assert len(server.requests) == 4


async def test_what_cannot_succeed_is_asked_once() -> None:
    for status in (400, 401, 403, 404, 413, 302):
        async with ModelServer(Fails(status)) as server:
            with pytest.raises(ModelError):
                await pieces_of(model_at("openai", server.url))
            assert len(server.requests) == 1


async def test_the_server_may_forbid_or_ask_for_another_attempt() -> None:
    async with ModelServer(Fails(500, headers={"x-should-retry": "false"}), Says("x")) as server:
        with pytest.raises(ModelError):
            await pieces_of(model_at("openai", server.url))
    async with ModelServer(Fails(400, headers={"x-should-retry": "true"}), Says("x")) as server:
        assert await reply_of(model_at("openai", server.url))


@pytest.mark.parametrize("headers", [{"retry-after": "0.05"}, {"retry-after-ms": "50"}])
async def test_the_wait_a_server_asks_for_is_kept(headers: dict[str, str]) -> None:
    async with ModelServer(Fails(429, headers=headers), Says("x")) as server:
        got = await pieces_of(model_at("openai", server.url))
    (again,) = [each for each in got if isinstance(each, Retrying)]
    assert again.wait_s == 0.05


@pytest.mark.parametrize("asked", ["3600", "Fri, 31 Dec 2100 23:59:59 GMT"])
async def test_a_wait_of_an_hour_is_an_error_that_says_so(asked: str) -> None:
    error = await error_of(Fails(429, headers={"retry-after": asked}))
    assert error.kind is K.RATE
    assert error.retry_after_s is not None
    assert error.retry_after_s >= 3600


@pytest.mark.parametrize(
    ("event", "kind", "again"),
    [
        ({"type": "overloaded_error", "message": "busy"}, K.OVERLOADED, True),
        ({"type": "api_error", "message": "oops"}, K.OVERLOADED, True),
        ({"type": "rate_limit_error", "message": "slow"}, K.RATE, True),
        ({"type": "invalid_request_error", "message": "bad"}, K.REQUEST, False),
        ({"type": "authentication_error", "message": "who?"}, K.KEY, False),
        ({"type": "invalid_request_error", "message": "prompt is too long"}, K.CONTEXT, False),
    ],
)
@pytest.mark.parametrize("dialect", KINDS)
async def test_an_error_within_a_stream_has_its_kind(
    dialect: str, event: Any, kind: ModelErrorKind, again: bool
) -> None:
    text = json.dumps({"type": "error", "error": event})
    error = await error_of(Streams(f"event: error\ndata: {text}\n\n".encode()), kind=dialect, retries=0)
    assert (error.kind, error.retryable) == (kind, again)


async def test_a_server_that_is_not_there_cannot_be_reached() -> None:
    async with ModelServer(Says("x")) as server:
        url = server.url
    with pytest.raises(ModelError) as caught:
        await pieces_of(model_at("openai", url, retries=1))
    assert caught.value.kind is K.UNREACHABLE


@pytest.mark.parametrize("answer", [Hangs(), Says("Half of it", hang=300)], ids=["at once", "within"])
async def test_a_silent_server_is_not_waited_for(answer: Answer) -> None:
    error = await error_of(answer, timeout_s=0.1, retries=1)
    assert (error.kind, error.retryable) == (K.TIMEOUT, True)


async def test_a_reply_that_never_ends_has_a_limit() -> None:
    got: list[Any] = []
    async with ModelServer(Says("Half of it and more", hang=800)) as server:
        model = model_at("openai", server.url, total_timeout_s=1)
        with pytest.raises(ModelError) as caught:
            async with asyncio.timeout(60), aclosing(model.stream(HELLO)) as pieces:
                async for piece in pieces:
                    got.append(piece)
        await model.close()
    assert (caught.value.kind, caught.value.retryable) == (K.TIMEOUT, False)
    assert got


@pytest.mark.parametrize("dialect", KINDS)
@pytest.mark.parametrize(
    "data",
    [
        b"data: {\n\n",
        b"data: []\n\n",
        b"data: \xff\xfe\n\n",
        b'data: {"type": 7, "choices": 7}\n\n',
        b"data: " + b"[" * 100_000 + b"\n\n",
    ],
)
async def test_a_stream_that_is_none_is_malformed(dialect: str, data: bytes) -> None:
    error = await error_of(Streams(data), kind=dialect)
    assert error.kind is K.MALFORMED


async def test_an_endless_line_is_malformed(monkeypatch: pytest.MonkeyPatch) -> None:
    error = await error_of(Streams(b"data: " + b"x" * (17 * 1024 * 1024)))
    assert error.kind is K.MALFORMED


async def test_a_page_instead_of_a_stream_is_malformed() -> None:
    error = await error_of(Streams(b"<html>", content_type="text/html"))
    assert error.kind is K.MALFORMED


async def test_a_huge_error_is_cut() -> None:
    error = await error_of(Fails(400, said("x" * 300_000)))
    assert len(str(error)) < 600


@pytest.mark.parametrize("dialect", KINDS)
@pytest.mark.parametrize("how", ["close", "cancel"])
async def test_closing_the_stream_closes_the_connection(dialect: str, how: str) -> None:
    async with ModelServer(Says("Something long to say.", hang=1500)) as server:
        model = model_at(dialect, server.url)
        begun = asyncio.Event()

        async def listen() -> None:
            async with aclosing(model.stream(HELLO)) as pieces:
                async for _ in pieces:
                    begun.set()
                    if how == "close":
                        return

        task = asyncio.create_task(listen())
        async with asyncio.timeout(60):
            await begun.wait()
            if how == "cancel":
                task.cancel()
            await asyncio.wait([task])
            await server.left.wait()
        assert server.connections == 1
        await model.close()


async def test_a_connection_is_used_again() -> None:
    async with ModelServer(Says("x")) as server:
        model = model_at("openai", server.url)
        for _ in range(3):
            async with aclosing(model.stream(HELLO)) as pieces:
                assert [each async for each in pieces]
        await model.close()
        assert (len(server.requests), server.connections) == (3, 1)


def _everything_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error.__dict__)


ECHOES: list[Answer] = [
    Fails(401, said(f"Incorrect API key provided: {KEY}.")),
    Fails(400, f"plain text with {KEY} in it"),
    Fails(400, said(KEY.upper())),
    Fails(400, said(b64encode(KEY.encode()).decode())),
    Fails(400, said(KEY.replace("/", "%2F"))),
    Fails(400, f'{{"broken": "{KEY.replace("/", chr(92) + "/")}"'),
    Fails(400, "x" * (64 * 1024 - 12) + KEY),
    Fails(400, said("x" * 390 + KEY)),
    Fails(302, None, {"location": f"http://127.0.0.1:9/?key={KEY}"}),
    Fails(429, said(KEY), {"retry-after": KEY}),
    Streams(f'event: error\ndata: {{"type":"error","error":{{"type":"x","message":"{KEY}"}}}}\n\n'.encode()),
    Streams(f'data: {{"{KEY}": \n\n'.encode()),
    Streams(b"x", content_type=KEY),
]


@pytest.mark.parametrize("dialect", KINDS)
@pytest.mark.parametrize("answer", ECHOES)
@pytest.mark.spec("T43")
async def test_no_error_and_no_log_holds_the_key(
    dialect: str, answer: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("httpcore2").setLevel(logging.WARNING)  # repeats what servers send, by its nature
    error = await error_of(answer, kind=dialect, retries=0)
    shown = (_everything_of(error) + caplog.text).lower()
    fragments = [KEY.lower()[start : start + 9] for start in range(0, len(KEY) - 8)]
    encoded = b64encode(KEY.encode()).decode().lower()[:-4]
    assert [each for each in [*fragments, encoded] if each in shown] == []


@pytest.mark.spec("T43")
async def test_a_model_does_not_show_its_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with ModelServer(Fails(500), Says("x")) as server:
        model = model_at("anthropic", server.url, headers={"x-secret": "header-secret-123"})
        got = await pieces_of(model)
        assert server.requests[0].headers["x-api-key"] == KEY
    assert KEY not in repr(model) + repr(got) + caplog.text + repr(vars(model))
    assert "header-secret-123" not in repr(got) + caplog.text


async def test_a_redirect_is_not_followed() -> None:
    async with ModelServer(Says("x")) as other:
        error = await error_of(Fails(307, None, {"location": f"{other.url}/chat/completions"}))
        assert (error.kind, other.requests) == (K.REQUEST, [])


@pytest.mark.parametrize(
    "url",
    [
        "http://192.0.2.7/v1",
        "http://localhost.example.com/v1",
        "http://127.0.0.1.example.com/v1",
        "http://example.com/v1",
        "http://127.0.0.1@example.com/v1",
        "https://user:pw@example.com/v1",
        "ftp://localhost/v1",
        "localhost:8080",
        "",
        "https://example.com/v1?key=1",
        "http://[::ffff:192.0.2.7]/",
        "http://0.0.0.0/v1",
        "https://",
        "http://exa mple",
    ],
)
@pytest.mark.parametrize("dialect", KINDS)
def test_an_address_that_would_show_the_key_is_refused(dialect: str, url: str) -> None:
    with pytest.raises(ModelError) as caught:
        model_at(dialect, url)
    assert caught.value.kind is K.REQUEST


@pytest.mark.parametrize(
    "url", ["http://localhost:1/v1", "http://127.1.2.3/v1", "http://[::1]:80/v1", "https://example.com/v1"]
)
def test_this_machine_and_https_are_taken(url: str) -> None:
    model_at("openai", url)


def test_plain_http_elsewhere_must_be_said() -> None:
    model_at("openai", "http://192.0.2.7/v1", insecure_http=True)


@pytest.mark.parametrize("headers", [{"x": "a\r\nb: c"}, {"x": "ä"}, {"a b": "c"}, {"": "c"}])
def test_a_header_that_could_become_two_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ModelError):
        model_at("openai", "https://example.com", headers=headers)


async def test_headers_of_the_settings_are_sent_and_win() -> None:
    async with ModelServer(Says("x")) as server:
        headers = {"X-Team": "blue", "Anthropic-Version": "2030-01-01", "User-Agent": "me"}
        await reply_of(model_at("anthropic", server.url, headers=headers))
        sent = server.requests[0].headers
    assert (sent["x-team"], sent["anthropic-version"], sent["user-agent"]) == ("blue", "2030-01-01", "me")


async def test_a_request_goes_through_the_proxy_of_the_settings() -> None:
    async with ModelServer(Says("x")) as proxy:
        proxied = proxy.origin.replace("http://", "http://user:proxy-secret@")
        model = model_at("openai", "http://model.invalid/v1", insecure_http=True, proxy=proxied)
        await reply_of(model)
        request = proxy.requests[0]
    assert request.target == "http://model.invalid/v1/chat/completions"
    assert request.headers["proxy-authorization"].startswith("Basic ")


async def test_a_proxy_of_the_environment_is_used_but_not_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ModelServer(Says("x")) as proxy, ModelServer(Says("y")) as server:
        monkeypatch.setenv("http_proxy", proxy.origin)
        monkeypatch.setenv("ALL_PROXY", proxy.origin)
        await reply_of(model_at("openai", "http://model.invalid/v1", insecure_http=True))
        await reply_of(model_at("openai", server.url))
        assert (len(proxy.requests), len(server.requests)) == (1, 1)


async def test_no_proxy_at_all_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ModelServer(Says("x")) as proxy:
        monkeypatch.setenv("ALL_PROXY", proxy.origin)
        model = model_at("openai", "http://192.0.2.1:9/v1", insecure_http=True, proxy="none", timeout_s=0.05, retries=0)
        with pytest.raises(ModelError):
            await reply_of(model)
        assert proxy.requests == []


@pytest.mark.parametrize("proxy", ["nonsense://user:proxy-secret@x", "http://", "user:proxy-secret@[bad"])
async def test_a_wrong_proxy_is_an_error_without_its_password(proxy: str) -> None:
    with pytest.raises(ModelError) as caught:
        await reply_of(model_at("openai", "https://example.invalid", proxy=proxy, retries=0, timeout_s=0.2))
    assert "proxy-secret" not in _everything_of(caught.value)


@needs("openssl")
async def test_a_certificate_that_nobody_vouches_for_ends_it(tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-keyout",
            key,
            "-out",
            cert,
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.read(100))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ModelError) as caught:
            await pieces_of(model_at("openai", f"https://localhost:{port}/v1"))
    assert (caught.value.kind, caught.value.retryable) == (K.UNREACHABLE, False)
    assert b"".join(asked) == b""
    gc.collect()
