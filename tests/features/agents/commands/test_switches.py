"""Settings that turn an agent's hooks off are reported everywhere, and never obeyed in the sandbox."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from callgate.cli.errors import CliError
from callgate.cli.main import main
from callgate.config.home import Home
from callgate.core.sessions import Mode
from callgate.features.agents.commands import checks, editing
from callgate.features.agents.hooks import hook_switches
from callgate.features.agents.hooks.listener import AgentHooks
from callgate.features.agents.known import KNOWN, hook_name, hooks_of
from callgate.instance.instance import Draining
from callgate.instance.startup import ServedDirectories
from callgate.instance.wiring.runtime import Wired

OFF: list[tuple[str, str, Any]] = [
    ("claude", ".claude/settings.json", {"disableAllHooks": True}),
    ("claude", ".claude/settings.local.json", {"disableAllHooks": True}),
    ("claude", ".claude/settings.json", {"disableAllHooks": "yes"}),
    ("claude", ".claude/settings.json", "{broken"),
    ("claude", ".claude/settings.json", "// note\n{/* x */ \"disableAllHooks\": true,}"),
    ("claude", ".claude/settings.json", {"env": {"PATH": "/x"}}),
    ("claude", ".claude/settings.local.json", {"env": {"LD_PRELOAD": "/x.so"}}),
    ("claude", ".claude/settings.json", {"env": {"CLAUDE_CODE_SHELL_PREFIX": "/x"}}),
    ("claude", ".claude/settings.json", {"env": {"CLAUDE_CODE_PERSONAL_HOOKS_OFF": "1"}}),
    ("claude", ".claude/settings.json", {"env": {"HOME": "/x"}}),
    ("claude", ".claude/settings.json", {"hooks": {"PreToolUse": [{"hooks": [{"type": "command", "command": "x"}]}]}}),
    ("claude", ".claude/agents/x.md", "---\nname: x\nhooks:\n  PreToolUse: []\n---\nx\n"),
    ("gemini", ".gemini/.env", "GEMINI_CLI_SYSTEM_SETTINGS_PATH=/x\n"),
    ("qwen", ".env", "QWEN_HOME=/x\n"),
    ("gemini", ".gemini/.env", "LD_PRELOAD=/x.so\n"),
    ("qwen", ".env", "X=1\nBASH_FUNC_printf%%=() { :; }\n"),
    ("codex", ".codex/config.toml", "[features]\nhooks = false\n"),
    ("codex", ".codex/config.toml", "features.codex_hooks = false\n"),
    ("codex", ".codex/config.toml", "features = {hooks = false}\n"),
    ("gemini", ".gemini/settings.json", {"hooksConfig": {"enabled": False}}),
    ("gemini", ".gemini/settings.json", {"hooksConfig": {"enabled": "false"}}),
    ("gemini", ".gemini/settings.json", {"hooksConfig": {"enabled": 0}}),
    ("gemini", ".gemini/settings.json", {"hooksConfig": None}),
    ("gemini", ".gemini/settings.json", {"hooksConfig": {"disabled": ["callgate"]}}),
    ("gemini", ".gemini/settings.json", {"hooksConfig": {"disabled": "callgate"}}),
    ("gemini", ".gemini/settings.json", {"hooks": None}),
    ("gemini", ".gemini/settings.json", {"hooks": []}),
    ("qwen", ".qwen/settings.json", {"disableAllHooks": True}),
    ("qwen", ".qwen/settings.json", {"disableAllHooks": "false"}),
    ("qwen", ".qwen/settings.json", {"env": {"QWEN_CODE_SAFE_MODE": "1"}}),
    ("qwen", ".qwen/.env", "export QWEN_CODE_SIMPLE=1\n"),
    ("qwen", ".env", "A=1\nQWEN_CODE_SAFE_MODE = 1\n"),
    ("gemini", ".gemini/settings.json", {"hooks": {"BeforeTool": [{"hooks": [{"type": "command", "command": "x"}]}]}}),
    ("copilot", ".github/copilot/settings.json", {"disableAllHooks": True}),
    ("copilot", ".github/copilot/settings.local.json", {"disableAllHooks": True}),
    ("copilot", ".claude/settings.json", {"disableAllHooks": True}),
    ("copilot", ".github/hooks/x.json", {"hooks": {"PreToolUse": []}}),
    ("copilot", ".github/hooks/x.json", {"hooks": {"preToolUse": []}}),
    ("copilot", ".claude/settings.json", {"hooks": {"PreToolUse": []}}),
    ("copilot", ".github/hooks/a/b/x.json", {"hooks": {"preToolUse": []}}),
    ("copilot", ".github/copilot/settings.json", {"disabledHooks": ["x"]}),
    ("copilot", ".github/copilot/settings.json", {"enabledPlugins": {"a@b": True}}),
    ("copilot", ".claude/settings.json", {"enabledPlugins": {"a@b": True}}),
    ("copilot", ".github/agents/a/x.agent.md", "---\nname: x\nhooks:\n  preToolUse: []\n---\nx\n"),
    ("copilot", ".claude/agents/x.md", "\ufeff\n---\n{name: x, 'hooks': {}}\n---\nx\n"),
    ("copilot", ".claude/agents/x.md", '---\nname: x\n"\\x68ooks": {}\n---\nx\n'),
    ("copilot", ".github/extensions/x/extension.mjs", "x"),
]  # fmt: skip
HARMLESS: list[tuple[str, str, Any]] = [
    ("claude", ".claude/settings.json", {"disableAllHooks": False, "model": "x"}),
    ("claude", ".claude/settings.json", ""),
    ("claude", ".claude/settings.json", {"env": {"API_URL": "x", "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "9"}}),
    ("claude", ".claude/settings.json", {"env": {"CLAUDE_CODE_ENABLE_TELEMETRY": "1", "NODE_ENV": "test"}}),
    ("claude", ".claude/settings.json", {"enabledPlugins": {"a@b": True}, "hooks": {"PostToolUse": []}}),
    ("gemini", ".env", "GEMINI_API_KEY=x\nGEMINI_MODEL=y\n"),
    ("gemini", ".env", "A=1\n# PATH=/x\n"),
    ("codex", ".codex/config.toml", "model = 'x'\n[features]\nhooks = true\n"),
    ("gemini", ".gemini/settings.json", {"hooksConfig": {"enabled": True, "disabled": ["other"]}, "hooks": {}}),
    ("qwen", ".qwen/settings.json", {"disableAllHooks": False, "env": {"A": "1"}}),
    ("qwen", ".env", "A=1\n"),
    ("kimi", ".kimi-code/config.toml", "hooks = []\n"),
    ("copilot", ".github/hooks/x.json", {"version": 1, "hooks": {"PostToolUse": []}}),
    ("copilot", ".github/copilot/settings.json", {"disabledHooks": [], "enabledPlugins": {"a@b": False}}),
    ("copilot", ".github/agents/x.agent.md", "---\nname: x\ndescription: about React hooks\n---\nUse hooks.\n"),
]  # fmt: skip
OUTRANKED = ("claude", "codex")


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository, below the user's home."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CALLGATE_HOME", str(tmp_path / "gate"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir(work)
    return work


def write(directory: Path, name: str, content: Any) -> Path:
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def home() -> str:
    return os.environ["CALLGATE_HOME"]


@pytest.mark.parametrize(("agent", "name", "content"), OFF)
def test_status_serve_and_doctor_name_the_file_that_turns_hooks_off(
    agent: str, name: str, content: Any, workspace: Path
) -> None:
    assert main(["hook", "install", agent]) == 0
    assert checks.warnings(home(), [str(workspace)]) == []
    path = write(workspace, name, content)
    found = checks.look(home(), agent, str(workspace), 65.0)
    assert any(str(path) in each.reason for each in found.problems)
    assert not found.is_protected
    assert any(str(path) in each for each in checks.warnings(home(), [str(workspace)]))


@pytest.mark.parametrize(("agent", "name", "content"), OFF)
def test_settings_in_a_directory_above_count_too(agent: str, name: str, content: Any, workspace: Path) -> None:
    path = write(workspace, name, content)
    below = workspace / "a/b"
    below.mkdir(parents=True)
    assert any(str(path) in each for each in hook_switches.in_files(agent, str(below), home()))


@pytest.mark.parametrize(("agent", "name", "content"), HARMLESS)
def test_other_settings_are_not_reported(agent: str, name: str, content: Any, workspace: Path) -> None:
    assert main(["hook", "install", agent]) == 0
    write(workspace, name, content)
    assert hook_switches.in_files(agent, str(workspace), home()) == []


@pytest.mark.parametrize(
    ("agent", "name", "content"), [each for each in OFF if each[0] not in OUTRANKED or "env" in each[2]]
)
def test_the_sandbox_refuses_an_agent_whose_hooks_are_off(
    agent: str, name: str, content: Any, workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(workspace, name, content)
    assert main(["sandbox", "--", KNOWN[agent].program]) != 0
    shown = capsys.readouterr().err
    assert str(path) in shown
    assert "--no-hooks" in shown


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        ("claude", ["--bare"]),
        ("claude", ["-p", "go", "--safe-mode"]),
        ("claude", ["--settings", "{}"]),
        ("claude", ["--settings={}"]),
        ("codex", ["--disable", "hooks"]),
        ("codex", ["exec", "--disable=codex_hooks", "go"]),
        ("codex", ["-c", "features.hooks=false"]),
        ("codex", ["-cfeatures.hooks=false"]),
        ("codex", ["-c=features={hooks=false}"]),
        ("codex", ["--config", "features.hooks=false"]),
        ("codex", ["--config=features.codex_hooks=false"]),
        ("qwen", ["--bare"]),
        ("qwen", ["--safe-mode"]),
        ("qwen", ["--safeMode=true"]),
        ("opencode", ["run", "--pure"]),
    ],
)
def test_the_sandbox_refuses_options_that_turn_hooks_off(
    agent: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sandbox", "--", KNOWN[agent].program, *words]) != 0
    assert "would run without callgate's hooks: the option -" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("agent", "words"),
    [("codex", ["exec", "-c", "model=x", "go"]), ("claude", ["-p", "go"]), ("codex", ["--disable", "apps"])],
)
def test_other_options_are_not_refused(agent: str, words: list[str]) -> None:
    assert hook_switches.in_arguments(agent, words) == []


@pytest.mark.parametrize("agent", ["claude", "qwen"])
def test_variables_that_turn_hooks_off_are_reported(agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["hook", "install", agent]) == 0
    (first, *_) = hooks_of(agent).switches.variables
    for value, count in (("1", 1), ("true", 1), ("0", 0), ("", 0)):
        monkeypatch.setenv(first, value)
        assert len(hook_switches.in_environment(agent, os.environ)) == count
    monkeypatch.setenv(first, "1")
    assert any(first in each.reason for each in checks.look(home(), agent, os.getcwd(), 65.0).problems)


def test_a_repository_cannot_know_the_name_of_the_hook_of_gemini(tmp_path: Path) -> None:
    assert main(["hook", "install", "gemini"]) == 0
    (entry,) = json.loads((tmp_path / ".gemini/settings.json").read_text())["hooks"]["BeforeTool"]
    name = entry["hooks"][0]["name"]
    assert name == hook_name(home(), "gemini") != "callgate"


def test_trust_warns(workspace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hook", "install", "gemini"]) == 0
    path = write(workspace, ".gemini/settings.json", {"hooksConfig": {"enabled": False}})
    capsys.readouterr()
    assert main(["trust", str(workspace)]) == 0
    assert f"{path} turns all hooks off" in capsys.readouterr().err
    assert main(["trust", str(workspace), "--json"]) == 0
    assert str(path) in json.loads(capsys.readouterr().out)["warnings"][0]


def test_serve_warns(workspace: Path) -> None:
    assert main(["hook", "install", "claude"]) == 0
    path = write(workspace, ".claude/settings.json", {"disableAllHooks": True})
    command = [sys.executable, "-m", "callgate"]
    serve = [*command, "serve", "--detach", "--no-http"]
    started = subprocess.run(serve, capture_output=True, text=True, timeout=60, check=True)
    subprocess.run([*command, "stop", "--now"], capture_output=True, timeout=60, check=True)
    assert f"{path} turns all hooks off" in started.stderr


def test_the_first_session_in_a_directory_warns_once(workspace: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert main(["hook", "install", "gemini"]) == 0
    path = write(workspace, ".gemini/settings.json", {"hooks": None})
    wired = Wired(Home(home()), audit=False)
    directories = ServedDirectories(wired, [str(workspace)], Mode.ASK)
    AgentHooks(wired, directories, Draining())
    with caplog.at_level(logging.WARNING, "callgate.hooks"):
        for id in ("one", "two"):
            directories.open_session(str(workspace), id)
    assert [str(path) in each.getMessage() for each in caplog.records] == [True]


@pytest.mark.parametrize("agent", ["claude", "gemini", "qwen"])
def test_managed_settings_are_printed_with_hooks_that_nothing_turns_off(
    agent: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managed = write(tmp_path, "etc/settings.json", '{"model": "x"}')
    row = msgspec.structs.replace(hooks_of(agent).switches, managed=str(managed))
    hooks = msgspec.structs.replace(hooks_of(agent), switches=row)
    monkeypatch.setitem(KNOWN, agent, msgspec.structs.replace(KNOWN[agent], hooks=hooks))
    assert main(["hook", "install", agent, "--managed"]) == 0
    printed = capsys.readouterr()
    assert str(managed) in printed.err
    settings = json.loads(printed.out)
    assert settings["model"] == "x"
    assert all(settings[name] == value for name, value in row.managed_settings)
    assert managed.read_text() == '{"model": "x"}'
    managed.write_text(printed.out)
    found = checks.look(home(), agent, os.getcwd(), 65.0)
    assert (found.file, [each.reason for each in found.problems]) == (str(managed), ["no callgate instance is running"])


def test_an_agent_without_managed_settings_is_an_error() -> None:
    assert main(["hook", "install", "kimi", "--managed"]) == 2


def test_a_script_of_another_version_is_a_problem(tmp_path: Path) -> None:
    assert main(["hook", "install", "kimi"]) == 0
    script = Path(home(), "hooks/kimi/hook")
    script.write_text(script.read_text().replace("-I -S", ""))
    assert any(str(script) in each.reason for each in checks.look(home(), "kimi", os.getcwd(), 65.0).problems)


def test_the_hook_uses_no_program_of_a_path_that_a_repository_sets(tmp_path: Path) -> None:
    assert main(["hook", "install", "claude"]) == 0
    fake = write(tmp_path, "bin/timeout", "#!/bin/sh\nprintf allowed\n")
    fake.chmod(0o755)
    env = {**os.environ, "PATH": str(fake.parent)}
    command = [str(Path(home(), "hooks/claude/hook")), "pre"]
    done = subprocess.run(command, input=b"{}", env=env, capture_output=True, check=True, timeout=60)
    assert b'"deny"' in done.stdout


def test_a_pipe_in_the_place_of_settings_counts_as_a_switch_and_is_not_waited_for(workspace: Path) -> None:
    (workspace / ".gemini").mkdir()
    os.mkfifo(workspace / ".gemini/settings.json")
    assert hook_switches.in_files("gemini", str(workspace), home())
    assert checks.installed_files(home(), "gemini", str(workspace)) == {}
    with pytest.raises(CliError, match="not a regular file"):
        editing.read(str(workspace / ".gemini/settings.json"))
