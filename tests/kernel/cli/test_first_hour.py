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

from callgate.cli.commands.policy import WORDS
from callgate.policy.decisions import REFUSALS, Reason
from tests.kernel.cli.instances import short_directory
from tests.kernel.cli.running import CALLGATE, LIMIT_S, Terminal, callgate, environment, start

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
        self.read_until("More commands: callgate help.")
        assert self.process.wait(LIMIT_S) == 0
        self.terminal.take()
        self.terminal.close()
        return self.terminal.text


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (["help"], ["--help"]),
        (["help", "--all"], ["--help", "--all"]),
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
        (["zzzzzz"], "See callgate help --all."),
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
    assert said == f"callgate: dashboard at {status['http']}: log in with callgate dashboard\n"


def test_every_reason_of_a_decision_has_words() -> None:
    assert set(Reason) - REFUSALS == set(WORDS)


def test_a_path_that_leads_outside_is_told_what_opens_it(ws: Path) -> None:
    ran = callgate("call", "read_file", "path=../x", cwd=ws)
    assert "extra_roots" in ran.err
    assert "policy explain" not in ran.err


def test_doctor_counts_the_tools_that_are_listed(ws: Path) -> None:
    listed = callgate("tools", "--all", "--json", cwd=ws).json
    visible = sum(each["visible"] for each in listed)
    checks = {each["check"]: each for each in callgate("doctor", "--json", cwd=ws).json["checks"]}
    assert checks["tools"]["text"] == f"{visible} available, {len(listed) - visible} not"


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
    if not words:
        person.read_until("Enter for the help: ")
        assert not home.exists()
        person.press("y\n")
    shown = person.read_until("Enter for none): ")
    assert "1  anthropic/claude-sonnet-4-5: ANTHROPIC_API_KEY is set" in shown
    assert f"2  ollama/tiny:1b: from the Ollama at http://{ollama}" in shown
    assert f"3  local/{ws / 'tiny.gguf'}" in shown
    person.press("2\n")
    assert "read-only sandbox without network" in person.read_until("Allow them? [y/N] ")
    person.press("y\n")
    shown = person.end()
    assert "callgate acp --print-config zed" in shown
    assert "tiny.gguf" in shown.partition("A sample call")[2]
    assert "sk-never-shown" not in shown
    settings = tomllib.loads((home / "settings.toml").read_text())
    assert settings["model"] == "ollama/tiny:1b"
    assert settings["policy"]["read_commands"] == "allow"
    assert callgate("doctor", "-v", cwd=ws, env=env).out.count("failed") == 0


def test_a_first_run_without_any_model_goes_on_without_one(ws: Path, tmp_path: Path) -> None:
    env = {
        "CALLGATE_HOME": str(tmp_path / "fresh"),
        "HOME": str(tmp_path),
        "OLLAMA_HOST": "127.0.0.1:1",
        "ANTHROPIC_API_KEY": "",
        "OPENAI_API_KEY": "",
    }
    person = Seated("init", cwd=ws, env=env)
    assert "No model was found" in person.read_until("[y/N] ")
    person.press("\n")
    assert "The call is recorded" in person.end()
    settings = tomllib.loads((tmp_path / "fresh/settings.toml").read_text())
    assert "read_commands" not in settings["policy"]


@pytest.mark.parametrize("value", ["allow", "ask"])
def test_init_sets_read_commands_in_settings_that_exist(value: str, ws: Path, home: Path) -> None:
    assert callgate("init", cwd=ws).code == 0
    ran = callgate("init", "--read-commands", value, cwd=ws)
    assert (ran.code, f'read_commands = "{value}"' in ran.err + ran.out) == (0, True)
    assert tomllib.loads((home / "settings.toml").read_text())["policy"]["read_commands"] == value
    decided = callgate("policy", "explain", "shell", "command=ls", "--json", cwd=ws).json
    expected = {"allow": ("allow", "read_commands", "read"), "ask": ("ask", "class_default", "workspace")}[value]
    assert (decided["decision"], decided["reason"], decided["sandbox"]) == expected
    assert callgate("init", "--workspace", "--read-commands", value, cwd=ws).code == 2


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


def tree(directory: Path) -> dict[str, bytes | None]:
    """Every path below a directory, and the content of files."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in sorted(directory.rglob("*"))
    }


@pytest.mark.parametrize("keys", ["\n", "n\n", "no thanks\n", "\x04"], ids=repr)
def test_nothing_is_written_before_a_yes(keys: str, ws: Path, tmp_path: Path) -> None:
    home = tmp_path / "user"
    home.mkdir()
    person = Seated(cwd=ws, env={"HOME": str(home), "CALLGATE_HOME": ""})
    shown = person.read_until("Enter for the help: ")
    assert f"{home}/.callgate/settings.toml does not exist" in shown
    assert tree(home) == {}
    person.press(keys)
    person.read_until("callgate help COMMAND")
    assert person.process.wait(LIMIT_S) == 0
    person.terminal.close()
    assert tree(home) == {}


def test_ctrl_c_at_the_first_question_writes_nothing(ws: Path, tmp_path: Path) -> None:
    home = tmp_path / "user"
    home.mkdir()
    person = Seated(cwd=ws, env={"HOME": str(home), "CALLGATE_HOME": ""})
    person.read_until("Enter for the help: ")
    person.press("\x03")
    assert person.process.wait(LIMIT_S) == 130
    person.terminal.close()
    assert tree(home) == {}


READING = (
    "", "help", "help --all", "--help", "call --help", "status", "doctor", "doctor -v", "doctor --json",
    "doctor --sandbox", "tools", "tools --all", "tools read_file", "policy explain read_file path=a.txt",
    "policy export", "policy suggest", "sessions list", "audit tail", "audit search --tool shell",
    "audit verify", "confirmations", "events", "trust --list", "keys list", "keys status", "skills list",
    "memory list", "hosts list", "mcp list", "undo", "store status", "workers list", "workers token list",
    "servers", "hook status", "completion bash", "auth google status", "prune --dry-run", "stop", "dashboard",
)  # fmt: skip


def test_commands_that_only_read_write_nothing_to_a_fresh_home(ws: Path, tmp_path: Path) -> None:
    home = tmp_path / "user"
    home.mkdir()
    before = tree(ws)
    for words in READING:
        ran = callgate(*words.split(), cwd=ws, env={"HOME": str(home), "CALLGATE_HOME": ""})
        assert ran.code in (0, 1), (words, ran)
        assert tree(home) == {}, words
    assert tree(ws) == before


def test_without_a_terminal_no_command_means_the_short_help(ws: Path) -> None:
    ran = callgate(cwd=ws)
    assert (ran.code, ran.out) == (0, callgate("--help", cwd=ws).out)
    assert len(ran.out.splitlines()) < 30
