"""`callgate acp` as a person meets it: what to paste, what is said at a terminal, the setup."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from callgate.cli.errors import USAGE
from callgate.cli.logs import set_up
from callgate.cli.options import EDITORS
from callgate.features.editor import setup as acp_editors
from callgate.features.editor import setup as acp_setup
from tests.kernel.cli.running import CALLGATE, AtTerminal, Terminal, callgate, environment

OPENS = "import os, sys; os.setsid(); os.open(os.ttyname(0), os.O_RDWR); os.execv(sys.argv[1], sys.argv[1:])"


def printed(editor: str, capsys: pytest.CaptureFixture[str], **given: Any) -> str:
    chosen = {"model": None, "mode": None, "v": False, "vv": False, "unstable": False, **given}
    assert acp_editors.show(SimpleNamespace(print_config=editor, **chosen)) == 0
    out, err = capsys.readouterr()
    assert err  # where it goes, apart from what is pasted
    return out


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "argv", [CALLGATE, "acp"])
    return CALLGATE


AGENT = {"args": ["acp", "--mode", "read", "-vv"], "env": {}}


def test_what_is_pasted_starts_this_very_callgate(capsys: pytest.CaptureFixture[str], program: str) -> None:
    given = {"mode": "read", "v": True, "vv": True}
    agent = {"command": program, **AGENT}
    assert json.loads(printed("zed", capsys, **given)) == {"agent_servers": {"callgate": {"type": "custom", **agent}}}
    assert json.loads(printed("jetbrains", capsys, **given)) == {"agent_servers": {"callgate": agent}}
    assert json.loads(printed("vscode", capsys, **given)) == {"acp.agents": {"callgate": agent}}
    assert f'{{ default = {{ "{program}", "acp", "--mode", "read", "-vv" }} }}' in printed("neovim", capsys, **given)
    emacs = printed("emacs", capsys, **given)
    assert f':command "{program}"' in emacs
    assert ':command-params \'("acp" "--mode" "read" "-vv")' in emacs


def test_a_name_cannot_end_the_text_that_it_stands_in(capsys: pytest.CaptureFixture[str], program: str) -> None:
    for editor in ("neovim", "emacs"):
        assert r'"a\"b\\c\n"' in printed(editor, capsys, model='a"b\\c\n')


def test_a_script_is_named_as_an_editor_finds_it(
    capsys: pytest.CaptureFixture[str], program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pasted = json.loads(printed("vscode", capsys, model="scripted:demo.toml"))
    assert pasted["acp.agents"]["callgate"]["args"] == ["acp", "--model", f"scripted/{tmp_path / 'demo.toml'}"]


def test_another_home_is_that_of_the_editor_too(
    capsys: pytest.CaptureFixture[str], program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLGATE_HOME", str(tmp_path / "other"))
    agent = json.loads(printed("zed", capsys))["agent_servers"]["callgate"]
    said = [agent["command"], *agent["args"][:-1], "--version"]
    assert agent["args"] == [f"CALLGATE_HOME={tmp_path / 'other'}", program, "acp"]
    assert subprocess.run(said, check=True, capture_output=True).stdout.startswith(b"callgate ")


def test_there_is_something_to_paste_for_every_editor_that_is_offered() -> None:
    assert set(acp_editors._EDITORS) == set(EDITORS)


def test_only_what_is_pasted_goes_to_stdout(ws: Path) -> None:
    ran = callgate("acp", "--print-config", "zed", cwd=ws)
    assert ran.code == 0
    assert os.path.isabs(json.loads(ran.out)["agent_servers"]["callgate"]["command"])


def test_at_a_terminal_it_says_in_two_lines_what_it_is_for(ws: Path) -> None:
    ran = AtTerminal("acp", cwd=ws, streams_too=True)
    said = ran.terminal.read_until(lambda text: text.count("\n") >= 2)
    assert ran.end().code == USAGE
    assert len(said.splitlines()) == 2
    assert "--print-config" in said


def test_words_and_wrong_options_are_refused(ws: Path) -> None:
    for given in (["now"], ["--mode", "all"], ["--print-config", "vi"]):
        ran = callgate("acp", *given, cwd=ws)
        assert (ran.code, ran.out) == (USAGE, "")


def test_inside_a_call_it_is_refused(ws: Path) -> None:
    ran = callgate("acp", cwd=ws, env={"CALLGATE_CALL": "1-x"})
    assert (ran.code, ran.out) == (3, "")


@pytest.mark.spec("S2-02")
def test_the_log_says_at_least_what_was_asked_for_and_more_if_the_environment_wants_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logger = logging.getLogger("callgate")
    before = (logger.handlers, logger.level, logger.propagate)
    try:
        for least, environ, level in (
            ("error", "", logging.ERROR),
            ("info", "", logging.INFO),
            ("debug", "", logging.DEBUG),
            ("info", "error", logging.INFO),
            ("info", "trace", 5),
        ):
            monkeypatch.setenv("CALLGATE_LOG", environ)
            set_up(False, least)
            assert logger.level == level
    finally:
        logger.handlers, logger.propagate = before[0], before[2]
        logger.setLevel(before[1])


def test_the_setup_asks_for_a_model_and_its_key_and_keeps_what_is_there(home: Path, ws: Path) -> None:
    (home / "settings.toml").write_text('# mine\n[tools]\ndisable = ["shell"]\n')
    terminal = Terminal()
    with subprocess.Popen(
        [sys.executable, "-c", OPENS, CALLGATE, "acp", "--setup"],
        cwd=ws,
        stdin=terminal.slave,
        stdout=terminal.slave,
        stderr=terminal.slave,
        env=environment({"ANTHROPIC_API_KEY": ""}),
    ) as process:
        terminal.read_until(lambda text: "Model" in text)
        terminal.press("anthropic/some-model\n")
        terminal.read_until(lambda text: "(hidden)" in text)
        terminal.press("sk-ant-0123456789abcdef\n")
        terminal.read_until(lambda text: "uses anthropic/some-model" in text)
        assert process.wait(60) == 0
    assert "sk-ant" not in terminal.text
    terminal.close()
    written = (home / "settings.toml").read_text()
    assert written == 'model = "anthropic/some-model"\n# mine\n[tools]\ndisable = ["shell"]\n'
    assert json.loads((home / "keys.json").read_text()) == {"anthropic": "sk-ant-0123456789abcdef"}


def test_the_setup_without_a_terminal_is_refused(ws: Path) -> None:
    assert callgate("acp", "--setup", cwd=ws).code == USAGE


def test_the_setup_leaves_a_model_that_is_named_alone(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = 'model = "mine"\n[models.mine]\nkind = "scripted"\npath = "a.jsonl"\n'
    (home / "settings.toml").write_text(settings)
    monkeypatch.setattr(acp_setup, "is_terminal", lambda _: True)
    assert acp_setup.set_up() == 0
    assert (home / "settings.toml").read_text() == settings
    assert not (home / "keys.json").exists()
