"""Who gets in, from where: the wall stands before every route and before every WebSocket."""

from __future__ import annotations

import asyncio
import os
import re
import stat
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.exceptions import InvalidStatus

from callgate.core.errors import ToolErrorClass
from callgate.features.web.access import SHORT_S, Access, Names, Visitor, read_public, reap_tokens
from callgate.features.web.application import OPERATIONS, AssetFile
from callgate.features.web.responses import STATUSES
from callgate.socket.listening import Address, BadAddress, bind, read_address
from tests.features.web.instances import JSON, Instance, serving, watching

LOCKED = [(each.method, path) for each in OPERATIONS if not each.unlocked for path in each.paths]


async def raw(port: int, request: bytes) -> tuple[int, bytes]:
    """The status and the whole answer to bytes that no library would send."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    await writer.drain()
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return int(answer.split(b" ", 2)[1]), answer


async def with_host(port: int, *lines: bytes, version: bytes = b"1.1", token: str = "") -> int:
    head = b"".join(line.replace(b"PORT", str(port).encode()) + b"\r\n" for line in lines)
    auth = b"authorization: Bearer " + token.encode() + b"\r\n"
    status, _ = await raw(
        port, b"GET /v1/instance HTTP/" + version + b"\r\n" + head + auth + b"connection: close\r\n\r\n"
    )
    return status


@pytest.mark.spec("T28")
async def test_no_route_answers_without_the_token(instance: Instance) -> None:
    wrong = [
        "",
        "Bearer",
        "Bearer x",
        "Basic x",
        f"Bearer {instance.token}x",
        f"Bearer {instance.token[:-1]}",
        f"Digest {instance.token}",
    ]
    assert len(LOCKED) > 30
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{instance.port}") as client:
        statuses = {
            (method, path, said): (
                await client.request(
                    method, re.sub(r"{\w+}", "x", path), headers=JSON | ({"authorization": said} if said else {})
                )
            ).status_code
            for method, path in LOCKED
            for said in wrong
        }
    assert set(statuses.values()) == {401}, {key for key, status in statuses.items() if status != 401}


@pytest.mark.spec("T28")
async def test_every_route_lets_the_token_in(instance: Instance) -> None:
    client = instance.client().http
    for method, path in LOCKED:
        if path == "/v1/token/rotate":
            continue
        answer = await client.request(method, re.sub(r"{\w+}", "x", path), headers=JSON)
        assert answer.status_code not in (401, 403, 405, 500), (method, path, answer.text)


@pytest.mark.spec("T28")
async def test_a_path_that_is_no_route_is_told_from_one_only_with_the_token(instance: Instance) -> None:
    stranger, user = instance.client(None).http, instance.client().http
    for path in ("/v1/nothing", "/nothing", "/static/../../access.py", "/%2e%2e/access.py", "/v1", "/v1/"):
        assert (await stranger.get(path)).status_code == 401
        assert (await user.get(path)).status_code == 404


@pytest.mark.spec("T28")
async def test_a_body_that_a_form_could_send_is_refused(instance: Instance) -> None:
    kinds = [
        "text/plain",
        "",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
        "application/json, text/plain",
        "text/plain; application/json",
        "application/jsonx",
        "application/json; charset=utf-16",
    ]
    client = instance.client().http
    for method, path in LOCKED:
        if method in ("POST", "PATCH"):
            for kind in kinds:
                answer = await client.request(
                    method, re.sub(r"{\w+}", "x", path), content=b'{"tool":"show"}', headers={"content-type": kind}
                )
                assert answer.status_code == 415, (method, path, kind)


FOREIGN = [
    [b"host: evil.example"],
    [b"host: evil.example:PORT"],
    [b"host: 127.0.0.1"],
    [b"host: localhost"],
    [b"host: 127.0.0.1:1"],
    [b"host: 127.0.0.1:PORT1"],
    [b"host: 127.0.0.1.evil.example:PORT"],
    [b"host: localhost.:PORT"],
    [b"host: localhost.evil.example:PORT"],
    [b"host: evil-localhost:PORT"],
    [b"host: [::ffff:127.0.0.1]:PORT"],
    [b"host: [::]:PORT"],
    [b"host: ::1:PORT"],
    [b"host: 0.0.0.0:PORT"],
    [b"host: 127.1:PORT"],
    [b"host: 2130706433:PORT"],
    [b"host: 0x7f.1:PORT"],
    [b"host: 127.0.0.2:PORT"],
    [b"host: user@127.0.0.1:PORT"],
    [b"host: 127.0.0.1:PORT@evil.example"],
    [b"host: 127.0.0.1:PORT:PORT"],
    [b"host: 127.0.0.1:PORT/"],
    [b"host: 127.0.0.1:PORT, evil.example"],
    [b"host: http://127.0.0.1:PORT"],
    [b"host:"],
    [b"host: :PORT"],
    [b"host: 127.0.0.1:0PORT"],
    [b"host: 127.0.0.1:+PORT"],
    [b"host: 127.0.0.1 :PORT"],
    [b"host: [127.0.0.1]:PORT"],
    [b"host: LOCALHOST\xc2\xa0:PORT"],
    [b"host: 169.254.169.254:PORT"],
    [b"host: callgate.local:PORT"],
    [b"host: [::1%25lo]:PORT"],
    [b"x-forwarded-host: 127.0.0.1:PORT", b"host: evil.example"],
]


@pytest.mark.spec("T26")
async def test_a_foreign_host_is_refused(instance: Instance) -> None:
    assert len(FOREIGN) > 30
    for lines in FOREIGN:
        assert await with_host(instance.port, *lines, token=instance.token) in (400, 403), lines


@pytest.mark.spec("T26")
async def test_no_host_or_two_are_refused(instance: Instance) -> None:
    assert await with_host(instance.port, token=instance.token) == 400
    assert await with_host(instance.port, token=instance.token, version=b"1.0") == 403
    ours = b"host: 127.0.0.1:PORT"
    assert await with_host(instance.port, ours, ours, token=instance.token) == 400
    assert await with_host(instance.port, ours, b"host: evil.example", token=instance.token) == 400


@pytest.mark.spec("T26")
async def test_our_own_names_are_let_in(instance: Instance) -> None:
    for host in (b"127.0.0.1:PORT", b"localhost:PORT", b"LocalHost:PORT", b"[::1]:PORT"):
        assert await with_host(instance.port, b"host: " + host, token=instance.token) == 200


@pytest.mark.spec("T26", "T27")
async def test_the_wall_stands_before_open_routes_and_files_too(home: Path, tmp_path: Path) -> None:
    page = tmp_path / "index.html"
    page.write_text("<p>")
    async with serving(home, tmp_path / "ws", files={"/": AssetFile(str(page), "text/html")}) as made:
        for path in ("/healthz", "/", "/login?code=x"):
            async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{made.port}") as client:
                assert (await client.get(path, headers={"host": "evil.example"})).status_code == 403
                assert (await client.get(path, headers={"origin": "http://evil.example"})).status_code == 403


def foreign_origins(port: int) -> list[str]:
    return [
        "http://evil.example",
        "null",
        "",
        f"https://127.0.0.1:{port}",
        f"http://localhost:{port}",
        "http://127.0.0.1",
        f"http://127.0.0.1:{port}/",
        f"http://127.0.0.1:{port + 1}",
        f"http://127.0.0.1:{port}.evil.example",
        f"http://evil.example:{port}",
        f"ws://127.0.0.1:{port}",
        f"http://127.0.0.1:{port} http://evil.example",
        f"HTTP://127.0.0.1:{port}",
        "file://",
        "chrome-extension://abc",
        "moz-extension://abc",
        "vscode-webview://abc",
    ]


@pytest.mark.spec("T27")
async def test_a_foreign_origin_opens_no_websocket_even_with_the_token(instance: Instance) -> None:
    user = instance.client()
    for origin in foreign_origins(instance.port):
        with pytest.raises(InvalidStatus) as refused:
            async with user.stream(origin=origin):
                pass
        assert refused.value.response.status_code == 403, origin
    async with user.stream(origin=f"http://127.0.0.1:{instance.port}") as watcher:
        assert (await watcher.subscribe())["type"] == "subscribe_ack"


@pytest.mark.spec("T27")
async def test_a_foreign_origin_is_refused_on_http(instance: Instance) -> None:
    user = instance.client().http
    for origin in foreign_origins(instance.port):
        assert (await user.get("/v1/instance", headers={"origin": origin})).status_code == 403, origin
    own = {"origin": f"http://127.0.0.1:{instance.port}"}
    answer = await user.get("/v1/instance", headers=own)
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("access-control-")]
    preflight = await user.options("/v1/instance", headers=own | {"access-control-request-method": "GET"})
    assert preflight.status_code == 405


@pytest.mark.spec("T27", "T26")
async def test_a_websocket_needs_the_token_and_our_host(instance: Instance) -> None:
    for headers, status in [({}, 401), ({"authorization": "Bearer x"}, 401), ({"cookie": "callgate_1=x"}, 401)]:
        with pytest.raises(InvalidStatus) as refused:
            async with watching(instance.port, headers=headers):
                pass
        assert refused.value.response.status_code == status
    for query in ("?attach=", "?attach=x", "?token=" + instance.token, "?attach=" + instance.token):
        with pytest.raises(InvalidStatus) as refused:
            async with watching(instance.port, query):
                pass
        assert refused.value.response.status_code == 401
    good = {"authorization": f"Bearer {instance.token}"}
    upgrade = (
        b"GET /v1/stream HTTP/1.1\r\nhost: evil.example\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nauthorization: "
        + good["authorization"].encode()
        + b"\r\n\r\n"
    )
    assert (await raw(instance.port, upgrade))[0] == 403


@pytest.mark.spec("T27")
async def test_other_paths_take_no_websocket(instance: Instance) -> None:
    from websockets.asyncio.client import connect

    good = {"authorization": f"Bearer {instance.token}"}
    for path, headers, status in [
        ("/v1/calls", good, 404),
        ("/", good, 404),
        ("/healthz", {}, 401),
        ("/v1/nothing", {}, 401),
    ]:
        with pytest.raises(InvalidStatus) as refused:
            async with connect(f"ws://127.0.0.1:{instance.port}{path}", additional_headers=headers, proxy=None):
                pass
        assert refused.value.response.status_code == status, path


async def logged_in(instance: Instance) -> str:
    """A cookie, by a link."""
    link = (await instance.client().post("/v1/login")).json()["url"]
    async with httpx2.AsyncClient() as browser:
        answer = await browser.get(link)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    name, _, rest = cookie.partition("=")
    assert name == f"callgate_{instance.port}"
    assert rest.split("; ")[1:] == ["HttpOnly", "SameSite=Strict", "Path=/"]
    return str(cookie.split(";")[0])


@pytest.mark.spec("T28", "T26")
async def test_a_login_link_becomes_a_cookie_once(instance: Instance) -> None:
    link = (await instance.client().post("/v1/login")).json()["url"]
    async with httpx2.AsyncClient() as browser:
        assert (await browser.get(link)).status_code == 303
        assert (await browser.get(link)).status_code == 401
        assert (await browser.get(link[:-1])).status_code == 401
    cookie = await logged_in(instance)
    stranger = instance.client(None).http
    assert (await stranger.get("/v1/instance", headers={"cookie": cookie})).status_code == 200
    async with watching(instance.port, headers={"cookie": f"other=1; {cookie}"}) as watcher:
        assert (await watcher.subscribe())["type"] == "subscribe_ack"


@pytest.mark.spec("T27")
async def test_a_cookie_counts_only_from_our_own_page(instance: Instance) -> None:
    """Another port of this machine is the same site: the browser would send the cookie along."""
    cookie = await logged_in(instance)
    stranger = instance.client(None).http
    sites = {"same-origin": 200, "none": 200, "same-site": 401, "cross-site": 401, "": 401, "same-origin, none": 401}
    for site, status in sites.items():
        answer = await stranger.get("/v1/instance", headers={"cookie": cookie, "sec-fetch-site": site})
        assert answer.status_code == status, site


def test_tokens_of_processes_that_are_gone_are_removed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    gone = subprocess.Popen(["true"])
    gone.wait()
    kept = {f"{os.getpid()}.token", f"{gone.pid}.lock", "x.token", "callgate.sock"}
    for name in (*kept, f"{gone.pid}.token", f"{10**30}.token"):
        (run / name).write_text("")
    reap_tokens(str(tmp_path))
    assert {path.name for path in run.iterdir()} == kept
    reap_tokens(str(tmp_path / "nowhere"))


async def test_codes_and_attach_tokens_run_out(tmp_path: Path) -> None:
    now = [0.0]
    access = Access(str(tmp_path / "token"), lambda: now[0])
    code, attach = access.new_code(), access.new_attach("sess_1")
    late_code, late_attach = access.new_code(), access.new_attach("sess_1")
    now[0] = SHORT_S
    assert await access.log_in(code) is not None and await access.attach(attach) == Visitor("sess_1")
    now[0] = SHORT_S + 0.001
    assert await access.log_in(late_code) is None and await access.attach(late_attach) is None
    assert await access.attach(attach) is None and await access.attach("") is None


@pytest.mark.spec("T32")
async def test_a_rotated_token_is_void_at_once_with_all_that_came_of_it(instance: Instance) -> None:
    old = instance.token
    user, session = instance.client(), await instance.client().session()
    cookie = await logged_in(instance)
    link = (await user.post("/v1/login")).json()["url"]
    attach = (await user.get(f"/v1/sessions/{session}"))["attach_token"]
    async with user.stream() as one, watching(instance.port, headers={"cookie": cookie}) as two:
        await one.subscribe()
        assert (await user.post("/v1/token/rotate")).status_code == 200
        assert await one.closed() == (4401, "token_rotated")
        assert await two.closed() == (4401, "token_rotated")
    assert instance.token != old and len(instance.token) == 43
    assert stat.S_IMODE(os.stat(instance.access.path).st_mode) == 0o600
    stranger = instance.client(None).http
    assert (await stranger.get(link)).status_code == 401
    for headers in ({"cookie": cookie}, {"authorization": f"Bearer {old}"}):
        assert (await stranger.get("/v1/instance", headers=headers)).status_code == 401
        with pytest.raises(InvalidStatus):
            async with watching(instance.port, headers=headers):
                pass
    with pytest.raises(InvalidStatus):
        async with watching(instance.port, f"?attach={attach}"):
            pass
    assert (await instance.client().get("/v1/instance"))["pid"] == 1


@pytest.mark.spec("T28")
async def test_every_answer_carries_the_headers_that_a_page_needs(instance: Instance) -> None:
    wanted = {
        "content-security-policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-store",
    }
    user, stranger = instance.client().http, instance.client(None).http
    answers = [
        await user.get("/v1/instance", headers={"accept-encoding": "gzip, br"}),
        await user.get("/v1/nothing"),
        await stranger.get("/v1/instance"),
        await stranger.get("/healthz"),
        await user.get("/healthz", headers={"host": "x"}),
        await user.post("/v1/calls", json={}),
        await user.put("/v1/calls"),
    ]
    assert [answer.status_code for answer in answers] == [200, 404, 401, 200, 403, 422, 405]
    for answer in answers:
        assert {name: answer.headers.get(name) for name in wanted} == wanted
        assert "content-encoding" not in answer.headers and "server" not in answer.headers


@pytest.mark.spec("T28")
async def test_files_are_served_without_a_token_and_only_those_that_are_there(home: Path, tmp_path: Path) -> None:
    from callgate.features.web.application import find_files

    static = tmp_path / "static"
    (static / "vendor").mkdir(parents=True)
    (static / "index.html").write_text("<p>page")
    (static / "app.js").write_text("export {}")
    (static / "vendor" / "x.css").write_text("p{}")
    (static / "secret.py").write_text("no")
    (static / ".hidden.js").write_text("no")
    async with serving(home, tmp_path / "ws", files=find_files(str(static))) as made:
        client = made.client(None).http
        page = await client.get("/")
        assert (page.status_code, page.text, page.headers["content-type"]) == (
            200,
            "<p>page",
            "text/html; charset=utf-8",
        )
        assert (await client.get("/", headers={"if-none-match": page.headers["etag"]})).status_code == 304
        assert (await client.get("/app.js")).headers["content-type"] == "text/javascript; charset=utf-8"
        assert (await client.get("/vendor/x.css")).headers["content-type"] == "text/css; charset=utf-8"
        assert "no-store" not in page.headers["cache-control"]
        assert (await client.post("/", json={})).status_code == 405
        for path in (
            "/secret.py",
            "/.hidden.js",
            "/index.html",
            "/vendor",
            "/vendor/",
            "/../access.py",
            "/%2e%2e/access.py",
        ):
            assert (await client.get(path)).status_code == 401
        (static / "app.js").unlink()
        assert (await client.get("/app.js")).status_code == 404


@pytest.mark.spec("T33")
@pytest.mark.parametrize(
    "text",
    [
        "0.0.0.0:80",
        "[::]:80",
        "192.168.1.5:80",
        "example.com:80",
        "[::ffff:127.0.0.1]:80",
        "127.1:80",
        "*:80",
        "[fe80::1]:80",
        "10.0.0.1:80",
        "localhost.:80",
    ],
)
def test_other_machines_are_let_in_only_on_purpose(text: str) -> None:
    with pytest.raises(BadAddress):
        read_address(text, allow_remote=False)
    assert not read_address(text, allow_remote=True).is_local


@pytest.mark.parametrize(
    "text",
    [
        "",
        "80",
        ":80",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:x",
        "127.0.0.1:65536",
        "127.0.0.1:-1",
        "::1:80",
        "[127.0.0.1:80",
        "127.0.0.1:٣",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadAddress):
        read_address(text, allow_remote=True)


@pytest.mark.parametrize("text", ["127.0.0.1:0", "127.9.9.9:80", "localhost:80", "[::1]:80", "LOCALHOST:80"])
def test_this_machine_is_always_fine(text: str) -> None:
    assert read_address(text, allow_remote=False).is_local


def test_a_taken_port_is_said() -> None:
    with bind(Address("127.0.0.1", 0)) as taken, pytest.raises(BadAddress):
        bind(Address("127.0.0.1", taken.getsockname()[1]))


@pytest.mark.spec("T26", "T33")
def test_an_address_that_was_opened_on_purpose_is_known_by_its_name_or_by_digits() -> None:
    named, any_ip = Names(Address("192.168.1.5", 80)), Names(Address("0.0.0.0", 8000))
    assert [each.url for each in (named, any_ip, Names(Address("::", 1)))] == [
        "http://192.168.1.5:80",
        "http://127.0.0.1:8000",
        "http://[::1]:1",
    ]
    assert [named.is_ours(each) for each in ("192.168.1.5", "192.168.1.5:80", "192.168.1.6", "evil.example")] == [
        True,
        True,
        False,
        False,
    ]
    assert [any_ip.is_ours(each) for each in ("10.0.0.7:8000", "[fe80::2]:8000", "evil.example:8000", "10.0.0.7")] == [
        True,
        True,
        False,
        False,
    ]


def test_every_class_of_error_has_a_status() -> None:
    assert set(STATUSES) == set(ToolErrorClass)


async def chunks(*some: bytes) -> AsyncIterator[bytes]:
    for each in some:
        yield each


async def test_a_body_has_a_limit_however_it_is_sent(instance: Instance) -> None:
    client = instance.client().http
    limit = 8 * 1024 * 1024
    fits = b'{"tool":"show","arguments":{"what":"%s"}}'
    room = limit - len(fits) + 2
    whole = fits % (b"x" * room)
    assert len(whole) == limit
    statuses: list[Any] = []
    for body in (whole, whole + b" ", whole + b"  "):
        statuses.append((await client.post("/v1/calls", content=body, headers=JSON)).status_code)
        half = len(body) // 2
        sent = await client.post("/v1/calls", content=chunks(body[:half], body[half:]), headers=JSON)
        statuses.append(sent.status_code)
    assert statuses == [200, 200, 413, 413, 413, 413]


async def test_a_body_that_means_nothing_is_refused(instance: Instance) -> None:
    bodies = [
        b"",
        b"[]",
        b"1",
        b"{",
        b'{"tool":"a","tool":"b"}',
        b'{"tool":1}',
        b'{"tool":"show","more":1}',
        b'\xff{"tool":"show"}',
        b'{"tool":"\\ud800"}',
        b"[" * 100_000,
        b'{"tool":"show","arguments":[]}',
        b'{"tool":"show","timeout_s":1e400}',
        b'{"tool":"show","timeout_s":-1}',
    ]
    client = instance.client().http
    for body in bodies:
        answer = await client.post("/v1/calls", content=body, headers=JSON)
        assert answer.status_code in (400, 422), body
        assert set(answer.json()["error"]) >= {"class", "message", "reason"}


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://Callgate.Example", "https://callgate.example"),
        ("https://callgate.example:443/", "https://callgate.example"),
        ("http://[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_the_name_of_a_load_balancer_is_ours_with_its_own_origin_alone(text: str, origin: str) -> None:
    names = Names(Address("0.0.0.0", 4177), public=read_public(text))
    host = origin.partition("://")[2]
    assert (names.public, names.page_url, names.is_ours(host)) == (origin, origin, True)
    assert names.is_own_origin(origin, host)
    for foreign in ("http://evil.example", f"ftp://{host}", f"{origin}.evil.example", "null", ""):
        assert not names.is_own_origin(foreign, host)
    assert not names.is_ours(f"x{host}") and not names.is_ours(f"{host}:1")
    assert not names.is_own_origin(origin, "10.0.0.1:4177")  # it is not how that host was reached


@pytest.mark.parametrize(
    "text", ["", "callgate.example", "ftp://a", "https://", "https://u@h", "https://h/p", "https://h?q", "http://h:x"]
)
def test_what_is_no_public_address_is_refused(text: str) -> None:
    with pytest.raises(BadAddress):
        read_public(text)
