"""Two servers with one login: a token that both renew at once is renewed once, and none is lost."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import parse_qs

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from callgate.config import secret_opening
from callgate.config.sealing import is_sealed
from callgate.config.secret_entries import SharedEntries
from callgate.storage.sqlite.store import SqliteStore
from callgate_catalogue.google.accounts import GoogleAccounts
from callgate_catalogue.google.oauth import OAuthClient
from tests.catalogue.google.desk import Desk as GoogleDesk
from tests.features.mcp.client.test_http import Browser, Desk, Web
from tests.google_server import GoogleServer
from tests.kernel.config.secrets.desk import ONE, SETTINGS, TOKENS, VARIABLE


class OnceOnly(Web):
    """A refresh token is good once; who shows an old one has stolen it, and nobody is let in."""

    def __init__(self) -> None:
        super().__init__()
        self.good: str | None = None
        self.renewals = 0
        self.stolen = False

    async def token(self, request: Request) -> Response:
        form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
        if form["grant_type"] == "refresh_token":
            self.renewals += 1
            if self.stolen or form["refresh_token"] != self.good:
                self.stolen, self.valid = True, "nobody"
                return JSONResponse({"error": "invalid_grant"}, status_code=400)
            await asyncio.sleep(0)  # the other one may come in between
        self.good, self.valid = secrets.token_hex(8), secrets.token_hex(8)
        return JSONResponse(
            {
                "access_token": self.valid,
                "token_type": "Bearer",
                "expires_in": self.lives_s,
                "refresh_token": self.good,
            }
        )


@pytest.fixture
async def web() -> AsyncIterator[OnceOnly]:
    web = OnceOnly()
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    web.port = listening.getsockname()[1]  # type: ignore[attr-defined]
    server = uvicorn.Server(uvicorn.Config(web.application(), log_level="critical", lifespan="off"))
    serving = asyncio.create_task(server.serve([listening]))
    yield web
    server.should_exit = server.force_exit = True
    await serving


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every home has its secrets in one store, as servers on several machines do."""
    open_store = partial(SqliteStore.open, str(tmp_path / "shared"))
    opened: dict[str, SharedEntries] = {}

    def store(home: str, open_store: object) -> SharedEntries:
        return opened.setdefault(home, SharedEntries(partial(SqliteStore.open, str(tmp_path / "shared"))))

    monkeypatch.setattr(secret_opening, "shared_store", lambda home, settings: open_store)
    monkeypatch.setattr(secret_opening, "_store", store)
    monkeypatch.setenv(VARIABLE, ONE)
    yield
    for each in opened.values():
        each.close()


def desks(tmp_path: Path, web: Web) -> tuple[Desk, Desk]:
    for name in "ab":
        (tmp_path / name).mkdir()
    return Desk(tmp_path / "a", web, SETTINGS), Desk(tmp_path / "b", web, SETTINGS)


@pytest.mark.parametrize("rounds", [3])
async def test_a_login_that_two_servers_renew_at_once_is_renewed_once(
    rounds: int, shared: None, tmp_path: Path, web: OnceOnly
) -> None:
    here, there = desks(tmp_path, web)
    await there.ask()
    web.protected, web.lives_s = True, 1
    await here.ask(Browser())
    async with here.runtime() as one, there.runtime() as other:
        for _ in range(rounds):
            before = web.renewals
            web.lives_s = 3600
            results = await asyncio.gather(one(), other(), one(), other())
            assert [result.text for result in results] == ["3"] * 4
            assert (web.renewals - before, web.stolen) == (1, False)
            age(here)
    assert not here.tokens.exists() and not there.tokens.exists()


def age(desk: Desk) -> None:
    """Have the token run out for everyone."""
    secrets, name = secret_opening.secrets_beside(str(desk.tokens), desk.home.path)

    def change(text: str | None) -> str:
        return json.dumps({**json.loads(text or ""), "expires_at": 1.0})

    secrets.update(name, change)


async def test_processes_of_one_home_use_what_another_has_renewed(
    tmp_path: Path, web: OnceOnly, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, ONE)
    desk = Desk(tmp_path, web, SETTINGS)
    web.protected, web.lives_s = True, 1
    await desk.ask(Browser())
    assert is_sealed(desk.tokens.read_text())
    async with desk.runtime() as one, desk.runtime() as other:
        web.lives_s = 3600
        for _ in range(3):
            before = web.renewals
            assert ((await one()).text, (await other()).text) == ("3", "3")
            assert (web.renewals - before, web.stolen) == (1, False)
            age(desk)


async def test_accounts_that_two_servers_change_at_once_are_all_kept(shared: None, tmp_path: Path) -> None:
    async with GoogleServer() as google:
        homes = [tmp_path / name for name in "ab"]
        for home in homes:
            home.mkdir(mode=0o700)
            (home / "settings.toml").write_text(SETTINGS)
        (tmp_path / "ws").mkdir()
        desk = GoogleDesk(google, homes[0], tmp_path / "ws")
        desk.log_in(expires_in=-1)
        other = GoogleAccounts(str(homes[1]), desk.table)
        google.token_faults = [503]
        renewing = asyncio.create_task(desk.accounts.token(None, ["gmail.readonly"], writes=False))
        names = [f"n{number}" for number in range(6)]
        await asyncio.gather(
            *(asyncio.to_thread(other.put, name, TOKENS, OAuthClient("c"), read_only=False) for name in names)
        )
        granted = await asyncio.wait_for(renewing, 60)
        accounts = GoogleAccounts(str(homes[0]), desk.table).known().accounts
        assert sorted(accounts) == ["default", *names]
        assert accounts["default"].access_token == granted.token
        assert accounts["default"].expires_at > time.time()
        await desk.close()
