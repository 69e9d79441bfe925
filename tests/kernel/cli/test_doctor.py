"""`callgate doctor` answers what a person wants to know, and names the command that helps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from callgate.cli.commands.checks import all_checks
from callgate.cli.commands.doctor import QUESTIONS, Facts, verdicts
from callgate.cli.findings import AgentHere, Finding, Level
from tests.kernel.cli.instances import short_directory
from tests.kernel.cli.running import AtTerminal, callgate, start
from tests.needs import needs

FACTS = Facts(approvals=("terminal",), agents=(), has_instance=False, has_records=True, has_sandbox=True)
CHECKS = all_checks()
CLAUDE = AgentHere("claude", "Claude Code", is_guarded=True, is_installed=False)
CODEX = AgentHere("codex", "Codex", is_guarded=False, is_installed=True)
GOOD = {name: Finding(Level.OK, "in order") for name in CHECKS}


def answers(facts: Facts = FACTS, **changed: Finding) -> dict[str, tuple[str, Level]]:
    found = verdicts({**GOOD, **changed}, facts)
    return {each.question: (each.answer, each.level) for each in found}


def test_every_check_that_can_fail_belongs_to_a_question() -> None:
    asked = {name for question in QUESTIONS for name in question.checks}
    alone = {"terminal", "limits", "landlock", "seccomp", "supervisor", "namespaces", "bubblewrap"}
    assert CHECKS.keys() - asked <= alone
    assert asked <= CHECKS.keys()


@pytest.mark.parametrize("check", sorted({name for question in QUESTIONS for name in question.checks}))
def test_a_failed_check_fails_the_verdict_of_its_question(check: str) -> None:
    found = verdicts({**GOOD, check: Finding(Level.FAILED, "it is broken", "callgate fix")}, FACTS)
    failed = [each for each in found if each.level is Level.FAILED]
    assert [check in each.checks for each in failed] == [True]
    assert failed[0].problems == (Finding(Level.FAILED, "it is broken", "callgate fix"),)
    assert "yes" not in failed[0].answer and failed[0].answer != "whole"


def test_answers_name_where_approvals_arrive_and_which_agents_are_protected() -> None:
    facts = FACTS._replace(approvals=("terminal", "dashboard"), agents=(CLAUDE,), has_instance=True)
    found = answers(facts)
    assert found["Approvals reach you"] == ("terminal, dashboard", Level.OK)
    assert found["Agents are protected"] == ("Claude Code", Level.OK)
    assert answers(facts._replace(has_instance=False))["Agents are protected"] == (
        "Claude Code; every call is refused now",
        Level.NOTE,
    )
    [agents] = [each for each in verdicts(GOOD, FACTS._replace(agents=(CODEX,))) if "Agents" in each.question]
    assert agents.answer == "none"
    assert agents.problems == (Finding(Level.NOTE, "Codex is installed here", "callgate protect codex"),)
    assert answers(FACTS._replace(approvals=()))["Approvals reach you"][1] is Level.NOTE
    off = answers(FACTS._replace(has_sandbox=False))
    assert off["Commands are sandboxed"][0] == "no, the settings switch the sandbox off"


def test_without_features_the_rest_is_checked_and_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callgate.cli.commands.checks.load", lambda name: None)
    kernel = all_checks()
    assert CHECKS.keys() - kernel.keys() == {"servers", "shared", "hooks", "models"}
    found = verdicts({name: GOOD[name] for name in kernel}, FACTS)
    gone = {"Agents are protected", "Model"}
    assert [each.question for each in found] == [each.text for each in QUESTIONS if each.text not in gone]


def test_wrong_settings_are_reported_once() -> None:
    wrong = Finding(Level.FAILED, "settings.toml:1: wrong", "correct it")
    found = verdicts({**GOOD, "settings": wrong, "tools": wrong}, FACTS)
    assert [each.question for each in found if wrong in each.problems] == ["Settings are valid"]
    assert {each.question for each in found if each.level is Level.FAILED} == {"Settings are valid", "Tools"}


@needs("bwrap")
def test_a_healthy_home_gets_one_line_a_question(ws: Path, home: Path) -> None:
    callgate("call", "read_file", "path=a.txt", cwd=ws)
    ran = callgate("doctor", cwd=ws)
    assert ran.code == 0
    for line in (
        "Commands are sandboxed: yes.",
        "Audit log: intact.",
        "Settings are valid: yes.",
        "This machine is supported: yes.",
        "Model: none configured; tools work without one.",
        "An instance runs: no, each command runs alone.",
    ):
        assert line in ran.out.splitlines(), ran.out
    assert str(home) not in ran.out
    more = callgate("doctor", "-v", cwd=ws).out
    assert more.startswith(ran.out.partition("Storage")[0])
    assert f"{home}/audit.jsonl" in more
    named = {row.split()[1] for row in more.splitlines() if row.split()[:1] in (["ok"], ["note"], ["failed"])}
    assert named == CHECKS.keys()
    described = callgate("doctor", "--json", cwd=ws).json
    assert [each["question"] for each in described["verdicts"]] == [each.text for each in QUESTIONS]


def test_a_person_at_a_terminal_is_told_that_questions_reach_it(ws: Path, home: Path) -> None:
    assert "Approvals reach you: terminal.\n" in AtTerminal("doctor", cwd=ws).end().out


@pytest.fixture
def served() -> Iterator[tuple[Path, dict[str, str]]]:
    with short_directory() as place:
        workspace, home = place / "ws", place / "home"
        workspace.mkdir()
        home.mkdir(mode=0o700)
        env = {"CALLGATE_HOME": str(home)}
        instance = start("serve", "--http", "127.0.0.1:0", cwd=workspace, env=env)
        try:
            assert instance.stdout is not None
            assert b"listening" in instance.stdout.readline()
            yield workspace, env
        finally:
            instance.terminate()
            instance.communicate(timeout=60)


def test_an_instance_with_a_dashboard_is_a_way_to_approve(served: tuple[Path, dict[str, str]]) -> None:
    workspace, env = served
    out = callgate("doctor", cwd=workspace, env=env).out.splitlines()
    assert {"Approvals reach you: dashboard.", "An instance runs: yes."} <= {*out}


def test_the_commands_that_doctor_prints_run(ws: Path, home: Path) -> None:
    (home / "settings.toml").write_text('model = "mine"\n[models.mine]\nkind = "anthropic"\nmodel = "m"\n')
    for _ in range(2):  # the second record contains the hash of the first
        callgate("call", "read_file", "path=a.txt", cwd=ws)
    log = home / "audit.jsonl"
    log.write_bytes(log.read_bytes().replace(b"a.txt", b"b.txt"))
    env = {"ANTHROPIC_API_KEY": "", "OPENAI_API_KEY": ""}
    ran = callgate("doctor", cwd=ws, env=env)
    assert ran.code == 1
    assert "Audit log: NOT intact." in ran.out and "Model: mine has no key." in ran.out
    fixes = re.findall(r"-> callgate (.+)", ran.out)
    assert {"audit verify", "keys set mine"} <= {*fixes}
    assert callgate("audit", "verify", cwd=ws).code == 1
    assert callgate("keys", "set", "mine", cwd=ws, stdin=b"sk-x\n").code == 0
    assert "Model: mine, key from stored mine." in callgate("doctor", cwd=ws, env=env).out


def test_a_mistake_in_the_settings_is_named_with_its_line(ws: Path, home: Path) -> None:
    (home / "settings.toml").write_text("\nmode = 5\n")
    ran = callgate("doctor", cwd=ws)
    assert ran.code == 1
    assert "Settings are valid: NO.\n" in ran.out
    assert ran.out.count(f"{home}/settings.toml:2") == 1
    assert f"-> correct {home}/settings.toml, then callgate doctor\n" in ran.out
