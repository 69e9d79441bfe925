"""`callgate hook status` says guarded only of a hook that is as we write it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from callgate.cli.hooks import checks
from callgate.cli.main import main
from callgate.config.agents.settings_files import AGENTS, user_file
from callgate.config.schema import HooksTable

WAIT_S = HooksTable().wait_s


@pytest.fixture(autouse=True)
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CALLGATE_HOME", str(tmp_path / "gate"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def install(agent: str, *words: str) -> Path:
    assert main(["hook", "install", agent, *words]) == 0
    return Path(user_file(agent))


def look(agent: str) -> checks.HookStatus:
    """As if an instance answered."""
    found = checks.look(os.environ["CALLGATE_HOME"], agent, os.getcwd(), WAIT_S)
    return msgspec.structs.replace(found, answered=True)


@pytest.mark.parametrize("agent", [each for each in AGENTS if each != "codex"])
def test_a_fresh_installation_is_guarded(agent: str) -> None:
    install(agent)
    assert look(agent).problems == ()
    assert look(agent).is_guarded


def test_codex_whose_trust_nobody_knows_is_not_guarded() -> None:
    install("codex")
    found = look("codex")
    assert (found.trusted, found.is_guarded) == (None, False)
    assert "nobody knows" in found.problems[0]


def edit(path: Path, event: str, **more: Any) -> None:
    settings = json.loads(path.read_text())
    (entry,) = settings["hooks"][event]
    hook = entry["hooks"][0] if "hooks" in entry else entry
    for name, value in more.items():
        target = entry if name == "matcher" else hook
        target[name] = target[name] + value[1:] if isinstance(value, str) and value[:1] == "+" else value
    path.write_text(json.dumps(settings))


@pytest.mark.parametrize(
    ("agent", "event", "change"),
    [
        ("claude", "PreToolUse", {"timeout": 1}),
        ("claude", "PreToolUse", {"matcher": "Read"}),
        ("claude", "PreToolUse", {"onFailure": "allow"}),
        ("claude", "PreToolUse", {"command": "+; exit 0"}),
        ("claude", "PreToolUse", {"async": True}),
        ("gemini", "BeforeTool", {"matcher": "read_file"}),
        ("gemini", "BeforeTool", {"command": "+ | true"}),
        ("qwen", "PreToolUse", {"timeout": 1}),
        ("cursor", "preToolUse", {"failClosed": False}),
    ],
)
def test_a_hook_that_was_changed_is_not_guarded(agent: str, event: str, change: dict[str, Any]) -> None:
    path = install(agent)
    edit(path, event, **change)
    found = look(agent)
    assert (found.installed, found.is_guarded) == (True, False)
    assert next(iter(change)) in found.problems[0]


@pytest.mark.parametrize("agent", ["vibe", "kimi", "opencode"])
def test_a_changed_hook_in_another_form_is_not_guarded(agent: str) -> None:
    path = install(agent)
    text = path.read_text()
    changed = text.replace("timeout = ", "timeout = 1").replace("LIMIT_MS = ", "LIMIT_MS = 1")
    assert changed != text
    path.write_text(changed)
    assert not look(agent).is_guarded


@pytest.mark.parametrize(
    ("agent", "settings"),
    [
        ("gemini", {"hooksConfig": {"enabled": False}}),
        ("gemini", {"hooksConfig": {"disabled": ["callgate"]}}),
        ("qwen", {"disableAllHooks": True}),
        ("claude", {"disableAllHooks": True}),
    ],
)
def test_settings_that_turn_our_hook_off_are_named(agent: str, settings: dict[str, Any]) -> None:
    path = install(agent)
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    assert any(str(path) in each and "callgate" in each or "all hooks" in each for each in look(agent).problems)


def test_an_agent_that_was_asked_for_and_has_no_hook_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hook", "status", "claude"]) == 1
    assert main(["hook", "status"]) == 0
    assert "not behind the gate" in capsys.readouterr().out
