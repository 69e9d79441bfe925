"""A gate with the hosts of the settings: their tools, and the tags that decide who sees them."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from callgate import Answer, Gate, Outcome
from callgate.core.errors import ToolErrorClass
from callgate.core.sessions import Mode
from tests.models_server import Asks, ModelServer, Says

HOST = Path(__file__).parents[1] / "sources/hosts/plain_host.py"
NEEDS_VISION = {"required_tags": ["vision"]}


def settings(hosts: Mapping[str, Any], first: str = "", last: str = "") -> str:
    tables = [
        f"[hosts.{name}]\ncommand = {json.dumps([sys.executable, '-I', str(HOST)])}\n"
        f'effect = "none"\n[hosts.{name}.set_env]\nPREFIX = "{name}_"\n'
        f"[hosts.{name}.config.optional]\n"
        + "".join(f"{key} = {json.dumps(value)}\n" for key, value in optional.items())
        for name, optional in hosts.items()
    ]
    return "\n".join(['sandbox = "off"', first, *tables, last])


@asynccontextmanager
async def gate_at(tmp_path: Path, written: str, **more: Any) -> AsyncIterator[Gate]:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "settings.toml").write_text(written)
    async with Gate(tmp_path, [], home=home, sources="settings", mode="write", **more) as gate:
        yield gate


def names(gate: Gate) -> set[str]:
    return {each["name"] for each in gate.definitions("anthropic")}


async def test_a_gate_has_the_hosts_of_the_settings_if_it_is_asked_for_them(tmp_path: Path) -> None:
    async with gate_at(tmp_path, settings({"plain": {}})) as gate:
        assert (await gate.call("plain_echo", {"text": "hi"})).value == "hi"
        assert [each for each in gate.news if "plain_echo" in each]
    async with Gate(tmp_path, [], home=tmp_path / "home") as gate:
        result = await gate.call("plain_echo", {"text": "hi"})
        assert result.error is not None and result.error.error_class is ToolErrorClass.NOT_FOUND


async def test_a_resumed_session_has_them_in_its_own_workspace(tmp_path: Path) -> None:
    (workspace := tmp_path / "work").mkdir()
    home = tmp_path / "home"
    async with gate_at(tmp_path, settings({"plain": {}})):
        pass
    async with Gate(workspace, [], home=home, sources="settings", mode="write") as first:
        assert (await first.call("plain_echo", {"text": "hi"})).ok
        await first.say("kept")
    async with Gate(tools=[], home=home, sources="settings", session=first.session.id) as second:
        assert (await second.call("plain_cwd", {})).value == str(workspace)


def test_an_unknown_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="sources"):
        Gate(tmp_path, [], home=tmp_path / "home", sources="all")  # type: ignore[arg-type]


async def test_a_preview_is_of_the_state_that_the_call_will_have(tmp_path: Path) -> None:
    previews: list[str | None] = []

    async def yes(question: Any) -> Answer:
        previews.append(question.preview)
        return Answer(decision=Outcome.ALLOW)

    written = settings({"plain": {"format_tool_call_preview": "state"}}).replace('"none"', '"write"')
    async with gate_at(tmp_path, written, confirm=yes) as gate:
        gate.session.mode = Mode.ASK
        assert [(await gate.call("plain_count", {})).value for _ in range(2)] == [1, 2]
    assert previews == ["{}", '{"n": 1}']


# --- tags ---------------------------------------------------------------------------------------


async def test_a_tool_whose_tag_nobody_gives_is_refused_with_that_tag_named(tmp_path: Path) -> None:
    async with gate_at(tmp_path, settings({"plain": NEEDS_VISION})) as gate:
        result = await gate.call("plain_echo", {"text": "hi"})
        assert result.error is not None and result.error.error_class is ToolErrorClass.NOT_FOUND
        assert "'vision'" in result.error.message and "no host, model or setting" in result.error.message


@pytest.mark.spec("S1-37")
@pytest.mark.parametrize(
    ("hosts", "first", "last"),
    [
        ({"plain": NEEDS_VISION, "giver": {"get_tags": ["vision"]}}, "", ""),
        ({"plain": {**NEEDS_VISION, "get_tags": ["vision"]}}, "", ""),
        ({"plain": NEEDS_VISION}, 'tags = ["vision"]', ""),
        ({"plain": NEEDS_VISION}, 'model = "m"', '[models.m]\nkind = "openai"\nmodel = "x"\ntags = ["vision"]'),
    ],
    ids=["another host", "the host itself", "settings", "the usual model"],
)
async def test_a_tag_counts_whoever_gives_it(tmp_path: Path, hosts: Any, first: str, last: str) -> None:
    async with gate_at(tmp_path, settings(hosts, first, last)) as gate:
        assert (await gate.call("plain_echo", {"text": "hi"})).value == "hi"
        assert "plain_echo" in names(gate)


async def test_the_refusal_names_the_model_that_would_give_the_tag(tmp_path: Path) -> None:
    models = '[models.seer]\nkind = "openai"\nmodel = "x"\ntags = ["vision"]'
    async with gate_at(tmp_path, settings({"plain": NEEDS_VISION}, last=models)) as gate:
        result = await gate.call("plain_echo", {"text": "hi"})
        assert result.error is not None and "model 'seer'" in result.error.message


async def test_the_tags_of_the_model_at_work_count_and_of_no_other(tmp_path: Path) -> None:
    replies = (Says(calls=[Asks("plain_echo", {"text": "hi"})]), Says("Done."))
    async with ModelServer(*replies, *replies) as server:
        table = '[models.{}]\nkind = "openai"\nmodel = "x"\nkey_env = "PATH"\nbase_url = "{}"\n{}'
        last = "\n".join([table.format("blind", server.url, ""), table.format("seer", server.url, 'tags = ["vision"]')])
        async with gate_at(tmp_path, settings({"plain": NEEDS_VISION}, 'model = "blind"', last)) as gate:
            assert "plain_echo" not in names(gate)
            await gate.run("look", model="seer")
            offered = [each["function"]["name"] for each in server.requests[0].body["tools"]]
            assert "plain_echo" in offered
            (result,) = [each for each in server.requests[1].body["messages"] if each["role"] == "tool"]
            assert result["content"] == "hi"
            await gate.run("look", model="blind")
            shown = [each["function"]["name"] for each in server.requests[2].body.get("tools", [])]
            assert "plain_echo" not in shown


async def test_a_host_is_told_of_the_models_and_nothing_secret_of_them(tmp_path: Path) -> None:
    models = (
        '[models.m]\nkind = "openai"\nmodel = "x"\nheaders = { x-secret = "s3cret" }\nbase_url = "http://127.0.0.1:1"'
    )
    written = settings({"plain": {"get_tags": "models"}}, 'model = "m"', models)
    async with gate_at(tmp_path, written) as gate:
        (told,) = gate._wired.dispatcher.registry.tags.of(gate.session)
        assert json.loads(told) == [{"name": "m", "kind": "openai", "model": "x", "tags": []}]


async def test_no_host_gives_a_tag_that_is_ours(tmp_path: Path) -> None:
    tags = {"required_tags": ["callgate:mcp"], "get_tags": ["callgate:mcp", "callgate:undo"]}
    async with gate_at(tmp_path, settings({"plain": tags}, 'tags = ["callgate:mcp"]')) as gate:
        result = await gate.call("plain_echo", {"text": "hi"})
        assert result.error is not None and "callgate:" not in result.error.message
