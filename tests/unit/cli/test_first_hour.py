"""What helps somebody who has not used callgate before."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from callgate.cli.ui.decision_words import WORDS
from callgate.policy import budgets, decide
from tests.unit.cli.instances import short_directory
from tests.unit.cli.running import CALLGATE, LIMIT_S, Terminal, callgate, environment, start

_SITS_DOWN = """
import os, sys
os.setsid()
terminal = os.open(sys.argv[1], os.O_RDWR)
for number in range(3):
    os.dup2(terminal, number)
os.execv(sys.argv[2], sys.argv[2:])
"""


class Seated:
    """A person at a terminal, who starts a command there."""

    def __init__(self, *words: str, cwd: Path, env: Mapping[str, str]) -> None:
        self.terminal = Terminal(columns=200, rows=100)
        name = os.ttyname(self.terminal.slave)
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SITS_DOWN, name, CALLGATE, *words], cwd=cwd, env=environment(env)
        )

    def read_until(self, text: str) -> str:
        return self.terminal.read_until(lambda shown: text in shown)

    def press(self, keys: str) -> None:
        self.terminal.press(keys)

    def end(self) -> str:
        self.read_until("callgate help lists the rest.")
        assert self.process.wait(LIMIT_S) == 0
        self.terminal.take()
        self.terminal.close()
        return self.terminal.text


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (["help"], ["--help"]),
        (["help", "call"], ["call", "--help"]),
        (["help", "mcp"], ["mcp", "--help"]),
        (["help", "mcp", "add"], ["mcp", "add", "--help"]),
    ],
)
def test_help_is_a_command_too(words: list[str], same: list[str], ws: Path) -> None:
    ran = callgate(*words, cwd=ws)
    assert ran.code == 0
    assert ran.out.rstrip() == callgate(*same, cwd=ws).out.rstrip()


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["cal", "read_file"], "Did you mean callgate call?"),
        (["mpc"], "Did you mean callgate mcp?"),
        (["mcp", "aprove"], "Did you mean callgate mcp approve?"),
        (["help", "docter"], "Did you mean callgate doctor?"),
        (["zzzzzz"], "See callgate help."),
    ],
)
def test_a_misspelt_command_is_told_what_may_be_meant(words: list[str], hint: str, ws: Path) -> None:
    ran = callgate(*words, cwd=ws)
    assert ran.code == 2
    assert f"hint: {hint}" in ran.err


def test_a_tool_is_described_with_a_call_that_can_be_typed(ws: Path) -> None:
    ran = callgate("tools", "read-file", cwd=ws)
    assert ran.code == 0
    for text in (
        "effect   read",
        "source   callgate itself",
        "path  string, required",
        "callgate call read_file path=PATH",
    ):
        assert text in ran.out
    [described] = callgate("tools", "read_file", "--json", cwd=ws).json
    assert described["name"] == "read_file"


def test_a_tool_that_there_is_not_is_told_what_may_be_meant(ws: Path) -> None:
    ran = callgate("tools", "read_fil", cwd=ws)
    assert (ran.code, "Did you mean read_file?" in ran.err) == (1, True)


def test_the_last_change_of_a_directory_is_undone_by_one_word(ws: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    other.mkdir()
    assert callgate("undo", "--last", "--yes", cwd=ws).code == 1
    for n in (1, 2):
        callgate("call", "write_file", "path=n.txt", f"content={n}", "--yes", cwd=ws)
    callgate("call", "write_file", "path=n.txt", "content=x", "--yes", cwd=other)
    assert callgate("undo", "--last", "--yes", cwd=ws).code == 0
    assert ((ws / "n.txt").read_text(), (other / "n.txt").read_text()) == ("1", "x")
    assert callgate("undo", "--last", "tu_1", cwd=ws).code == 2


def test_an_empty_list_of_keys_says_what_it_would_list(ws: Path) -> None:
    ran = callgate("keys", "list", cwd=ws)
    assert ran.out == "No model needs a key, and none is stored.\n"
    assert "callgate keys set anthropic" in ran.err


def test_what_a_client_of_mcp_needs_is_printed(ws: Path) -> None:
    ran = callgate("mcp", "serve", "--print-config", "--mode", "read", cwd=ws)
    server = json.loads(ran.out)["mcpServers"]["callgate"]
    assert server["args"][-6:] == ["mcp", "serve", "--workspace", str(ws), "--mode", "read"]
    helped = subprocess.run([server["command"], *server["args"], "--help"], capture_output=True, text=True, check=True)
    assert helped.stdout.startswith("usage: callgate mcp serve")


def test_an_instance_says_where_its_dashboard_is(ws: Path) -> None:
    with short_directory() as home:
        env = {"CALLGATE_HOME": str(home)}
        instance = start("serve", "--http", "127.0.0.1:0", cwd=ws, env=env)
        try:
            assert instance.stdout is not None
            assert b"listening" in instance.stdout.readline()
            said = instance.stdout.readline().decode()
            [status] = callgate("status", "--json", cwd=ws, env=env).json["instances"]
        finally:
            instance.terminate()
            instance.communicate(timeout=60)
    assert said == f"callgate: dashboard at {status['http']}: callgate dashboard logs a browser in\n"


def test_every_reason_of_a_decision_has_words() -> None:
    source = Path(decide.__file__).read_text() + Path(budgets.__file__).read_text()
    codes = re.findall(r'reason="(\w+)"|(?:_from_mode\(\s*[\w.]+|_ask\(decision),\s+"(\w+)"', source)
    assert {code for pair in codes for code in pair if code} == set(WORDS)


def test_a_path_that_leads_outside_is_told_what_opens_it(ws: Path) -> None:
    ran = callgate("call", "read_file", "path=../x", cwd=ws)
    assert "extra_roots" in ran.err
    assert "policy explain" not in ran.err


def test_doctor_counts_the_tools_that_are_listed(ws: Path) -> None:
    listed = callgate("tools", "--all", "--json", cwd=ws).json
    visible = sum(each["visible"] for each in listed)
    checks = {each["check"]: each for each in callgate("doctor", "--json", cwd=ws).json["checks"]}
    assert checks["tools"]["text"] == f"{visible} visible, {len(listed) - visible} not"


class _Ollama(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"models": [{"name": "tiny:1b"}]}')

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def ollama() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Ollama)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("words", [[], ["init"]], ids=["nothing", "init"])
def test_a_first_run_finds_a_model_and_shows_a_call(words: list[str], ws: Path, tmp_path: Path, ollama: str) -> None:
    home = tmp_path / "fresh"
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "zed").write_text("#!/bin/sh\n")
    (programs / "zed").chmod(0o755)
    (ws / "tiny.gguf").touch()
    env = {
        "CALLGATE_HOME": str(home),
        "HOME": str(tmp_path),
        "OLLAMA_HOST": ollama,
        "ANTHROPIC_API_KEY": "sk-never-shown",
        "OPENAI_API_KEY": "",
        "PATH": f"{programs}:{os.environ['PATH']}",
    }
    person = Seated(*words, cwd=ws, env=env)
    shown = person.read_until("Enter for none: ")
    assert "1  anthropic/claude-sonnet-4-5: ANTHROPIC_API_KEY is set" in shown
    assert f"2  ollama: tiny:1b, from the Ollama at http://{ollama}" in shown
    assert f"3  local/{ws / 'tiny.gguf'}" in shown
    person.press("2\n")
    shown = person.end()
    assert "callgate acp --print-config zed" in shown
    assert "tiny.gguf" in shown.partition("One call")[2]
    assert "sk-never-shown" not in shown
    settings = tomllib.loads((home / "settings.toml").read_text())
    assert (settings["model"], settings["models"]["ollama"]["model"]) == ("ollama", "tiny:1b")
    assert callgate("doctor", cwd=ws, env=env).out.count("failed") == 0


def test_a_first_run_without_any_model_goes_on_without_one(ws: Path, tmp_path: Path) -> None:
    env = {
        "CALLGATE_HOME": str(tmp_path / "fresh"),
        "HOME": str(tmp_path),
        "OLLAMA_HOST": "127.0.0.1:1",
        "ANTHROPIC_API_KEY": "",
        "OPENAI_API_KEY": "",
    }
    shown = Seated("init", cwd=ws, env=env).end()
    assert "No model was found" in shown and "It is on record" in shown


def test_the_arguments_of_a_tool_are_completed(ws: Path) -> None:
    completion = callgate("completion", "bash", cwd=ws).out
    for words, offered in (
        (["call", "read_file", "of"], "offset="),
        (["policy", "explain", "read_file", "pa"], "path="),
        (["call", "read_fil"], "read_file"),
        (["call", "read_file", "path", "="], ""),
    ):
        line = " ".join(f'"{word}"' for word in ["callgate", *words])
        asked = f"{completion}\nCOMP_WORDS=({line}) COMP_CWORD={len(words)}\n_callgate\necho $COMPREPLY"
        path = f"{Path(CALLGATE).parent}:{os.environ['PATH']}"
        ran = subprocess.run(
            ["bash", "-c", asked],
            cwd=ws,
            env=environment({"PATH": path}),
            text=True,
            capture_output=True,
            check=True,
        )
        assert ran.stdout.strip() == offered


@pytest.mark.parametrize("through", ["own runtime", "instance"])
def test_a_call_that_takes_long_shows_what_runs_and_since_when(through: str) -> None:
    with short_directory() as place:
        home, ws = place / "home", place / "ws"
        home.mkdir(mode=0o700)
        ws.mkdir()
        os.mkfifo(ws / "pipe")
        env = {"CALLGATE_HOME": str(home)}
        instance = start("serve", "--no-http", cwd=ws, env=env) if through == "instance" else None
        try:
            if instance is not None and instance.stdout is not None:
                assert b"listening" in instance.stdout.readline()
            person = Seated("call", "shell", "command=cat pipe", "--yes", cwd=ws, env=env)
            person.terminal.read_until(lambda shown: bool(re.search(r"[|/\\-] shell \d+ s\r", shown)))
            (ws / "pipe").write_text("at last\n")
            shown = person.terminal.read_until(lambda shown: "at last" in shown)
            assert person.process.wait(LIMIT_S) == 0
        finally:
            if instance is not None:
                instance.terminate()
                instance.communicate(timeout=60)
    assert shown.rpartition("\r\x1b[K")[2].startswith("at last")
    person.terminal.close()
