"""At a terminal: questions are put there, also where the streams lead elsewhere."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest

from callgate.cli.ui.terminal import wants_colour
from tests.kernel.cli.running import AtTerminal, Ran, callgate

WRITE = ("call", "write_file", "path=b.txt", "content=x", "--json")
SHELL = ("call", "shell", "command=touch b.txt", "--json")


@pytest.mark.parametrize("keys", ["y\n", "a\n"])
def test_yes_at_the_terminal_runs_the_call(keys: str, ws: Path) -> None:
    asked = AtTerminal(*WRITE, cwd=ws)
    ran = asked.answer(keys).end()
    assert (ran.code, ran.json["files_modified"]) == (0, ["b.txt"])
    assert (ws / "b.txt").read_text() == "x"


@pytest.mark.parametrize("keys", ["n\n", "never\n", "\n", "\x04"])
def test_anything_but_yes_runs_nothing(keys: str, ws: Path) -> None:
    ran = AtTerminal(*WRITE, cwd=ws).answer(keys).end()
    assert (ran.code, ran.json["error"]["class"]) == (3, "user_denied")
    assert not (ws / "b.txt").exists()


def test_ctrl_c_at_the_question_cancels_the_call(ws: Path) -> None:
    ran = AtTerminal(*WRITE, cwd=ws).answer("\x03").end()
    assert (ran.code, ran.json["error"]["class"]) == (130, "cancelled")
    assert not (ws / "b.txt").exists()


def test_ctrl_c_stops_a_running_command(ws: Path) -> None:
    started = AtTerminal("call", "shell", "command=echo begun; sleep 600", "-v", cwd=ws)
    started.answer("y\n")
    assert started.process.stderr is not None
    while started.process.stderr.readline() != b"begun\n":
        pass
    started.terminal.press("\x03")
    ran = started.end()
    assert (ran.code, ran.out) == (130, "begun\n[stopped before it ended]\n")


def test_a_question_is_put_to_the_terminal_while_stdin_brings_the_arguments(ws: Path) -> None:
    arguments = json.dumps({"path": "b.txt", "content": "piped"}).encode()
    asked = AtTerminal("call", "write_file", "--args", "-", cwd=ws, stdin=arguments)
    ran = asked.answer("y\n").end()
    assert (ran.code, ran.err) == (0, "")
    assert (ws / "b.txt").read_text() == "piped"


def test_the_question_shows_the_diff_and_the_workspace(ws: Path) -> None:
    asked = AtTerminal("call", "patch_file", "path=a.txt", "old=two", "new=2", cwd=ws)
    shown = asked.asked().replace("\r\n", "\n")
    asked.answer("n\n").end()
    assert f"  workspace  {ws}" in shown.replace("\n" + " " * 13, "")
    assert "\n  changes    a.txt\n" in shown
    assert "-two" in shown
    assert "+2" in shown
    assert "\x1b[32m" in shown


def test_without_colour_nothing_but_text_is_written(ws: Path) -> None:
    asked = AtTerminal(*WRITE, cwd=ws, env={"NO_COLOR": "1"})
    shown = asked.asked()
    asked.answer("n\n").end()
    assert "\x1b" not in shown.removeprefix("\x1b[?2004h")  # marks what is pasted


def test_no_input_asks_nothing(ws: Path) -> None:
    ran = AtTerminal(*WRITE, "--no-input", cwd=ws).end()
    assert (ran.code, ran.json["error"]["reason"]) == (3, "no_confirmer")


def test_a_read_asks_nothing(ws: Path) -> None:
    started = AtTerminal("call", "read_file", "path=a.txt", cwd=ws)
    ran = started.end()
    assert (ran.code, started.terminal.written) == (0, b"")


def test_a_saved_answer_is_a_rule_that_is_not_asked_again(ws: Path, home: Path) -> None:
    asked = AtTerminal(*SHELL, cwd=ws)
    asked.answer("s\n")
    asked.asked(2)
    asked.terminal.press("touch *.txt\n")
    assert asked.end().code == 0
    assert tomllib.loads((home / "rules.toml").read_text())["rules"] == [
        {"decision": "allow", "tool": "shell", "workspace": os.path.realpath(ws), "command": "touch *.txt", "path": "."}
    ]
    assert callgate("call", "shell", "command=touch c.txt", cwd=ws).code == 0
    assert callgate("call", "shell", "command=touch c.md", cwd=ws).code == 3


def test_the_record_says_who_answered(ws: Path, home: Path) -> None:
    AtTerminal(*WRITE, cwd=ws).answer("y\n").end()
    assert '"terminal"' in (home / "audit.jsonl").read_text()


@pytest.mark.spec("T16")
@pytest.mark.usefixtures("tools")
def test_a_result_cannot_act_on_a_terminal(ws: Path) -> None:
    started = AtTerminal("call", "escape", cwd=ws, streams_too=True)
    shown = started.terminal.read_until(lambda text: text.endswith("\n"))
    assert started.end() == Ran(0, "", "")
    assert shown == "\\x1b[2Jgone\\x9b1A\r\n"


@pytest.mark.spec("T16")
@pytest.mark.usefixtures("tools")
def test_an_envelope_cannot_act_on_a_terminal(ws: Path) -> None:
    started = AtTerminal("call", "escape", "--json", cwd=ws, streams_too=True)
    shown = started.terminal.read_until(lambda text: text.endswith("\n"))
    started.end()
    assert shown.removesuffix("\r\n").isprintable()


def test_live_output_is_not_shown_twice_on_one_terminal(ws: Path) -> None:
    words = ("call", "shell", "command=echo $((40+2))", "-v", "--yes")
    started = AtTerminal(*words, cwd=ws, streams_too=True)
    shown = started.terminal.read_until(lambda text: "embedded runtime" in text)
    started.end()
    assert shown.count("42\r\n") == 1


@pytest.mark.parametrize(
    ("is_terminal", "environ", "wanted"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (False, {"FORCE_COLOR": "1"}, True),
        (True, {"FORCE_COLOR": "0"}, False),
        (False, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (True, {"TERM": "dumb", "FORCE_COLOR": "1"}, True),
    ],
)
def test_colour_is_wanted_where_the_environment_and_the_stream_say_so(
    is_terminal: bool, environ: dict[str, str], wanted: bool
) -> None:
    assert wants_colour(is_terminal, environ) is wanted


def test_what_is_asked_at_one_terminal_may_be_answered_from_another(ws: Path) -> None:
    asked = AtTerminal(*WRITE, cwd=ws)
    asked.asked()
    (question,) = callgate("confirmations", "list", "--json", cwd=ws).json["confirmations"]
    told = callgate("confirmations", "allow", question["id"], cwd=ws)
    assert told.code == 0
    ran = asked.end()
    assert (ran.code, ran.json["files_modified"]) == (0, ["b.txt"])
    late = callgate("confirmations", "deny", question["id"], cwd=ws)
    assert late.code == 1


def test_a_call_that_waits_asks_nobody_here_and_takes_the_answer_from_elsewhere(ws: Path) -> None:
    waiting = AtTerminal(*WRITE, "--wait", cwd=ws)
    assert waiting.process.stderr is not None
    said = waiting.process.stderr.readline().decode().split()
    assert said[-4:-1] == ["callgate", "confirmations", "allow"]
    assert callgate("confirmations", "deny", said[-1], "--reason", "not now", cwd=ws).code == 0
    ran = waiting.end()
    assert (ran.code, ran.json["error"]["class"]) == (3, "user_denied")
    assert "not now" in ran.json["error"]["message"]


def test_what_a_command_would_do_can_be_seen_before_it_is_answered(ws: Path) -> None:
    asked = AtTerminal("call", "shell", "command=echo hi; cp a.txt b.txt", "--json", cwd=ws)
    asked.answer("p\n")
    shown = asked.asked(mark="in this session > ")
    assert "| hi" in shown
    assert "+one" in shown
    assert not (ws / "b.txt").exists()
    ran = asked.answer("y\n").end()
    assert ran.code == 0
    assert (ws / "b.txt").read_text() == (ws / "a.txt").read_text()
    assert ran.json["files_modified"] == ["b.txt"]


_HINT = "callgate init --read-commands allow"


def _asked(ws: Path, *commands: str) -> list[bool]:
    """Whether the question of each command has the hint, where all wait together."""
    waiting = [AtTerminal("call", "shell", f"command={each}", cwd=ws) for each in commands]
    shown = [" ".join(each.asked().split()) for each in waiting]
    for each in waiting:
        assert each.answer("n\n").end().code == 3
    return [_HINT in each for each in shown]


def test_the_third_question_of_separate_calls_mentions_the_setting_once(ws: Path) -> None:
    assert callgate("call", "shell", "command=ls", cwd=ws).code == 3, "nobody was asked"
    assert [_asked(ws, each) for each in ("ls", "touch x", "cat a.txt")] == [[False]] * 3
    assert sum(_asked(ws, "pwd", "ls -a", "cat a.txt")) == 1, "at the same time"
    assert not any(_asked(ws, "ls"))


def test_the_setting_is_not_mentioned_once_it_is_made(ws: Path) -> None:
    assert [_asked(ws, each) for each in ("ls", "ls")] == [[False]] * 2
    assert callgate("init", "--read-commands", "ask", cwd=ws).code == 0
    assert [_asked(ws, each) for each in ("ls", "ls")] == [[False]] * 2
