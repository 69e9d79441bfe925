"""Logging in: PKCE, a page on loopback that knows its visitor, the person's choice, and the command."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from callgate.cli.main import main
from callgate.core.errors import ToolError
from callgate.sandbox.processes.command_marks import MARK
from callgate_catalogue.google import oauth
from callgate_catalogue.google.accounts import GoogleAccounts
from callgate_catalogue.settings import GoogleTable
from tests.catalogue.google.desk import ALL, MAIL, READING
from tests.google_server import SCOPE, GoogleServer
from tests.kernel.cli.running import callgate, not_within_a_call

SCOPES = (f"{SCOPE}gmail.readonly", f"{SCOPE}gmail.send")


@pytest.fixture(autouse=True)
def _not_within_a_call() -> None:
    not_within_a_call()


def places(google: GoogleServer) -> oauth.Endpoints:
    return oauth.Endpoints(
        auth=f"{google.url}/o/oauth2/v2/auth", token=f"{google.url}/token", revoke=f"{google.url}/revoke"
    )


def fetch(address: str) -> tuple[int, str]:
    """As a browser would, redirects and all."""
    try:
        with urllib.request.urlopen(address, timeout=60) as page:
            return page.status, page.read().decode()
    except HTTPError as error:
        with error:
            return error.code, ""


class Browser:
    """A person who follows the link at once."""

    def __init__(self) -> None:
        self.asked: dict[str, str] = {}
        self.visits: list[asyncio.Task[Any]] = []

    def show(self, address: str) -> None:
        self.asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        self.visits.append(asyncio.get_running_loop().create_task(self.visit(address)))

    async def visit(self, address: str) -> Any:
        return await asyncio.to_thread(fetch, address)


async def logged_in(google: GoogleServer, browser: Browser, **more: Any) -> oauth.Tokens:
    client = more.pop("client", oauth.OAuthClient(*google.client))
    try:
        return await oauth.log_in(places(google), client, SCOPES, browser.show, **more)
    finally:
        await asyncio.gather(*browser.visits)


async def test_a_person_logs_in(google: GoogleServer) -> None:
    browser = Browser()
    tokens = await logged_in(google, browser)
    assert (tokens.scopes, tokens.email) == (tuple(sorted(SCOPES)), "ann@example.org")
    assert tokens.access_token in google.tokens and tokens.refresh_token in google.refresh_tokens
    assert browser.visits[0].result()[0] == 200
    asked = {
        name: browser.asked[name]
        for name in ("code_challenge_method", "access_type", "prompt", "include_granted_scopes")
    }
    assert asked == {
        "code_challenge_method": "S256",
        "access_type": "offline",
        "prompt": "consent",
        "include_granted_scopes": "true",
    }
    assert urlsplit(browser.asked["redirect_uri"]).hostname == "127.0.0.1"
    assert not any(google.client[1] in str(value) for value in browser.asked.values())


async def test_each_login_has_a_state_and_a_challenge_of_its_own(google: GoogleServer) -> None:
    browsers = [Browser(), Browser()]
    for browser in browsers:
        await logged_in(google, browser)
    for name in ("state", "code_challenge"):
        first, second = (browser.asked[name] for browser in browsers)
        assert first != second and len(first) >= 32


async def test_a_visitor_who_does_not_know_the_state_is_nobody(google: GoogleServer) -> None:
    class Intruder(Browser):
        async def visit(self, address: str) -> Any:
            back = self.asked["redirect_uri"]
            tries = [
                f"{back}?{urlencode({'code': 'stolen', 'state': 'guess'})}",
                f"{back}?code=stolen",
                back,
                f"{back}other?{urlencode({'code': 'stolen', 'state': self.asked['state']})}",
            ]
            codes = [(await asyncio.to_thread(fetch, each))[0] for each in tries]
            return codes, await super().visit(address)

    browser = Intruder()
    tokens = await logged_in(google, browser)
    assert tokens.access_token in google.tokens
    assert browser.visits[0].result()[0] == [404] * 4


async def test_what_the_person_did_not_allow_is_not_there(google: GoogleServer) -> None:
    google.declined = {"gmail.send"}
    assert (await logged_in(google, Browser())).scopes == (f"{SCOPE}gmail.readonly",)


@pytest.mark.parametrize("case", ["refused", "nobody came", "wrong client", "server down"])
async def test_a_login_that_fails_says_why(case: str, google: GoogleServer) -> None:
    google.refuses = case == "refused"
    google.token_faults = [503] if case == "server down" else []
    more: dict[str, Any] = {}
    if case == "wrong client":
        more["client"] = oauth.OAuthClient(google.client[0], "wrong-secret-77")
    browser = Browser()
    if case == "nobody came":
        more["wait_s"] = 0.01
        browser.show = lambda address: None  # type: ignore[method-assign]
    with pytest.raises(ToolError) as caught:
        await logged_in(google, browser, **more)
    assert caught.value.reason == "google_login"
    assert "wrong-secret-77" not in str(caught.value)


@pytest.mark.parametrize("url", ["http://login.example/auth", "javascript:alert(1)", ""])
async def test_a_login_goes_over_tls_or_stays_here(url: str, google: GoogleServer) -> None:
    with pytest.raises(ToolError):
        await oauth.log_in(oauth.Endpoints(auth=url), oauth.OAuthClient("c"), SCOPES, lambda address: None)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"installed": 1}', '{"installed": {}}', '{"other": {"client_id": "c"}}']
)
def test_a_file_that_is_no_client_file_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="client file"):
        oauth.read_client(text.encode())


# The command.


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Commands:
    """Runs `callgate auth google`, as a person with a browser at hand."""

    def __init__(self, captured: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self._captured = captured
        patch.setattr("webbrowser.open", self._open)

    def _open(self, address: str) -> bool:
        threading.Thread(target=fetch, args=[address]).start()
        return True

    async def __call__(self, *words: str) -> Ran:
        self._captured.readouterr()
        code = await asyncio.to_thread(main, ["auth", "google", *words])
        return Ran(code, *self._captured.readouterr())


@pytest.fixture
def auth(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, ws: Path) -> Commands:
    monkeypatch.chdir(ws)
    return Commands(capsys, monkeypatch)


@pytest.fixture
def ws(google: GoogleServer, home: Path, tmp_path: Path) -> Path:
    workspace = tmp_path / "ws"
    workspace.mkdir()
    (home / "settings.toml").write_text(google.settings)
    (workspace / "client.json").write_text(google.client_file)
    return workspace


async def command(*words: str, cwd: Path) -> Any:
    return await asyncio.to_thread(lambda: callgate(*words, cwd=cwd))


async def test_from_a_client_file_to_a_list_of_mails_and_out_again(
    google: GoogleServer, auth: Commands, ws: Path, home: Path
) -> None:
    before = await command("call", "gmail_list", "--json", cwd=ws)
    assert (before.code, before.json["error"]["class"]) == (1, "not_found")
    assert "callgate auth google login" in before.json["error"]["message"]
    came = await auth("login", "--client-file", "client.json", "--json")
    assert came.json == {"account": "default", "email": "ann@example.org", "scopes": sorted(set(ALL)), "missing": []}
    listed = await command("call", "gmail_list", "--json", cwd=ws)
    assert [each["id"] for each in listed.json["value"]] == [MAIL]
    status = await auth("status", "--json")
    assert status.json == [
        {
            "account": "default",
            "email": "ann@example.org",
            "usual": True,
            "read_only": False,
            "scopes": sorted(set(ALL)),
        }
    ]
    kept = GoogleAccounts(str(home), GoogleTable()).known().accounts["default"]
    left = await auth("logout", "--json")
    assert left.json == {"account": "default", "forgotten": True, "revoked": True}
    assert google.refresh_tokens == {}
    assert (await auth("status", "--json")).json == []
    said = f"{came} {listed} {status} {left}"
    assert [each for each in (kept.access_token, kept.refresh_token, kept.client_secret) if each in said] == []


async def test_more_is_allowed_step_by_step_with_the_client_of_the_first_login(
    google: GoogleServer, auth: Commands
) -> None:
    first = await auth("login", "gmail", "--read-only", "--client-file", "client.json", "--json")
    assert first.json["scopes"] == ["gmail.readonly"]
    google.declined = {"tasks"}
    second = await auth("login", "--scope", "gmail.send", "--scope", "tasks", "--json")
    assert (second.json["scopes"], second.json["missing"]) == (["gmail.readonly", "gmail.send"], ["tasks"])
    assert [each["read_only"] for each in (await auth("status", "--json")).json] == [False]
    other = await auth("login", "tasks", "--account", "other", "--json")
    assert (other.json["account"], other.json["scopes"]) == ("other", [])


async def test_a_second_account_has_its_own_name(google: GoogleServer, auth: Commands, home: Path) -> None:
    (home / "settings.toml").write_text(google.settings + 'client_file = "client.json"\n')
    (home / "client.json").write_text(google.client_file)
    for words in ((), ("--account", "work", "--read-only")):
        came = await auth("login", *words)
        assert came.code == 0, came.err
    listed = (await auth("status", "--json")).json
    assert [(each["account"], each["usual"], each["read_only"]) for each in listed] == [
        ("default", True, False),
        ("work", False, True),
    ]
    assert listed[1]["scopes"] == sorted(set(READING))
    shown = (await auth("status")).out
    assert "default" in shown and "work" in shown


async def test_who_cannot_be_logged_out_at_google_is_logged_out_here(
    google: GoogleServer, auth: Commands, home: Path
) -> None:
    await auth("login", "--client-file", "client.json")
    google.refresh_tokens.clear()
    assert (await auth("logout", "--json")).json == {"account": "default", "forgotten": True, "revoked": False}
    assert "refresh_token" not in (home / "google.json").read_text()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], 2),
        (["nonsense"], 2),
        (["status", "more"], 2),
        (["logout"], 1),
        (["login"], 2),
        (["login", "mail"], 2),
        (["login", "--client-file", "missing.json"], 2),
        (["login", "--account", "../x"], 2),
        (["login", "--port", "x"], 2),
        (["login", "--client-file", "client.json", "--port", "99999"], 1),
    ],
)
async def test_what_the_command_does_not_take_is_said_in_a_line(words: list[str], code: int, auth: Commands) -> None:
    ran = await auth(*words)
    assert ran.code == code
    assert "Traceback" not in ran.err and "internal error" not in ran.err and ran.err.startswith("error (")


async def test_a_tool_cannot_log_in(auth: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, "tu_1")
    for words in (["login"], ["logout"]):
        assert (await auth(*words)).code == 3
