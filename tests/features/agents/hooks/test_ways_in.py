"""The socket of hooks: it takes events of one agent, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from callgate.features.agents.commands import editing
from callgate.features.agents.hooks.events import MAX_EVENT
from tests.features.agents.real.gates import Gate, impostor


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    gate = Gate(tmp_path_factory.mktemp("hooks"), "codex")
    gate.start()
    for agent in ("codex", "claude"):
        editing.write_scripts(str(gate.home), agent, 3.0)
    yield gate
    gate.close()


def event(gate: Gate, command: str, id: str = "1") -> bytes:
    return json.dumps({
        "session_id": "s", "cwd": str(gate.workspace), "hook_event_name": "PreToolUse",
        "tool_name": "Bash", "tool_input": {"command": command}, "tool_use_id": id,
    }).encode()  # fmt: skip


def hook(gate: Gate, data: bytes, agent: str = "claude") -> Any:
    script = gate.home / "hooks" / agent / "hook"
    done = subprocess.run([script, "pre"], input=data, capture_output=True, check=True, timeout=60)
    return json.loads(done.stdout)["hookSpecificOutput"]


def token(gate: Gate, agent: str) -> str:
    return (gate.home / "hooks" / agent / "token").read_text().strip()


def post(gate: Gate, path: str, bearer: str, data: bytes = b"{}") -> int:
    headers = {"Authorization": f"Bearer {bearer}", "Content-Type": "application/json"}
    url = f"http://127.0.0.1:{gate.port}{path}"
    request = urllib.request.Request(url, data=data, headers=headers, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_a_hook_is_answered_by_the_instance(served: Gate) -> None:
    assert hook(served, event(served, "touch allowed.txt"))["permissionDecision"] == "allow"
    assert hook(served, event(served, "touch denied.txt", "2"))["permissionDecision"] == "deny"


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"{}", b"x" * 100_000, b"[1"])
def test_what_is_no_event_is_refused_in_words(served: Gate, data: bytes) -> None:
    answer = hook(served, data)
    assert answer["permissionDecision"] == "deny"
    assert "event" in answer["permissionDecisionReason"]


def test_an_event_that_is_too_large_is_refused(served: Gate) -> None:
    answer = hook(served, b" " * (MAX_EVENT + 1))
    assert answer["permissionDecision"] == "deny"


def test_the_token_of_a_hook_opens_nothing_over_http(served: Gate) -> None:
    own = token(served, "claude")
    for path in ("/v1/confirmations", "/v1/sessions", "/v1/calls", "/v1/policy", "/v1/tools"):
        assert post(served, path, own) == 401
    data = event(served, "touch allowed.txt", "3")
    assert post(served, "/v1/hooks/claude", own, data) == 401
    assert post(served, "/v1/hooks/../confirmations", own) in (401, 404)


def test_the_socket_answers_nobody_without_a_token(served: Gate) -> None:
    (path,) = (served.home / "hooks/sockets").glob("*.sock")
    for header in (
        b"\n",
        b"nonsense\n",
        b'{"v": 1, "agent": "claude", "token": "wrong", "size": 2}\n{}',
        b'{"v": 2, "agent": "claude"}\n',
        json.dumps({"v": 1, "agent": "claude", "token": token(served, "codex")}).encode() + b"\n",
        b"x" * 100_000,
    ):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30)
            connection.connect(str(path))
            try:
                connection.sendall(header)
                connection.shutdown(socket.SHUT_WR)
                assert connection.recv(1000) == b""
            except (BrokenPipeError, ConnectionResetError):
                pass


def test_a_ticket_that_nobody_gave_runs_nothing(served: Gate) -> None:
    run = served.home / "hooks/claude/run"
    done = subprocess.run([run, "A" * 43], capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"nothing was run" in done.stderr


def test_an_instance_that_hangs_is_given_up_in_time(served: Gate) -> None:
    served.kill(signal.SIGSTOP)
    try:
        answer = hook(served, event(served, "touch allowed.txt", "4"))
    finally:
        served.kill(signal.SIGCONT)
    assert answer["permissionDecision"] == "deny"


@pytest.mark.parametrize("garbage", [b"", b"x", b"callgate-hook 9\n{}", b"callgate-hook x\n{}"])
def test_half_an_answer_is_none(tmp_path: Path, garbage: bytes) -> None:
    gate = Gate(tmp_path, "claude")
    editing.write_scripts(str(gate.home), "claude", 3.0)
    with impostor(gate, [garbage]):
        answer = hook(gate, event(gate, "touch allowed.txt"))
    assert answer["permissionDecision"] == "deny"


def test_where_no_disk_can_be_written_the_hook_still_refuses(tmp_path: Path) -> None:
    gate = Gate(tmp_path, "claude")
    editing.write_scripts(str(gate.home), "claude", 3.0)
    script = gate.home / "hooks/claude/hook"
    limited = f"ulimit -f 0; exec '{script}' pre"  # no byte goes into any file
    done = subprocess.run(["sh", "-c", limited], input=b"{}", capture_output=True, check=True, timeout=60)
    assert b'"deny"' in done.stdout


def test_two_hooks_at_once_are_answered_apart(served: Gate) -> None:
    answers: dict[str, Any] = {}

    def ask(name: str) -> None:
        answers[name] = hook(served, event(served, f"touch {name}.txt", name))

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("allowed", "denied")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers["allowed"]["permissionDecision"] == "allow"
    assert answers["denied"]["permissionDecision"] == "deny"
    assert os.path.exists(served.home)
