"""An agent that is added as one module is installed, checked, read, confined and documented."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from callgate.cli.main import main
from callgate.features.agents import known
from callgate.features.agents.agent_homes import open_view
from callgate.features.agents.commands import checks
from callgate.features.agents.hooks import events
from callgate.features.agents.hooks.agent_tools import translate
from callgate.features.agents.known import settings_files
from tests.features.agents.commands.made_up import AGENT
from tests.features.agents.test_known_agents import row


@pytest.fixture(autouse=True)
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(known.KNOWN, AGENT.name, AGENT)
    for variable, name in (("HOME", ""), ("CALLGATE_HOME", "gate"), ("MADEUP_HOME", "elsewhere")):
        monkeypatch.setenv(variable, str(tmp_path / name))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_its_hook_is_installed_where_the_agent_reads_it_and_removed(person: Path) -> None:
    settings = person / "elsewhere/settings.json"
    assert main(["hook", "install", "madeup"]) == 0
    assert set(json.loads(settings.read_text())["hooks"]) == {"about_to", "done"}
    assert main(["hook", "remove", "madeup"]) == 0
    assert not settings.exists()


def test_its_status_has_a_verdict_and_notes(person: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hook", "install", "madeup"]) == 0
    found = checks.look(str(person / "gate"), "madeup", str(person), 65.0)
    assert found.verdict is checks.ProtectionState.BLOCKED  # no instance runs
    capsys.readouterr()
    assert main(["hook", "status", "madeup"]) == 1
    printed = capsys.readouterr().out
    assert "Made-up Agent (mua is not in PATH): blocked" in printed
    assert "If it rains, the call runs." in printed
    (person / ".madeup").mkdir()
    (person / ".madeup/settings.json").write_text('{"disableAllHooks": true}')
    found = checks.look(str(person / "gate"), "madeup", str(person), 65.0)
    assert found.verdict is checks.ProtectionState.EXPOSED


def test_its_events_are_read_and_answered() -> None:
    data = {"when": "about_to", "talk": "t", "where": "/w", "what": "sh", "with": {"command": "ls"}}
    event = events.read("madeup", json.dumps(data).encode())
    assert translate(event, {}, "madeup").arguments == {"command": "ls", "cwd": "/w"}
    assert json.loads(events.refusal("madeup", "no")) == {"go": False, "deny": "no"}


def test_it_is_known_in_the_sandbox_with_its_directories(person: Path) -> None:
    name, agent = known.find(["npx", "made-up-agent@1", "--acp"])
    assert (name, agent) == ("made-up-agent", AGENT)
    workspace = person / "work"
    workspace.mkdir()
    given = {"MADEUP_HOME": str(person / "elsewhere")}
    with open_view(agent, str(person), given, str(person / "gate"), workspace=str(workspace), persists=True) as view:
        assert [root.path for root in view.roots] == [str(person / "elsewhere")]
        writable = {each.path: each.writable for each in view.replacements}
    assert writable[str(person / "elsewhere/talks")]
    assert not writable[str(person / "elsewhere/settings.json")]


def test_its_settings_are_out_of_reach_of_every_agent(person: Path) -> None:
    files = list(settings_files("madeup", str(person)))
    assert str(person / "elsewhere/settings.json") in files


def test_it_has_a_row_in_the_page_on_agents() -> None:
    assert row(AGENT) == "| Made-up Agent | `~/.madeup/`: `talks` | `~/.madeup/`: `login.json` |"
