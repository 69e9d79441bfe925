"""Signing in and out: whether there is a model that can be used, and no key that stays behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from callgate.config.home import Home
from callgate.core.models import Key
from callgate.features.chat.models.make import store_key, stored_keys
from tests.features.editor.clients import connected

AUTH_REQUIRED, INTERNAL_ERROR = -32000, -32603
SETTINGS = 'model = "main"\n[models.main]\nkind = "anthropic"\nmodel = "any"\n'


async def test_who_has_signed_out_has_to_sign_in_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    home = Home(str(tmp_path / "home"))
    async with connected(tmp_path / "home", settings=SETTINGS, model="main") as client:
        store_key(home, "main", Key("sk-test"))
        session = await client.new(tmp_path)
        assert await client.ask("authenticate", methodId="settings") == {}
        assert await client.ask("logout") == {}
        assert stored_keys(home) == {}
        assert await client.code(client.start("authenticate", methodId="settings")[1]) == AUTH_REQUIRED
        assert await client.code(client.start_prompt(session, "hi")[1]) == AUTH_REQUIRED


async def test_who_has_no_model_can_sign_out_all_the_same(tmp_path: Path) -> None:
    async with connected(tmp_path / "home", model="no-such-model") as client:
        assert await client.ask("logout") == {}


async def test_who_has_a_key_that_is_refused_has_to_sign_in_and_can_go_on(tmp_path: Path) -> None:
    async with connected(tmp_path / "home", script='[[replies]]\nerror = "key"\n') as client:
        session = await client.new(tmp_path)
        assert await client.code(client.start_prompt(session, "hi")[1]) == AUTH_REQUIRED
        (tmp_path / "script.toml").write_text('[[replies]]\ntext = "Fine."\n')
        assert await client.ask("authenticate", methodId="settings") == {}
        assert await client.prompt(session, "again") == "end_turn"


async def test_any_other_failure_of_a_model_is_no_reason_to_sign_in(tmp_path: Path) -> None:
    async with connected(tmp_path / "home", script='[[replies]]\nerror = "malformed"\n') as client:
        session = await client.new(tmp_path)
        assert await client.code(client.start_prompt(session, "hi")[1]) == INTERNAL_ERROR
