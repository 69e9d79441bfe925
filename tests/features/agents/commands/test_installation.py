"""`callgate hook install` and `remove` edit an agent's settings, and lose nothing of them."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from callgate.cli.errors import CliError
from callgate.cli.main import main
from callgate.features.agents.commands import editing
from callgate.features.agents.hooks import events
from callgate.features.agents.known import hooked, hooks_of, user_file

JSON_AGENTS = ("claude", "codex", "gemini", "qwen", "cursor")
COMMENTED = """\
{
  // my own
  "model": "x", /* kept */
  "hooks": {
    "Other": [{"hooks": []}],
  },
}
"""


@pytest.fixture(autouse=True)
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CALLGATE_HOME", str(tmp_path / "gate"))
    return tmp_path


def call(*words: str) -> int:
    return main(["hook", *words])


@pytest.mark.parametrize("agent", hooked())
def test_an_installation_is_undone_to_the_byte(agent: str) -> None:
    path = Path(user_file(agent))
    assert call("install", agent) == 0
    assert editing.entries(agent, path.read_text(), os.environ["CALLGATE_HOME"])
    assert call("install", agent) == 0  # idempotent
    assert call("remove", agent) == 0
    assert not path.exists()
    assert not Path(os.environ["CALLGATE_HOME"], "hooks", agent).exists()  # nor its token


@pytest.mark.parametrize("agent", JSON_AGENTS)
@pytest.mark.parametrize("before", [COMMENTED, '{"a":1}', "{}", '{\n\t"hooks": {}\n}\n'])
def test_what_stands_there_is_kept_and_comes_back(agent: str, before: str) -> None:
    path = Path(user_file(agent))
    path.parent.mkdir(parents=True)
    path.write_text(before)
    path.chmod(0o640)
    call("install", agent)
    after = path.read_text()
    assert editing.entries(agent, after, os.environ["CALLGATE_HOME"])
    assert "my own" in after or "my own" not in before
    assert path.stat().st_mode & 0o777 == 0o640
    call("remove", agent)
    assert path.read_text() == before


def test_a_file_that_was_changed_since_keeps_the_change() -> None:
    path = Path(user_file("claude"))
    path.parent.mkdir(parents=True)
    path.write_text(COMMENTED)
    call("install", "claude")
    path.write_text(path.read_text().replace('"model": "x"', '"model": "y"'))
    call("remove", "claude")
    text = path.read_text()
    assert '"model": "y"' in text
    assert "// my own" in text
    assert "callgate" not in text


@pytest.mark.parametrize("agent", ["vibe", "kimi"])
def test_toml_is_appended_to_and_restored(agent: str) -> None:
    path = Path(user_file(agent))
    path.parent.mkdir(parents=True)
    path.write_text("# mine\nx = 1")
    call("install", agent)
    assert len(tomllib.loads(path.read_text())["hooks"]) == len(hooks_of(agent).file.events)
    path.write_text(path.read_text() + "[more]\n")
    call("remove", agent)
    assert path.read_text() == "# mine\nx = 1\n[more]\n"


def test_settings_that_cannot_be_read_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(user_file("claude"))
    path.parent.mkdir(parents=True)
    for text in ('{"hooks": [}', '{"hooks": 3}', "[]"):
        path.write_text(text)
        assert call("install", "claude") == 2
        assert path.read_text() == text
    assert "claude" in capsys.readouterr().err


def test_a_dry_run_shows_the_change_and_makes_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("install", "gemini", "--dry-run", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert "BeforeTool" in shown["diff"]
    assert not Path(user_file("gemini")).exists()
    assert not Path(os.environ["CALLGATE_HOME"], "hooks").exists()


def test_a_project_has_hooks_of_its_own_where_the_agent_reads_them(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    assert call("install", "claude", "--project", "--workspace", str(project)) == 0
    text = (project / ".claude/settings.local.json").read_text()
    assert "Bearer" not in text
    assert call("install", "codex", "--project", "--workspace", str(project)) == 2


def test_the_hook_of_claude_blocks_when_it_fails() -> None:
    call("install", "claude", "--form", "command")
    settings = json.loads(Path(user_file("claude")).read_text())
    (entry,) = settings["hooks"]["PreToolUse"]
    assert entry["hooks"][0]["type"] == "command"
    assert entry["hooks"][0]["onFailure"] == "block"


def test_status_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    call("install", "vibe")
    capsys.readouterr()
    assert call("status", "vibe", "--json") == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["installed"], found["verdict"], found["protected"]) == (True, "blocked", False)
    assert found["fails_open"]


def test_an_unknown_agent_is_an_error() -> None:
    assert call("install", "nobody") == 2
    with pytest.raises(CliError):
        editing.with_hook("kimi", "/h", 'hooks = "x"\n', 1.0)


@pytest.mark.parametrize("agent", hooked())
def test_a_hook_without_an_instance_refuses_in_the_agents_form(agent: str, tmp_path: Path) -> None:
    home = str(tmp_path / "gate")
    editing.write_scripts(home, agent, 1.0)
    script = os.path.join(home, "hooks", agent, "hook")
    done = subprocess.run([script, "pre"], input=b"{}", capture_output=True, check=False)
    reason = f"No callgate instance is running, so nothing was run. Start it with callgate protect {agent}"
    assert done.returncode == 0
    assert done.stdout == events.refusal(agent, reason)
    after = subprocess.run([script, "post"], input=b"{}", capture_output=True, check=False)
    assert (after.returncode, after.stdout) == (0, b"")


@pytest.mark.parametrize("agent", hooked())
@pytest.mark.parametrize("breaking", ["missing", "no client", "killed"])
def test_a_broken_hook_refuses_in_the_agents_form(agent: str, breaking: str, tmp_path: Path) -> None:
    home = str(tmp_path / "gate")
    editing.write_scripts(home, agent, 1.0)
    script = Path(home, "hooks", agent, "hook")
    if breaking == "missing":
        script.unlink()
    elif breaking == "no client":
        script.write_text(script.read_text().replace("hook_client.py", "gone.py"))
    else:
        script.write_text("#!/bin/sh\nkill -9 $$\n")
    command = editing.command(home, agent, "pre")
    done = subprocess.run(["sh", "-c", command], input=b"{}", capture_output=True, check=False)
    assert done.returncode == 0
    assert done.stdout == events.refusal(agent, editing.SILENT)


def placed(agent: str, text: str) -> Path:
    path = Path(user_file(agent))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def test_a_brace_in_a_comment_is_not_the_settings_of_cursor() -> None:
    path = placed("cursor", "// {see docs}\n{\n}\n")
    assert call("install", "cursor") == 0
    text = path.read_text()
    assert text.startswith("// {see docs}\n{")
    settings = json.loads(text.removeprefix("// {see docs}\n"))
    assert (settings["version"], len(settings["hooks"]["preToolUse"])) == (1, 1)


@pytest.mark.parametrize("agent", ["vibe", "kimi"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_tables_after_our_block_stay_whatever_ends_its_lines(agent: str, end: str) -> None:
    path = placed(agent, f"x = 1{end}")
    call("install", agent)
    mine = "[[hooks]]\nname = 'mine'\n[more]\ny = 2\n"
    path.write_bytes((path.read_text() + mine).replace("\r\n", "\n").replace("\n", end).encode())
    assert call("remove", agent) == 0
    assert path.read_bytes().decode() == f"x = 1{end}" + mine.replace("\n", end)


@pytest.mark.parametrize("agent", ["vibe", "kimi"])
@pytest.mark.parametrize("changed", ["no end", "mine inside", "no marks"])
def test_a_block_that_is_not_ours_alone_is_left_as_it_is(agent: str, changed: str) -> None:
    path = placed(agent, "x = 1\n")
    call("install", agent)
    text = path.read_text()
    if changed == "no end":
        text = text.replace("# callgate end\n", "[more]\n")
    elif changed == "mine inside":
        text = text.replace("# callgate end\n", "[[hooks]]\nname = 'mine'\n# callgate end\n")
    else:
        text = text.replace("# callgate end\n", "").replace("# callgate begin\n", "")
    path.write_text(text)
    for word in ("remove", "install"):
        assert call(word, agent) == 2
        assert path.read_text() == text


def test_a_hook_of_somebody_else_at_another_host_stays() -> None:
    foreign = {"matcher": "*", "hooks": [{"type": "http", "url": "https://other.example/v1/hooks/claude"}]}
    path = placed("claude", json.dumps({"hooks": {"PreToolUse": [foreign]}}))
    for _ in range(2):
        assert call("install", "claude") == 0
        found = json.loads(path.read_text())["hooks"]["PreToolUse"]
        assert (len(found), found[0]) == (2, foreign)
    path.write_text(path.read_text() + "\n")
    assert call("remove", "claude") == 0
    assert json.loads(path.read_text())["hooks"]["PreToolUse"] == [foreign]


def test_a_hook_of_the_user_beside_ours_in_one_entry_stays() -> None:
    path = placed("claude", "{}")
    call("install", "claude")
    settings = json.loads(path.read_text())
    mine = {"type": "command", "command": "mine"}
    settings["hooks"]["PreToolUse"][0]["hooks"].append(mine)
    path.write_text(json.dumps(settings))
    assert call("remove", "claude") == 0
    hooks = json.loads(path.read_text())["hooks"]
    assert hooks["PreToolUse"] == [{"matcher": "*", "hooks": [mine]}]
    assert hooks["PostToolUse"] == []


def test_an_escape_that_json_has_not_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    path = placed("gemini", '{"a": "\\q"}')
    assert call("install", "gemini") == 2
    assert "line 1 is not JSON" in capsys.readouterr().err
    assert path.read_text() == '{"a": "\\q"}'


def test_a_plugin_of_the_user_with_our_name_is_left_alone() -> None:
    path = placed("opencode", "export const Mine = async () => ({})\n")
    assert call("install", "opencode") == 2
    assert call("remove", "opencode") == 0
    assert path.read_text() == "export const Mine = async () => ({})\n"


@pytest.mark.parametrize("agent", hooked())
def test_a_hook_that_is_not_installed_refuses_in_the_form_of_its_agent(
    agent: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call("run", agent) == 0
    answer = capfd.readouterr().out.encode().strip()
    reason = "callgate: the hook is not installed: No such file or directory"
    assert answer == events.refusal(agent, reason)
    assert call("run", agent, "post") == 2
    assert not capfd.readouterr().out


def test_a_hook_is_called_with_a_phase_that_there_is(person: Path) -> None:
    call("install", "codex")
    script = person / "gate/hooks/codex/hook"
    done = subprocess.run([script, "other"], input=b"{}", capture_output=True, check=True)
    assert b'"deny"' in done.stdout
    assert b"pre, post or prompt" in done.stdout
