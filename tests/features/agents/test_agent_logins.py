"""After a run, known values of a login are saved; settings in the same file are not."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from callgate.features.agents.agent_homes import open_view
from callgate.features.agents.agent_logins import LARGEST, merge, save, text_of
from callgate.features.agents.known import KNOWN
from callgate.features.agents.known.values import Login
from callgate.workspace.executed_later import now

LOGINS = {
    (name, login.file): login
    for name in ("claude", "codex", "gemini", "qwen", "kimi", "opencode", "cursor")
    for home in KNOWN[name].homes
    for login in home.logins
}


def merged(login: Login, before: Any, after: Any, current: Any = None) -> Any:
    old = None if before is None else json.dumps(before)
    text = merge(login, old, json.dumps(after), old if current is None else json.dumps(current))
    return None if text is None else json.loads(text)


@pytest.mark.parametrize(
    ("agent", "file", "before", "after", "saved"),
    [
        ("codex", "auth.json", {"tokens": {"refresh_token": "a"}}, {"tokens": {"refresh_token": "b"}, "command": "evil"},
         {"tokens": {"refresh_token": "b"}}),
        ("codex", "auth.json", None, {"OPENAI_API_KEY": "k", "tokens": None}, {"OPENAI_API_KEY": "k"}),
        ("qwen", "oauth_creds.json", {"access_token": "a", "resource_url": "portal.qwen.ai"},
         {"access_token": "b", "resource_url": "evil.example"}, {"access_token": "b", "resource_url": "portal.qwen.ai"}),
        ("claude", ".claude.json", {"mcpServers": {}}, {"mcpServers": {"x": {"command": "evil"}}, "apiKeyHelper": "evil"}, None),
        ("claude", ".credentials.json", {"mcpOAuth": {"s": {"serverUrl": "a", "accessToken": "1"}}},
         {"mcpOAuth": {"s": {"serverUrl": "evil", "accessToken": "2"}}},
         {"mcpOAuth": {"s": {"serverUrl": "a", "accessToken": "2"}}}),
        ("opencode", "auth.json", {"p": {"type": "oauth", "refresh": "a"}}, {"p": {"type": "oauth", "refresh": "b"}},
         {"p": {"type": "oauth", "refresh": "b"}}),
        ("opencode", "auth.json", None, {"https://evil": {"type": "wellknown", "key": "LD_PRELOAD", "token": "x"}}, None),
        ("opencode", "auth.json", {"w": {"type": "wellknown", "key": "TOKEN", "token": "x"}},
         {"w": {"type": "api", "key": "LD_PRELOAD"}}, None),
        ("opencode", "auth.json", {"w": {"type": "wellknown", "key": "TOKEN", "token": "x"}},
         {"w": {"type": "wellknown", "key": "LD_PRELOAD", "token": "y"}}, None),
    ],
)  # fmt: skip
def test_only_listed_values_are_saved(agent: str, file: str, before: Any, after: Any, saved: Any) -> None:
    assert merged(LOGINS[agent, file], before, after) == saved


@pytest.mark.parametrize("value", [{"command": "evil"}, ["ok", {"command": "evil"}], "x" * 100_000, ["x"] * 1_000])
def test_a_value_that_is_not_short_and_plain_is_not_saved(value: Any) -> None:
    for login in LOGINS.values():
        for key in login.values:
            after: Any = value
            for name in reversed(key.replace("*", "entry").split(".")):
                after = {name: after}
            if login.types:
                after["entry"]["type"] = "oauth"
            text = merge(login, None, json.dumps(after), None)
            assert text is None or json.loads(text) == {"entry": {"type": "oauth"}}


def test_a_login_that_changed_outside_meanwhile_is_not_set_back() -> None:
    login = LOGINS["codex", "auth.json"]
    start, outside = {"tokens": {"access_token": "1"}}, {"tokens": {"access_token": "2"}}
    assert merged(login, start, start, outside) is None


@pytest.mark.parametrize(
    "after",
    [
        "",
        "{",
        "[]",
        "null",
        '"x"',
        "[" * 100_000,
        '{"access_token": NaN, "last_refresh": NaN}',
        '{"tokens": 1}',
        "\x00",
    ],
)
def test_what_is_not_a_login_is_not_saved(after: str) -> None:
    for login in LOGINS.values():
        assert merge(login, "{}", after, "{}") is None


def test_an_encrypted_login_is_saved_if_it_is_cipher_text() -> None:
    login = LOGINS["gemini", "gemini-credentials.json"]
    assert merge(login, None, "00ff:a1:b2", None) == "00ff:a1:b2"
    assert merge(login, None, "00ff:a1:b2\n[settings]", None) is None


def test_only_a_small_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("{}")
    (tmp_path / "link").symlink_to("secret")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_text("x" * (LARGEST + 1))
    (tmp_path / "binary").write_bytes(b"\xff")
    assert text_of(str(tmp_path / "secret")) == "{}"
    assert [text_of(str(tmp_path / name)) for name in ("link", "pipe", "large", "binary", "none", ".")] == [None] * 6


def test_a_file_that_is_a_link_is_saved_where_it_leads_with_its_mode(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("{}")
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "auth.json").symlink_to("real")
    after = json.dumps({"OPENAI_API_KEY": "k"})
    assert save(LOGINS["codex", "auth.json"], "{}", after, str(tmp_path / "auth.json"))
    assert (tmp_path / "auth.json").is_symlink()
    assert json.loads((tmp_path / "real").read_text()) == {"OPENAI_API_KEY": "k"}
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o640


def test_new_files_of_a_directory_of_logins_are_saved_but_no_link(tmp_path: Path) -> None:
    person, gate, secrets = tmp_path / "person", tmp_path / "gate", tmp_path / "secrets"
    for each in (person, gate, secrets):
        each.mkdir()
    (secrets / "cloud.json").write_text('{"refresh_token": "secret"}')
    paths = {"home": str(person), "environ": {}, "callgate_home": str(gate), "workspace": "/work"}
    with open_view(KNOWN["kimi"], **paths, persists=True) as view:  # type: ignore[arg-type]
        tree = Path(view.replacements[0].source)
        (tree / "credentials/kimi.json").write_text('{"refresh_token": "new", "base_url": "evil"}')
        (tree / "credentials/link.json").symlink_to(secrets / "cloud.json")
    assert json.loads((person / ".kimi-code/credentials/kimi.json").read_text()) == {"refresh_token": "new"}
    with open_view(KNOWN["kimi"], **paths, persists=True) as view:  # type: ignore[arg-type]
        tree = Path(view.replacements[0].source)
        (tree / "credentials").rename(tree / "away")
        (tree / "credentials").symlink_to(secrets)
    assert [each.name for each in (person / ".kimi-code/credentials").iterdir()] == ["kimi.json"]


@pytest.mark.parametrize(
    ("agent", "directory"),
    [
        ("claude", ".claude/projects/-work/session/workflows/scripts"),
        ("gemini", ".gemini/tmp/work/memory/skills/x"),
        ("qwen", ".qwen/projects/-work/workflows/generated/inline"),
    ],
)
def test_new_scripts_among_the_sessions_get_another_name(tmp_path: Path, agent: str, directory: str) -> None:
    home, workspace = tmp_path / "home", tmp_path / "work"
    scripts = home / directory
    scripts.mkdir(parents=True)
    workspace.mkdir()
    (scripts / "old.js").write_text("x")
    while now() <= (scripts / "old.js").stat().st_ctime_ns:
        pass
    with open_view(KNOWN[agent], str(home), {}, str(tmp_path / "gate"), workspace=str(workspace), persists=True):
        (scripts / "new.js").write_text("x")
    assert sorted(each.name for each in scripts.iterdir()) == ["new.js.disabled-by-callgate", "old.js"]
