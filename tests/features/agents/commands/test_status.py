"""`callgate hook status`: one verdict, `protected` only for a hook that is as callgate writes it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from callgate.cli.main import main
from callgate.features.agents.commands import checks
from callgate.features.agents.known import hooked, user_file
from callgate.features.agents.settings import HooksTable

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
    """As if an instance answered and served this directory."""
    found = checks.look(os.environ["CALLGATE_HOME"], agent, os.getcwd(), WAIT_S)
    problems = tuple(each for each in found.problems if not each.blocks)
    return msgspec.structs.replace(found, problems=problems)


@pytest.mark.parametrize("agent", [each for each in hooked() if each != "codex"])
def test_a_fresh_installation_is_protected(agent: str) -> None:
    install(agent)
    assert look(agent).problems == ()
    assert look(agent).is_protected


def test_codex_whose_trust_is_unknown_is_not_protected() -> None:
    install("codex")
    found = look("codex")
    assert (found.trusted, found.is_protected) == (None, False)
    assert "unknown" in found.problems[0].reason


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
def test_a_hook_that_was_changed_is_not_protected(agent: str, event: str, change: dict[str, Any]) -> None:
    path = install(agent)
    edit(path, event, **change)
    found = look(agent)
    assert (found.installed, found.is_protected) == (True, False)
    assert next(iter(change)) in found.problems[0].reason


@pytest.mark.parametrize("agent", ["vibe", "kimi", "opencode"])
def test_a_changed_hook_in_another_form_is_not_protected(agent: str) -> None:
    path = install(agent)
    text = path.read_text()
    changed = text.replace("timeout = ", "timeout = 1").replace("LIMIT_MS = ", "LIMIT_MS = 1")
    assert changed != text
    path.write_text(changed)
    assert not look(agent).is_protected


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
    reasons = [each.reason for each in look(agent).problems]
    assert any(str(path) in each and "callgate" in each or "all hooks" in each for each in reasons)


def test_an_agent_that_was_asked_for_and_has_no_hook_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hook", "status", "claude"]) == 1
    assert main(["hook", "status"]) == 0
    assert "no hook is installed" in capsys.readouterr().out


def text_of(agent: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    assert main(["hook", "status", agent]) == 1
    return capsys.readouterr().out.splitlines()


def test_without_an_instance_the_one_verdict_is_blocked_and_the_fix_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    install("claude")
    first, *others = text_of("claude", capsys)
    assert first.endswith("blocked: the hook refuses every call")
    assert "  fix   callgate protect claude" in others
    assert "protected" not in "".join(others)


def test_a_script_that_is_missing_blocks_and_one_that_differs_exposes() -> None:
    install("claude")
    script = Path(os.environ["CALLGATE_HOME"], "hooks/claude/hook")
    script.write_text("#!/bin/sh\nexit 0\n")
    assert (
        checks.look(os.environ["CALLGATE_HOME"], "claude", os.getcwd(), WAIT_S).verdict
        is checks.ProtectionState.EXPOSED
    )
    script.unlink()
    assert (
        checks.look(os.environ["CALLGATE_HOME"], "claude", os.getcwd(), WAIT_S).verdict
        is checks.ProtectionState.BLOCKED
    )


APP_SERVER = """#!/usr/bin/env python3
import json, sys
hooks = [{"command": "%s/hooks/codex/hook " + phase, "trustStatus": "untrusted"} for phase in ("pre", "post")]
for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        print(json.dumps({"id": request["id"], "result": {"data": [{"hooks": hooks}]}}), flush=True)
"""


def test_a_problem_of_two_hooks_is_printed_once(
    person: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = person / "bin/codex"
    program.parent.mkdir()
    program.write_text(APP_SERVER % os.environ["CALLGATE_HOME"])
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    install("codex")
    lines = text_of("codex", capsys)
    assert "NOT protected" in lines[0]
    assert len([each for each in lines if "untrusted" in each]) == 1
    assert len(lines) == len(set(lines))


def test_a_settings_file_by_two_paths_is_one_problem(
    person: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The home itself is the workspace, by way of a link."""
    path = install("claude")
    path.write_text(json.dumps({**json.loads(path.read_text()), "disableAllHooks": True}))
    (person.parent / "link").symlink_to(person)
    monkeypatch.setenv("HOME", str(person.parent / "link"))
    assert "".join(text_of("claude", capsys)).count("disableAllHooks") == 1


def test_the_hook_of_one_agent_does_not_expose_another_that_reads_its_settings(person: Path) -> None:
    install("copilot")
    path = install("claude")
    (person / "project").mkdir()
    home, project = os.environ["CALLGATE_HOME"], str(person / "project")
    assert checks.look(home, "copilot", project, WAIT_S).verdict is checks.ProtectionState.BLOCKED  # no instance
    theirs = {"PreToolUse": [{"hooks": [{"type": "command", "command": "theirs"}]}]}
    path.write_text(json.dumps({"hooks": theirs}))
    assert checks.look(home, "copilot", project, WAIT_S).verdict is checks.ProtectionState.EXPOSED


def test_status_says_where_the_guard_does_not_know_the_conversation(person: Path) -> None:
    home = str(person / "gate")
    for agent in ("gemini", "vibe"):
        install(agent)
    assert checks.look(home, "gemini", str(person), 65.0).conversation == ""
    assert "no hook for your messages" in checks.look(home, "vibe", str(person), 65.0).text()
    path = Path(user_file("gemini"))
    settings = json.loads(path.read_text())
    del settings["hooks"]["BeforeAgent"]
    path.write_text(json.dumps(settings))
    assert "callgate hook install gemini" in checks.look(home, "gemini", str(person), 65.0).conversation
