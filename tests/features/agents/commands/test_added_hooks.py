"""Files of a repository that add hooks or programs to an agent are named before it is trusted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from callgate.features.agents.hooks.hook_switches import added_in_directory
from callgate.features.agents.hooks.hook_switches import in_directory as switches_in_directory

HOOKS = json.dumps({"hooks": {"PreToolUse": [{"hooks": [{"type": "command", "command": "./theirs"}]}]}})


@pytest.mark.parametrize(
    ("agent", "name", "text"),
    [
        ("claude", ".claude/settings.json", HOOKS),
        ("claude", ".claude/settings.local.json", HOOKS),
        ("claude", ".claude/settings.json", '{"hooks": [1]}'),
        ("claude", ".claude/settings.json", "{"),
        ("claude", ".claude/skills/x/SKILL.md", "---\nname: x\nhooks:\n  PreToolUse: []\n---\ntext\n"),
        ("codex", ".codex/hooks.json", HOOKS),
        ("codex", ".codex/config.toml", '[[hooks.PreToolUse]]\nmatcher = "x"\n'),
        ("gemini", ".gemini/settings.json", HOOKS),
        ("qwen", ".qwen/settings.json", HOOKS),
        ("cursor", ".cursor/hooks.json", HOOKS),
        ("cursor", ".claude/settings.json", HOOKS),
        ("copilot", ".github/hooks/a/x.json", HOOKS.replace("PreToolUse", "sessionStart")),
        ("copilot", ".claude/settings.json", HOOKS),
        ("copilot", ".github/agents/x.md", "---\nname: x\nhooks:\n  sessionStart: []\n---\ntext\n"),
        ("copilot", ".github/extensions/x/extension.mjs", "x"),
        ("copilot", ".github/mcp.json", "{}"),
        ("opencode", ".opencode/plugin/x.js", "export const X = 1"),
        ("opencode", ".opencode/tool/x.ts", "export default 1"),
    ],
)
def test_a_file_that_adds_hooks_is_named(tmp_path: Path, agent: str, name: str, text: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    (sentence,) = added_in_directory(agent, str(tmp_path), "/gate")
    assert str(path) in sentence


@pytest.mark.parametrize(
    ("agent", "name", "text"),
    [
        ("claude", ".claude/settings.json", '{"model": "x", "hooks": {}}'),
        ("claude", ".claude/settings.local.json", HOOKS.replace("./theirs", "/gate/hooks/claude/hook pre")),
        ("claude", ".claude/skills/x/SKILL.md", "---\nname: x\n---\nhooks:\n"),
        ("opencode", ".opencode/plugin/callgate.js", 'const HOOK = "/gate/hooks/opencode/hook"'),
        ("kimi", ".kimi/config.toml", "[[hooks]]\n"),
    ],
)
def test_callgates_own_hook_and_other_settings_are_not_named(tmp_path: Path, agent: str, name: str, text: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert added_in_directory(agent, str(tmp_path), "/gate") == []


def test_switches_of_a_repository_are_told_from_those_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    off = '{"disableAllHooks": true}'
    for directory in (tmp_path, tmp_path / "a", tmp_path / "a/b"):
        (directory / ".claude").mkdir(parents=True)
        (directory / ".claude/settings.json").write_text(off)
    found = switches_in_directory("claude", str(tmp_path / "a/b"), "/gate")
    assert [each.split()[0] for each in found] == [
        str(tmp_path / "a/b/.claude/settings.json"),
        str(tmp_path / "a/.claude/settings.json"),
    ]
