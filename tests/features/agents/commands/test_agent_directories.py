"""The directories in which an agent was used, from files as the agents write them."""

from __future__ import annotations

import json
from pathlib import Path

import apsw
import pytest

from callgate.features.agents.known import used_directories


def write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))


@pytest.fixture
def project(tmp_path: Path) -> str:
    (tmp_path / "project").mkdir()
    return str(tmp_path / "project")


def used(agent: str, user: Path) -> list[str] | None:
    return used_directories(agent, {}, str(user))


def test_claude_code_has_a_list_and_sessions(tmp_path: Path, project: str) -> None:
    (tmp_path / "second").mkdir()
    write(tmp_path / ".claude.json", {"projects": {project: {}, "/gone/for/good": {}, "relative": {}}})
    lines = [{"type": "queue-operation"}, {"type": "user", "cwd": str(tmp_path / "second")}]
    write(tmp_path / ".claude/projects/-x/s.jsonl", "\n".join(map(json.dumps, lines)))
    assert used("claude", tmp_path) == sorted([project, str(tmp_path / "second")])


def test_codex_has_projects_and_sessions(tmp_path: Path, project: str) -> None:
    (tmp_path / "second").mkdir()
    write(tmp_path / ".codex/config.toml", f'[projects."{project}"]\ntrust_level = "trusted"\n')
    meta = {"type": "session_meta", "payload": {"cwd": str(tmp_path / "second")}}
    write(tmp_path / ".codex/sessions/2026/11/18/rollout-1.jsonl", json.dumps(meta) + "\n")
    assert used("codex", tmp_path) == sorted([project, str(tmp_path / "second")])


def test_gemini_qwen_and_kimi_have_lists(tmp_path: Path, project: str) -> None:
    write(tmp_path / ".gemini/projects.json", {"projects": {project: "project"}})
    write(tmp_path / ".qwen/projects/-x/chats/s.jsonl", json.dumps({"cwd": project}))
    write(tmp_path / ".kimi-code/workspaces.json", {"workspaces": {"wd": {"root": project}}})
    for agent in ("gemini", "qwen", "kimi"):
        assert used(agent, tmp_path) == [project]


def test_opencode_has_a_database(tmp_path: Path, project: str) -> None:
    path = tmp_path / ".local/share/opencode/opencode.db"
    path.parent.mkdir(parents=True)
    database = apsw.Connection(str(path))
    database.execute("CREATE TABLE session (id TEXT, directory TEXT)")
    database.execute("INSERT INTO session VALUES ('1', ?), ('2', ?)", (project, project))
    database.close()
    assert used("opencode", tmp_path) == [project]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"projects": 3, "workspaces": 3}', '{"projects": ["x"]}', "\0" * 9])
def test_files_of_another_form_list_nothing(tmp_path: Path, text: str) -> None:
    for name in (".claude.json", ".codex/config.toml", ".gemini/projects.json", ".kimi-code/workspaces.json"):
        write(tmp_path / name, text)
    write(tmp_path / ".claude/projects/-x/s.jsonl", f'{text}\n{{"cwd": 3}}\n"cwd"\n')
    write(tmp_path / ".local/share/opencode/opencode.db", text)
    for agent in ("claude", "codex", "gemini", "qwen", "kimi", "opencode"):
        assert used(agent, tmp_path) == []


def test_an_agent_without_a_known_list_has_none(tmp_path: Path) -> None:
    assert used("vibe", tmp_path) is None
    assert used("cursor", tmp_path) is None
