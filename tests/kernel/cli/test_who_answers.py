"""Every command says which instance and which policy answered, and none uses a runtime of its own
in place of an instance without a word."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from callgate.cli import command_line as commands
from tests.kernel.cli.instances import fake, publish, short_directory
from tests.kernel.cli.running import CALLGATE, LIMIT_S, Ran, callgate, start

INSTANCE, OWN, NOBODY = "instance", "own", "nobody"
OBJECT, LIST, LINES, FAILS = "object", "list", "lines", "fails"
"""What `--json` prints; or the command fails in this place, and has nothing to print."""

PLAYED = '{"text": "Hello."}\n'
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": 1, "clientCapabilities": {}},
}

TABLE: dict[str, tuple[str, str, str]] = {
    # command: what stands behind it, who answers, what --json prints
    "run": ("hello", OWN, LINES),
    "tools": ("", INSTANCE, LIST),
    "preview": ("--discard -- true", OWN, OBJECT),
    "undo": ("", NOBODY, OBJECT),
    "diff": ("no_such_call", NOBODY, FAILS),
    "checkout": ("no_such_call there", NOBODY, FAILS),
    "policy explain": ("read_file path=a.txt", OWN, OBJECT),
    "policy test": ("-", OWN, OBJECT),
    "confirmations": ("", NOBODY, OBJECT),
    "confirmations list": ("", NOBODY, OBJECT),
    "confirmations allow": ("no_such_question", NOBODY, FAILS),
    "confirmations deny": ("no_such_question", NOBODY, FAILS),
    "audit tail": ("", NOBODY, LINES),
    "policy suggest": ("", OWN, OBJECT),
    "audit search": ("", NOBODY, LINES),
    "audit verify": ("", NOBODY, OBJECT),
    "events": ("-n 1", NOBODY, LINES),
    "sessions list": ("", NOBODY, OBJECT),
    "sessions show": ("SESSION", NOBODY, OBJECT),
    "sessions export": ("SESSION", NOBODY, LINES),
    "sessions fork": ("SESSION", NOBODY, OBJECT),
    "sessions rename": ("SESSION title", NOBODY, OBJECT),
    "sessions delete": ("no_such_session --yes", NOBODY, FAILS),
    "prune": ("--dry-run", NOBODY, OBJECT),
    "doctor": ("", OWN, OBJECT),
    "hosts list": ("", INSTANCE, OBJECT),
    "hosts logs": ("no_such_host", NOBODY, FAILS),
    "hosts reload": ("--yes", NOBODY, OBJECT),
    "hosts restart": ("no_such_host", INSTANCE, OBJECT),
    "mcp list": ("", NOBODY, OBJECT),  # there is no server that an instance could know of
    "mcp add": ("x", NOBODY, FAILS),
    "mcp remove": ("no_such_server", NOBODY, FAILS),
    "mcp import": ("no_such_file", NOBODY, FAILS),
    "mcp approve": ("no_such_server", NOBODY, FAILS),
    "mcp update": ("no_such_server", NOBODY, FAILS),
    "mcp login": ("no_such_server", NOBODY, FAILS),
    "mcp logs": ("no_such_server", NOBODY, FAILS),
    "mcp restart": ("no_such_server", INSTANCE, OBJECT),
    "status": ("", INSTANCE, OBJECT),
    "dashboard": ("--no-open", INSTANCE, OBJECT),
    "servers": ("", NOBODY, OBJECT),
    "store status": ("", NOBODY, OBJECT),
    "workers list": ("", NOBODY, OBJECT),
    "workers token": ("list", NOBODY, OBJECT),
    "mcp serve": ("", OWN, FAILS),
    "mcp wrap": ("-- true", OWN, FAILS),
    "chat": ("", OWN, FAILS),
}
ELSEWHERE = {
    "acp": "here",
    "acp-proxy": "tests/features/agents/proxy",
    "audit export": "tests/features/reporting/export/test_audit_export.py",
    "call": "test_settings_watched",
    "serve": "here",
    "stop": "here",
    "store move": "test_store: no instance may run",
    "watch": "here",
}


class Place(NamedTuple):
    workspace: Path
    home: Path
    session: str
    policy: str

    @property
    def socket(self) -> str:
        return str(self.home / "run" / "callgate.sock")

    def run(self, *words: str) -> Ran:
        return callgate(*words, cwd=self.workspace, env={"CALLGATE_HOME": str(self.home)})


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """A directory that an instance serves, with a session in its home. Its end is a test of `stop`
    and of what `serve -v` says."""
    with short_directory() as directory:
        workspace, home = directory / "ws", directory / "home"
        workspace.mkdir()
        home.mkdir(mode=0o700)
        (workspace / "a.txt").write_text("here\n")
        (home / "played.jsonl").write_text(PLAYED)
        os.chmod(home / "played.jsonl", 0o600)
        (home / "settings.toml").write_text(
            f'model = "played"\n[models.played]\nkind = "scripted"\npath = "{home}/played.jsonl"\n'
        )
        env = {"CALLGATE_HOME": str(home)}
        instance = start("serve", "-v", "--http", "127.0.0.1:0", cwd=workspace, env=env)
        made = Place(workspace, home, "", "")
        try:
            assert instance.stdout is not None
            assert b"listening" in instance.stdout.readline()
            assert made.run("call", "--no-instance", "read_file", "path=a.txt").code == 0
            [status] = made.run("status", "--json").json["instances"]
            session = json.loads(made.run("audit", "tail", "--json").out.splitlines()[-1])["session"]
            made = made._replace(session=session, policy=status["policy"])
            yield made
            stopped = made.run("stop", "-v", "--json")
            assert stopped.json["answered_by"] == {"instance": made.socket, "policy": made.policy}
            assert f"instance at {made.socket}, policy {made.policy}" in stopped.err
        finally:
            instance.terminate()
            _, err = instance.communicate(timeout=LIMIT_S)
        assert f"policy {made.policy}".encode() in err


def test_every_command_has_a_row() -> None:
    asking = {name for name, each in commands.every().items() if not each.is_local}
    assert asking == TABLE.keys() | ELSEWHERE.keys()


@pytest.mark.parametrize("name", TABLE)
def test_a_command_says_which_instance_and_policy_answered(place: Place, name: str) -> None:
    rest, who, printed = TABLE[name]
    words = rest.replace("SESSION", place.session).split()
    json_wanted = [] if printed == FAILS else ["--json"]
    ran = place.run(*name.split(), "-v", *json_wanted, *words)
    where = {INSTANCE: f"instance at {place.socket}", OWN: "embedded runtime", NOBODY: "no instance was used"}[who]
    assert f"callgate: {where}, policy {place.policy}\n" in ran.err
    if printed == OBJECT or name == "run":
        last: Any = json.loads(ran.out.splitlines()[-1])
        instance = place.socket if who == INSTANCE else None
        assert last["answered_by"] == {"instance": instance, "policy": place.policy}
    elif printed in (LIST, LINES):
        assert "answered_by" not in ran.out


def test_what_follows_says_it_at_its_beginning(place: Place) -> None:
    watching = start("watch", "-v", cwd=place.workspace, env={"CALLGATE_HOME": str(place.home)})
    assert watching.stderr is not None
    assert watching.stderr.readline() == f"callgate: no instance was used, policy {place.policy}\n".encode()
    watching.send_signal(signal.SIGINT)
    watching.communicate(timeout=LIMIT_S)


def test_the_agent_of_an_editor_says_it_where_its_runtime_opens(place: Place) -> None:
    environ = {**os.environ, "CALLGATE_HOME": str(place.home)}
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    agent = subprocess.Popen([CALLGATE, "acp", "-v"], cwd=place.workspace, env=environ, **pipes)
    assert agent.stdin is not None and agent.stderr is not None
    agent.stdin.write(json.dumps(INITIALIZE).encode() + b"\n")
    agent.stdin.flush()
    said = iter(agent.stderr.readline, b"")
    assert any(line == f"callgate: embedded runtime, policy {place.policy}\n".encode() for line in said)
    agent.communicate(timeout=LIMIT_S)


def test_a_command_that_is_not_asked_to_says_nothing(place: Place) -> None:
    assert place.run("tools", "--names").err == ""
    assert place.run("sessions", "list").err == ""


def test_settings_that_cannot_be_read_have_no_policy_and_break_nothing(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text("[policy\n")
    ran = callgate("confirmations", "-v", "--json", cwd=tmp_path, env={"CALLGATE_HOME": str(tmp_path)})
    assert ran.json["answered_by"] == {"instance": None, "policy": None}


@pytest.mark.parametrize("words", [("call", "list_dir"), ("tools", "--names")])
@pytest.mark.parametrize("listens", [True, False])
def test_an_instance_that_runs_and_does_not_answer_is_told_of(words: tuple[str, ...], listens: bool) -> None:
    with short_directory() as home, short_directory() as workspace, ExitStack() as stack:
        path = home / "run" / "odd.sock"
        if listens:
            stack.enter_context(fake(path, lambda peer: peer.close()))
        else:
            path.parent.mkdir(mode=0o700)
            path.touch()
        publish(home, os.getpid(), path)
        ran = callgate(*words, cwd=workspace, env={"CALLGATE_HOME": str(home)})
    assert ran.code == 0
    assert "no instance answers at" in ran.err and "the command uses no instance" in ran.err


def test_a_socket_that_nobody_has_any_more_is_passed_over() -> None:
    with short_directory() as home, short_directory() as workspace:
        (home / "run").mkdir(mode=0o700)
        (home / "run" / "callgate.sock").touch()
        assert callgate("call", "list_dir", cwd=workspace, env={"CALLGATE_HOME": str(home)}).err == ""
