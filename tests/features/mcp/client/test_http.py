"""MCP servers by HTTP: calls, logging in, and where a stranger may not send us."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import secrets
import socket
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpcore2
import httpx2
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from callgate.config.home import Home
from callgate.config.load import load_user
from callgate.config.secret_opening import TokenFile
from callgate.core.calls import ToolCall
from callgate.core.errors import ToolError
from callgate.dispatch.commands.sandboxes import OFF, Sandbox
from callgate.features.mcp.client.http import _GuardedBackend, transport
from callgate.features.mcp.client.servers import ServerLocation
from callgate.features.mcp.wiring import make_servers
from callgate.instance.wiring.builder import register_known
from callgate.instance.wiring.runtime import Wired
from callgate.sources.pins import Pinned
from tests.features.mcp.client.labs import refusal

TOOL = {"name": "add", "description": "Adds.", "inputSchema": {"type": "object"}}


class Web:
    """An MCP server and, beside it, who says who may use it."""

    def __init__(self) -> None:
        self.protected = False
        self.valid = "none"
        self.lives_s = 3600
        self.challenge = ""
        self.asked: list[str] = []
        self.shown: list[str | None] = []
        """What requests said of who they are from."""
        self.basic: list[str] = []
        """The same where tokens are given out."""
        self.answers: dict[str, Callable[[], Response]] = {}
        self.metadata_at: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def application(self) -> Starlette:
        well = "/.well-known"
        return Starlette(
            routes=[
                Route("/mcp", self.mcp, methods=["POST", "GET", "DELETE"]),
                Route("/other", self.mcp, methods=["POST", "GET", "DELETE"]),
                Route(f"{well}/oauth-protected-resource/mcp", self.resource),
                Route(f"{well}/oauth-authorization-server", self.server),
                Route("/register", self.register, methods=["POST"]),
                Route("/authorize", self.authorize),
                Route("/elsewhere/token", self.token, methods=["POST"]),
            ]
        )

    async def mcp(self, request: Request) -> Response:
        if request.method != "POST":
            return Response(status_code=405)
        self.shown.append(request.headers.get("authorization"))
        if self.protected and request.headers.get("authorization") != f"Bearer {self.valid}":
            at = self.metadata_at or f"http://127.0.0.1:{self.port}/.well-known/oauth-protected-resource/mcp"
            return Response(status_code=401, headers={"WWW-Authenticate": f'Bearer resource_metadata="{at}"'})
        said = await request.json()
        method = said["method"]
        self.asked.append(method)
        if method in self.answers:
            return self.answers[method]()
        results: dict[str, Any] = {
            "server/discover": {
                "supportedVersions": ["2026-07-28"],
                "capabilities": {"tools": {}},
                "resultType": "complete",
                "ttlMs": 0,
                "cacheScope": "public",
            },
            "tools/list": {"tools": [TOOL], "resultType": "complete", "ttlMs": 0, "cacheScope": "public"},
            "tools/call": {"content": [{"type": "text", "text": "3"}], "resultType": "complete"},
        }
        return JSONResponse({"jsonrpc": "2.0", "id": said["id"], "result": results[method]})

    async def resource(self, request: Request) -> Response:
        return JSONResponse({"resource": self.url, "authorization_servers": [f"http://127.0.0.1:{self.port}"]})

    async def server(self, request: Request) -> Response:
        base = f"http://127.0.0.1:{self.port}"
        return JSONResponse(
            {
                "issuer": base,
                "authorization_endpoint": f"{base}/authorize",
                "token_endpoint": f"{base}/elsewhere/token",
                "registration_endpoint": f"{base}/register",
                "response_types_supported": ["code"],
                "code_challenge_methods_supported": ["S256"],
            }
        )

    async def register(self, request: Request) -> Response:
        said = await request.json()
        return JSONResponse({**said, "client_id": "client-1"}, status_code=201)

    async def authorize(self, request: Request) -> Response:
        said = request.query_params
        self.challenge = said["code_challenge"]
        back = urlencode({"code": "code-1", "state": said["state"]})
        return RedirectResponse(f"{said['redirect_uri']}?{back}")

    async def token(self, request: Request) -> Response:
        said = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        if said["grant_type"] == "authorization_code":
            digest = hashlib.sha256(said["code_verifier"].encode()).digest()
            assert base64.urlsafe_b64encode(digest).decode().rstrip("=") == self.challenge
        self.asked.append(said["grant_type"])
        self.basic += request.headers.getlist("authorization")
        self.valid = secrets.token_hex(8)
        return JSONResponse(
            {
                "access_token": self.valid,
                "token_type": "Bearer",
                "expires_in": self.lives_s,
                "refresh_token": "again",
            }
        )


@pytest.fixture
async def web() -> AsyncIterator[Web]:
    web = Web()
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    web.port = listening.getsockname()[1]  # type: ignore[attr-defined]
    server = uvicorn.Server(uvicorn.Config(web.application(), log_level="critical", lifespan="off"))
    serving = asyncio.create_task(server.serve([listening]))
    yield web
    server.should_exit = server.force_exit = True
    await serving


class Desk:
    """A home with that server, and somebody who may or may not be there to log in."""

    def __init__(self, base: Path, web: Web, more: str = "") -> None:
        self.home, self.ws = Home(str(base / "h")), base / "ws"
        self.home.make()
        self.ws.mkdir()
        text = f'sandbox = "off"\n[mcp.web]\nurl = "{web.url}"\neffect = "read"\n{more}'
        Path(self.home.settings).write_text(text)

    async def ask(self, login: Callable[[str], None] | None = None) -> Pinned:
        sandbox = Sandbox(OFF)
        servers = make_servers(self.home, load_user(self.home)[0], sandbox, str(self.ws), login=login)
        try:
            said = await servers.ask("web", ServerLocation(str(self.ws)))
            servers.pin("web", said)
            return said
        finally:
            await servers.close()
            sandbox.close()

    @asynccontextmanager
    async def runtime(self) -> AsyncIterator[Callable[[], Any]]:
        wired = Wired(self.home)
        register_known(wired, str(self.ws))
        session = wired.session(str(self.ws))
        try:
            yield lambda: wired.runtime.calls.run(
                ToolCall(tool="mcp.web/add", arguments={}, session=session, timeout_s=20)
            )
        finally:
            await wired.close()

    @property
    def tokens(self) -> Path:
        return Path(self.home.path, "mcp", "web.tokens")


class Browser:
    """A person who allows whatever a page asks."""

    def __init__(self) -> None:
        self.visits: list[asyncio.Task[Any]] = []

    def __call__(self, url: str) -> None:
        self.visits.append(asyncio.create_task(self._visit(url)))

    async def _visit(self, url: str) -> None:
        async with httpx2.AsyncClient() as client:
            back = (await client.get(url)).headers["location"]
            stranger = back.replace("state=", "state=x")
            assert (await client.get(stranger)).status_code == 404
            assert (await client.get(back)).status_code == 200


@pytest.fixture
def desk(tmp_path: Path, web: Web) -> Desk:
    return Desk(tmp_path, web)


async def test_a_call_goes_to_an_address_like_to_a_process(desk: Desk, web: Web) -> None:
    assert (await desk.ask()).schemas == [TOOL]
    async with desk.runtime() as call:
        assert (await call()).text == "3"
    assert web.asked[-1] == "tools/call"


async def test_a_header_is_filled_in_from_the_environment(
    tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.protected, web.valid = True, "token of mine"
    desk = Desk(tmp_path, web, 'headers = { Authorization = "Bearer ${WEB_TOKEN}" }\n')
    with pytest.raises(ToolError):
        await desk.ask()
    monkeypatch.setenv("WEB_TOKEN", "token of mine")
    assert (await desk.ask()).schemas == [TOOL]


async def test_a_person_logs_in_once_and_calls_use_and_renew_what_they_were_given(desk: Desk, web: Web) -> None:
    web.protected, web.lives_s = True, 1  # it is renewed well before it ends
    browser = Browser()
    assert (await desk.ask(browser)).schemas == [TOOL]
    await asyncio.gather(*browser.visits)
    assert stat.S_IMODE(desk.tokens.stat().st_mode) == 0o600
    web.lives_s = 3600
    async with desk.runtime() as call:
        web.valid = "expired"
        assert (await call()).text == "3"
    assert "refresh_token" in web.asked
    assert len(browser.visits) == 1


async def test_where_nobody_is_there_a_call_says_which_command_logs_in(desk: Desk, web: Web) -> None:
    await desk.ask()
    web.protected = True
    async with desk.runtime() as call:
        result = await call()
        assert refusal(result) == ("host_unavailable", "mcp_not_started")
        assert "callgate mcp login web" in result.error.message
    handlers = logging.getLogger("mcp.client").handlers  # without any, it would write to stderr
    assert [type(each) for each in handlers] == [logging.NullHandler]


async def test_tokens_that_others_could_read_are_not_used(desk: Desk, web: Web) -> None:
    await desk.ask()
    desk.tokens.parent.mkdir(exist_ok=True)
    desk.tokens.write_text(json.dumps({"tokens": {"access_token": "x"}}))
    desk.tokens.chmod(0o644)
    with pytest.raises(ToolError):
        TokenFile(str(desk.tokens)).read()
    async with desk.runtime() as call:
        assert refusal(await call()) == ("host_unavailable", "mcp_not_started")


async def test_what_one_address_gave_is_not_shown_to_another(desk: Desk, web: Web) -> None:
    web.protected = True
    browser = Browser()
    await desk.ask(browser)
    settings = Path(desk.home.settings)
    settings.write_text(settings.read_text().replace("/mcp", "/other"))
    shown = len(web.shown)
    with pytest.raises(ToolError):
        await desk.ask()
    assert (web.shown[0], web.shown[shown:]) == (None, [None])


async def test_a_secret_of_the_settings_is_for_whom_it_was_first_shown_alone(
    tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEB_SECRET", "of mine")
    more = 'oauth = { client_id = "me", client_secret_env = "WEB_SECRET" }\n'
    desk = Desk(tmp_path, web, more)
    web.protected = True
    await desk.ask(Browser())
    assert web.basic == ["Basic " + base64.b64encode(b"me:of%20mine").decode()]
    kept = json.loads(desk.tokens.read_text())
    del kept["tokens"], kept["metadata"]
    desk.tokens.write_text(json.dumps({**kept, "issuer": "https://elsewhere.example/"}))
    with pytest.raises(ToolError):
        await desk.ask(Browser())
    assert len(web.basic) == 1


# --- where a stranger may not send us ------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "10.0.0.1",
        "192.168.1.1",
        "127.0.0.1",
        "::1",
        "0.0.0.0",
        "localhost",
        "::ffff:169.254.169.254",
        "fd00::1",
    ],
)
async def test_what_a_server_names_beside_itself_is_no_address_of_our_own_network(host: str) -> None:
    with pytest.raises(httpcore2.ConnectError):
        await _GuardedBackend(("mcp.example.com", 443)).connect_tcp(host, 80, timeout=1)


async def test_a_login_at_the_metadata_service_is_refused(desk: Desk, web: Web) -> None:
    web.protected, web.metadata_at = True, "http://169.254.169.254/latest"
    with pytest.raises(ToolError):
        await desk.ask(Browser())


async def test_a_redirect_to_elsewhere_is_not_followed(desk: Desk, web: Web) -> None:
    await desk.ask()
    web.answers["tools/call"] = lambda: RedirectResponse("http://127.0.0.1:9/", status_code=307)
    async with desk.runtime() as call:
        assert refusal(await call()) == ("execution_error", "mcp_error")


async def test_an_answer_that_is_too_long_or_packed_is_not_taken(desk: Desk, web: Web) -> None:
    await desk.ask()
    long = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"x": "x" * 9_000_000}})
    answers = (
        lambda: Response(long, media_type="application/json"),
        lambda: Response(b"x", media_type="application/json", headers={"content-encoding": "gzip"}),
    )
    for answer in answers:
        web.answers["tools/call"] = answer
        async with desk.runtime() as call:
            assert refusal(await call()) == ("host_unavailable", "mcp_died")


async def test_the_transport_ends_what_it_began(web: Web) -> None:
    async with transport(web.url, {}) as (receive, send):
        assert receive is not None and send is not None
    assert urlsplit(web.url).scheme == "http"


@pytest.mark.parametrize("spelling", ["127.0.0.1", "localhost"])
async def test_a_server_on_this_machine_leads_to_no_other_port_of_it(spelling: str) -> None:
    seen: list[str] = []

    async def greet(name: str, writer: asyncio.StreamWriter) -> None:
        seen.append(name)
        writer.close()

    own = await asyncio.start_server(lambda _, writer: greet("own", writer), "127.0.0.1", 0)
    other = await asyncio.start_server(lambda _, writer: greet("other", writer), "127.0.0.1", 0)
    ports = [each.sockets[0].getsockname()[1] for each in (own, other)]
    ways = _GuardedBackend(("127.0.0.1", ports[0]))
    stream = await ways.connect_tcp(spelling, ports[0], 20.0)
    assert await stream.read(1, 20.0) == b""
    await stream.aclose()
    with pytest.raises(httpcore2.ConnectError):
        await ways.connect_tcp(spelling, ports[1], 20.0)
    assert seen == ["own"]
    allowed = _GuardedBackend(("127.0.0.1", ports[0]), (f"{spelling}:{ports[1]}",))
    stream = await allowed.connect_tcp(spelling, ports[1], 20.0)
    assert await stream.read(1, 20.0) == b""
    await stream.aclose()
    for each in (own, other):
        each.close()


async def test_a_name_that_was_public_is_not_followed_to_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [["93.184.216.34"]]

    async def look_up(host: str, port: int) -> list[str]:
        return answers[0]

    async def connect(self: _GuardedBackend, addresses: list[str], *how: Any) -> Any:
        return addresses

    monkeypatch.setattr("callgate.features.mcp.client.http._look_up", look_up)
    monkeypatch.setattr(_GuardedBackend, "_connect", connect)
    ways = _GuardedBackend(("mcp.example", 443))
    assert await ways.connect_tcp("mcp.example", 443) == ["93.184.216.34"]
    for address in ("127.0.0.1", "10.0.0.1", "169.254.169.254"):
        answers[0] = [address]
        for host, port in (("mcp.example", 443), ("login.example", 443)):
            with pytest.raises(httpcore2.ConnectError):
                await ways.connect_tcp(host, port)
