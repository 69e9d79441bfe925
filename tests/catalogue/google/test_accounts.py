"""Accounts: who is logged in, what is kept and for whom, and how tokens stay good."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from callgate.config.home import Home
from callgate.core.errors import ToolError
from callgate.instance.wiring.runtime import Wired
from callgate_catalogue.google.accounts import GoogleAccounts, Granted, check_name
from callgate_catalogue.google.catalogue import CATALOGUE
from callgate_catalogue.google.oauth import OAuthClient, Tokens
from callgate_catalogue.settings import GoogleTable
from tests.catalogue.google.desk import MAIL, Desk

TOKENS = Tokens(access_token="ya29.a", refresh_token="1//r", expires_at=0.0, scopes=("s",))


async def test_tokens_are_for_their_owner_alone(desk: Desk) -> None:
    path = desk.home / "google.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    await desk.accounts.renewed(Granted("default", desk.accounts.known().accounts["default"].access_token))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    with pytest.raises(ToolError):
        desk.accounts.known()
    assert desk.accounts.why_not(writes=False) is not None
    assert await desk.reason("gmail_read", messageId=MAIL) == "google_login"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"accounts": 5}', '{"accounts": {"a": {}}}', "\0"])
def test_a_file_that_was_broken_says_so_and_offers_nothing(text: str, home: Path) -> None:
    path = home / "google.json"
    path.write_text(text)
    path.chmod(0o600)
    assert GoogleAccounts(str(home), GoogleTable()).why_not(writes=False) is not None


def test_the_first_account_is_the_usual_one_until_it_goes(home: Path) -> None:
    accounts = GoogleAccounts(str(home), GoogleTable())
    assert accounts.usual() is None
    for name in ("one", "two"):
        accounts.put(name, TOKENS, OAuthClient("c"), read_only=False)
    assert accounts.usual() == "one"
    assert GoogleAccounts(str(home), GoogleTable(account="two")).usual() == "two"
    accounts.forget("one")
    assert (accounts.usual(), list(accounts.known().accounts)) == ("two", ["two"])
    accounts.forget("two")
    assert accounts.known().accounts == {}


def test_what_another_process_wrote_is_seen(home: Path) -> None:
    here, there = (GoogleAccounts(str(home), GoogleTable()) for _ in range(2))
    assert here.why_not(writes=False) is not None
    there.put("one", TOKENS, OAuthClient("c"), read_only=True)
    assert here.why_not(writes=False) is None
    assert here.why_not(writes=True) is not None
    there.put("two", TOKENS, OAuthClient("c"), read_only=False)
    assert here.why_not(writes=True) is None


@pytest.mark.parametrize("name", ["", "A", "../x", "a b", "-x", "a" * 65])
def test_an_account_has_a_plain_name(name: str) -> None:
    with pytest.raises(ValueError, match="not a valid account name"):
        check_name(name)


async def test_a_new_token_is_kept_for_everyone(desk: Desk) -> None:
    desk.log_in(expires_in=30)
    await desk.value("gmail_read", messageId=MAIL)
    other = GoogleAccounts(str(desk.home), desk.table)
    kept = other.known().accounts["default"]
    assert kept.expires_at > time.time() + 3000
    granted = await other.token(None, ["gmail.readonly"], writes=False)
    assert (granted.token, desk.google.refreshes) == (kept.access_token, 1)


async def test_a_token_that_another_process_renewed_is_used(desk: Desk) -> None:
    old = desk.accounts.known().accounts["default"].access_token
    new = desk.log_in().access_token
    assert (await desk.accounts.renewed(Granted("default", old))).token == new
    assert desk.google.refreshes == 0


async def test_who_logs_out_while_a_token_is_renewed_stays_logged_out(desk: Desk) -> None:
    desk.log_in(expires_in=-1)
    desk.google.token_faults = [503]
    renewing = asyncio.create_task(desk.accounts.token(None, ["gmail.readonly"], writes=False))
    await asyncio.sleep(0)
    desk.accounts.forget("default")
    await asyncio.wait_for(renewing, 60)
    assert desk.accounts.known().accounts == {}


@pytest.mark.parametrize("faults", [[503], [500, 429]])
async def test_a_login_server_that_is_busy_is_asked_again(faults: list[int], desk: Desk) -> None:
    desk.log_in(expires_in=-1)
    desk.google.token_faults = faults
    await desk.value("gmail_read", messageId=MAIL)


async def test_a_login_server_that_stays_broken_is_said_so(desk: Desk) -> None:
    desk.log_in(expires_in=-1)
    desk.google.token_faults = [503] * 9
    assert await desk.reason("gmail_read", messageId=MAIL) == "google_login"


@pytest.mark.spec("S3-54")
def test_where_nobody_is_logged_in_no_session_is_offered_the_tools(home: Path, tmp_path: Path) -> None:
    wired = Wired(Home(str(home)), audit=False)
    wired.register_built_in()
    session = wired.session(str(tmp_path))
    ours = {spec.definition.name for spec in CATALOGUE}
    offered = {tool.name for tool in wired.runtime.tools.listed(session)}
    reasons = {tool.name: why for tool, why in wired.runtime.tools.with_reasons(session)}
    assert offered & ours == set()
    assert all("callgate auth google login" in str(reasons[name]) for name in ours)
    accounts = GoogleAccounts(str(home), GoogleTable())
    accounts.put("default", TOKENS, OAuthClient("c"), read_only=True)
    reading = {tool.name for tool in wired.runtime.tools.listed(session)} & ours
    assert reading == {spec.definition.name for spec in CATALOGUE if not spec.writes}
    accounts.put("default", TOKENS, OAuthClient("c"), read_only=False)
    assert {tool.name for tool in wired.runtime.tools.listed(session)} & ours == ours
    wired.sandbox.close()


def test_nothing_that_makes_requests_is_loaded_before_a_call() -> None:
    code = (
        "import sys, callgate.instance.wiring.runtime as w; from callgate.config.home import Home\n"
        "wired = w.Wired(Home(sys.argv[1]), audit=False); wired.register_built_in()\n"
        "heavy = ('httpx2', 'anyio', 'zoneinfo', 'mimetypes', 'csv')\n"
        "ours = 'callgate_catalogue.google.'\n"
        "def loaded(): return [m for m in sys.modules if m.split('.')[0] in heavy or m.startswith(ours)]\n"
        "registry = wired.registry; registry.find('read_file'); registry.find('nosuch')\n"
        "assert loaded() == [], loaded()\n"
        "assert registry.find('gmail_list') is not None\n"
        "print(*sorted(loaded()))\n"
    )
    home = os.environ["CALLGATE_HOME"]
    ran = subprocess.run([sys.executable, "-c", code, home], capture_output=True, text=True, timeout=60)
    assert ran.stdout.split() == [f"callgate_catalogue.google.{name}" for name in ("accounts", "catalogue", "pack")], (
        ran.stderr
    )
