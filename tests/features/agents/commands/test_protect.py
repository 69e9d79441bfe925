"""`callgate protect` puts an agent behind callgate in one command, and `--undo` takes it back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from callgate.config.instance_records import is_alive
from callgate.features.agents.commands import instance_start
from callgate.features.agents.known import hooked
from callgate.socket.instances import live
from tests.kernel.cli.running import CALLGATE, AtTerminal, Ran, callgate
from tests.needs import needs

SYSTEMCTL = """#!{python}
import os, subprocess, sys
state, words = {state!r}, sys.argv[1:]
assert words[0] == "--user", words
with open(os.path.join(state, "log"), "a") as log:
    log.write(" ".join(words[1:]) + "\\n")
enabled, verb = os.path.join(state, "enabled"), words[1]
if verb == "show-environment":
    sys.exit(os.path.exists(os.path.join(state, "missing")))
if verb == "is-enabled":
    sys.exit(not os.path.exists(enabled))
if verb == "enable":
    open(enabled, "w").close()
    if "--now" in words:
        sys.exit(subprocess.call([{callgate!r}, "serve", "--detach", "--trusted"]))
if verb == "disable":
    os.unlink(enabled)
    sys.exit(subprocess.call([{callgate!r}, "stop", "--now"]))
"""
"""Stands for systemd: starts an instance as the unit would."""


class Person:
    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.gate, self.work = path, path / "gate", path / "work"
        self.state, programs = path / "systemd", path / "bin"
        for each in (self.work, self.state, programs):
            each.mkdir()
        self.add_program("systemctl", SYSTEMCTL.format(python=sys.executable, state=str(self.state), callgate=CALLGATE))
        monkeypatch.setenv("HOME", str(path))
        monkeypatch.setenv("CALLGATE_HOME", str(self.gate))
        monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
        monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)

    def add_program(self, name: str, text: str = "#!/bin/sh\nexit 1\n") -> None:
        program = self.path / "bin" / name
        program.write_text(text)
        program.chmod(0o755)

    def without_systemd(self) -> None:
        (self.state / "missing").touch()

    def run(self, *words: str, cwd: Path | None = None) -> Ran:
        return callgate("protect", *words, cwd=cwd or self.work)

    def at_terminal(self, *words: str) -> AtTerminal:
        return AtTerminal("protect", *words, cwd=self.work)

    @property
    def systemd(self) -> list[str]:
        """What systemctl was told to change."""
        log = self.state / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        return [each for each in lines if not each.startswith(("show-environment", "is-enabled"))]

    @property
    def settings(self) -> Path:
        return self.path / ".claude/settings.json"

    def verdict(self, agent: str = "claude") -> str:
        ran = callgate("hook", "status", agent, "--json", cwd=self.work)
        return str(ran.json[0]["verdict"])


@pytest.fixture
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Person]:
    person = Person(tmp_path, monkeypatch)
    yield person
    while live(str(person.gate)):
        assert callgate("stop", "--now", str(live(str(person.gate))[0].pid), cwd=tmp_path).code == 0


def test_one_command_protects_and_a_second_run_asks_nothing(person: Person) -> None:
    person.without_systemd()
    ran = person.at_terminal("claude").answer("y\n").end()
    assert ran.code == 0, ran
    assert "Claude Code is protected in this directory" in ran.out
    assert "callgate serve --detach --trusted" in ran.out  # what to do without systemd
    assert person.verdict() == "protected"
    before, pid = person.settings.read_bytes(), live(str(person.gate))[0].pid
    again = person.run("claude")
    assert again.code == 0, again
    assert person.settings.read_bytes() == before
    assert live(str(person.gate))[0].pid == pid


def test_a_directory_that_is_not_trusted_is_refused_and_the_named_command_opens_it(person: Person) -> None:
    ran = person.run("claude", "--no-trust", "--no-service")
    assert ran.code == 3
    assert "Claude Code is blocked in this directory" in ran.out
    command = ran.out[ran.out.index("fix  callgate ") + 5 :].splitlines()[0].split()
    assert command[1] == "trust"
    assert callgate(*command[1:], cwd=person.path).code == 0
    assert person.run("claude").code == 0


def test_without_a_terminal_and_options_nothing_is_trusted_or_kept(person: Person) -> None:
    ran = person.run("claude")
    assert (ran.code, person.systemd) == (3, [])
    assert callgate("trust", "--list", cwd=person.work).out == ""
    assert person.verdict() == "blocked"


def test_interrupted_at_the_question_about_trust_the_next_run_completes(person: Person) -> None:
    person.without_systemd()
    ran = person.at_terminal("claude").answer("\x03").end()
    assert ran.code == 130
    assert "callgate protect claude continues" in ran.err
    assert person.verdict() == "blocked"
    assert callgate("trust", "--list", cwd=person.work).out == ""
    assert person.run("claude", "--trust").code == 0


def test_interrupted_at_the_question_about_the_service_the_next_run_asks_again(person: Person) -> None:
    ran = person.at_terminal("claude").answer("\x03").end()
    assert ran.code == 130
    assert live(str(person.gate)) == []
    terminal = person.at_terminal("claude").answer("y\n")
    terminal.asked(2)
    terminal.terminal.press("y\n")
    assert terminal.end().code == 0
    unit = instance_start.unit_name(str(person.gate))
    assert person.systemd == ["daemon-reload", f"enable --now {unit}"]


def test_interrupted_before_the_service_is_enabled_the_next_run_enables_it(person: Person) -> None:
    unit = Path(instance_start.unit_file(str(person.gate)))
    unit.parent.mkdir(parents=True)
    unit.write_text(instance_start.unit_text(str(person.gate)))
    ran = person.run("claude", "--trust")
    assert ran.code == 0, ran
    assert person.systemd == ["daemon-reload", f"enable --now {unit.name}"]


SLOW = """#!/bin/sh
[ "$1" = --version ] && exec echo 1.0
echo $$ > {started}
exec sleep 600
"""


def test_interrupted_during_the_test_no_program_is_left_and_the_next_run_completes(person: Person) -> None:
    person.without_systemd()
    started = person.path / "started"
    os.mkfifo(started)
    person.add_program("kimi", SLOW.format(started=started))
    terminal = person.at_terminal("kimi", "--trust")
    with started.open() as file:
        pid = int(file.read())
    terminal.terminal.press("\x03")
    ran = terminal.end()
    assert ran.code == 130
    assert "callgate protect kimi continues" in ran.err
    assert not is_alive(pid)
    (person.path / "bin/kimi").unlink()
    assert person.run("kimi").code == 0


def test_the_question_names_a_directory_that_contains_the_users_home(person: Person) -> None:
    person.without_systemd()
    terminal = AtTerminal("protect", "claude", cwd=person.path)
    assert "contains your home" in terminal.asked()
    assert terminal.answer("n\n").end().code == 3


def test_undo_restores_settings_and_removes_service_trust_and_instance(person: Person) -> None:
    person.settings.parent.mkdir()
    person.settings.write_text('{"model": "x"}')
    assert person.run("claude", "--yes").code == 0
    unit = Path(instance_start.unit_file(str(person.gate)))
    assert unit.exists()
    ran = person.run("--undo", "claude")
    assert ran.code == 0
    assert person.settings.read_text() == '{"model": "x"}'
    assert not unit.exists()
    assert person.systemd[-2:] == [f"disable --now {unit.name}", "daemon-reload"]
    assert live(str(person.gate)) == []
    assert callgate("trust", "--list", cwd=person.work).out == ""
    assert person.run("--undo", "claude").out == "There is nothing to undo.\n"


def test_undo_of_one_agent_leaves_what_another_needs(person: Person) -> None:
    assert person.run("claude", "kimi", "--trust", "--no-service").code == 0
    person.run("--undo", "claude")
    assert person.verdict("kimi") == "protected"
    ran = person.run("--undo", "kimi")
    assert "was stopped" in ran.out
    assert live(str(person.gate)) == []


def test_trust_that_was_there_before_stays(person: Person) -> None:
    callgate("trust", str(person.work), cwd=person.work)
    assert person.run("claude", "--no-service").code == 0
    person.run("--undo", "claude")
    assert callgate("trust", "--list", cwd=person.work).out.strip() == str(person.work)


def test_a_unit_of_somebody_else_is_not_changed_and_the_agent_is_protected_anyway(person: Person) -> None:
    unit = Path(instance_start.unit_file(str(person.gate)))
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\nExecStart=/bin/true\n")
    ran = person.run("claude", "--yes")
    assert ran.code == 0, ran
    assert "was not written by callgate" in ran.out
    assert unit.read_text() == "[Service]\nExecStart=/bin/true\n"
    person.run("--undo", "claude")
    assert unit.exists()


def test_the_question_about_trust_lists_settings_that_disable_or_add_hooks(person: Person) -> None:
    person.without_systemd()
    theirs = {"PreToolUse": [{"hooks": [{"type": "command", "command": "./theirs"}]}]}
    (person.work / ".claude").mkdir()
    (person.work / ".claude/settings.json").write_text(json.dumps({"disableAllHooks": True, "hooks": theirs}))
    terminal = person.at_terminal("claude")
    shown = "".join(terminal.asked().split())
    assert "turnsallhooksoff(disableAllHooks)" in shown
    assert "addshooks(PreToolUse)" in shown
    ran = terminal.answer("y\n").end()
    assert ran.code == 1
    assert "Claude Code is NOT protected in this directory" in ran.out
    assert ran.out.count("disableAllHooks") == 1


def test_directories_of_the_agent_that_are_not_trusted_are_counted_and_named(person: Person) -> None:
    for name in ("one", "two", "below"):
        (person.path / name).mkdir()
    (person.path / "one/inside").mkdir()
    names = ["one", "two", "gone", "work", "one/inside"]
    known = {"projects": {str(person.path / name): {} for name in names}}
    (person.path / ".claude.json").write_text(json.dumps(known))
    ran = person.run("claude", "--trust", "--no-service")
    assert "Claude Code is protected in this directory; 3 more directories are not:" in ran.out
    assert str(person.path / "two") in ran.out
    callgate("trust", str(person.path / "one"), cwd=person.work)  # and what is in it
    ran = person.run("claude")
    assert "Claude Code is protected in this directory; 1 more directory is not:" in ran.out


def test_other_directories_of_an_agent_without_a_list_are_called_unknown(person: Person) -> None:
    ran = person.run("vibe", "--trust", "--no-service")
    assert ran.code == 0, ran
    assert "callgate cannot list them" in ran.out


def test_without_a_name_the_agents_in_path_are_offered(person: Person) -> None:
    person.without_systemd()
    ran = person.run()
    assert ran.code == 1
    assert "claude" in ran.err
    person.add_program("cursor-agent")
    assert (person.run().code, person.run("nobody").code) == (2, 2)
    terminal = person.at_terminal()
    assert "Protect Cursor?" in terminal.answer("y\n").asked(2)
    terminal.terminal.press("y\n")
    ran = terminal.end()
    assert ran.code == 0, ran
    assert "Cursor is protected in this directory" in ran.out


def test_the_report_as_json_has_the_same_facts(person: Person) -> None:
    person.without_systemd()
    ran = person.run("claude", "--trust", "--json")
    assert ran.code == 0
    report = ran.json
    assert (report["protected"], report["trusted"], report["directory"]) == (True, True, str(person.work))
    assert report["instance"]["service"] is None
    (agent,) = report["agents"]
    assert (agent["agent"], agent["problems"], agent["other_directories"]) == ("claude", [], [])


@pytest.mark.parametrize("agent", [each for each in hooked() if each != "codex"])
def test_the_hook_of_every_agent_is_tested_without_a_question(person: Person, agent: str) -> None:
    person.without_systemd()
    ran = person.run(agent, "--trust", "--json")
    assert ran.code == 0, ran
    ran = callgate("hook", "test", agent, "--json", cwd=person.work)
    assert (ran.code, ran.json["ok"]) == (0, True)
    assert callgate("confirmations", "--json", cwd=person.work).json["confirmations"] == []
    records = [json.loads(line) for line in (person.gate / "audit.jsonl").read_text().splitlines()]
    assert {each["reason"] for each in records if "tool" in each} == {"hook_test"}


def test_a_test_in_another_directory_names_the_command_that_trusts_it(person: Person, tmp_path: Path) -> None:
    person.run("claude", "--trust", "--no-service")
    other = tmp_path / "other one"
    other.mkdir()
    ran = callgate("hook", "test", "claude", cwd=other)
    assert ran.code == 1
    assert f"callgate trust '{other}'" in ran.out


def test_an_agent_whose_program_runs_the_call_is_not_protected(person: Person) -> None:
    """The program stands for an agent that skips its hook."""
    person.add_program("kimi", LAWLESS.format(python=sys.executable))
    ran = person.run("kimi", "--trust", "--no-service")
    assert ran.code == 1
    assert "NOT protected" in ran.out


LAWLESS = """#!{python}
import json, os, subprocess, sys, tomllib, urllib.request
if "--version" in sys.argv:
    sys.exit(print("1.0"))
settings = tomllib.load(open(os.path.join(os.environ["KIMI_CODE_HOME"], "config.toml"), "rb"))
url = settings["providers"]["scripted"]["base_url"] + "/chat/completions"
def ask(messages):
    body = json.dumps({{"messages": messages, "tools": [{{}}]}}).encode()
    lines = urllib.request.urlopen(urllib.request.Request(url, body)).read().decode().split("data: ")
    return json.loads(lines[1])["choices"][0]["delta"]
call = ask([{{"role": "user", "content": "go"}}])["tool_calls"][0]["function"]
output = subprocess.check_output(["sh", "-c", json.loads(call["arguments"])["command"]], text=True)
ask([{{"role": "user", "content": "go"}}, {{"role": "tool", "content": output}}])
"""


def test_a_line_break_in_a_directory_adds_no_line_to_the_unit() -> None:
    odd = "/x\nExecStartPre=/evil"
    lines = instance_start.unit_text(odd, {"PATH": f"{odd}:/usr/bin"}).splitlines()
    assert len(lines) == len(instance_start.unit_text("/x", {}).splitlines())


@needs("systemd-analyze")
def test_systemd_accepts_the_unit(person: Person, tmp_path: Path) -> None:
    odd = str(tmp_path / 'a "b" %h $HOME \\c')
    unit = tmp_path / "callgate-test.service"
    unit.write_text(instance_start.unit_text(odd, {"PATH": f"{odd}:/usr/bin:relative"}))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", str(unit)], capture_output=True, text=True, timeout=60,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_the_command_of_the_unit_starts_an_instance_of_the_home(person: Person) -> None:
    """systemd is not here: the line is split as systemd would split it."""
    text = instance_start.unit_text(str(person.gate))
    line = next(each for each in text.splitlines() if each.startswith("ExecStart="))
    command = [word.strip('"').replace("$$", "$").replace("%%", "%") for word in line[10:].split('" "')]
    assert command[0] == shutil.which(command[0])
    process = subprocess.Popen(command, cwd=person.path, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert "listening" in process.stdout.readline()
        (instance,) = live(str(person.gate))
        assert (instance.pid, instance.workspaces) == (process.pid, ())
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()
