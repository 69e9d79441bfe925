"""`run --pool` and `chat --pool`: a model of the server works on a worker, and is watched and answered here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.features.fleet.worker.deployments import CALLGATE, LIMIT_S, Deployment, deployment

SCRIPT = """
[[replies]]
calls = [{ tool = "write_file", input = { path = "a.txt", content = "hello" } }]
[[replies]]
text = "It is written."
[[replies]]
calls = [{ tool = "shell", input = { command = "echo begun > begun; sleep 300" } }]
[[replies]]
text = "Never said."
"""


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Deployment]:
    """A server with a model, which asks about what has effects, and a worker."""
    with deployment(tmp_path) as made:
        script = tmp_path / "model.toml"
        script.write_text(SCRIPT)
        made.settings(f'model = "played"\n[models.played]\nkind = "scripted"\npath = "{script}"\n')
        made.serve("ask")
        made.worker(made.token("build"), "one")
        yield made


def start(deployed: Deployment, *words: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    environment = {**os.environ, "CALLGATE_HOME": str(deployed.home)}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [CALLGATE, *words], env=environment, cwd=deployed.root, stdin=stdin, stdout=pipe, stderr=pipe, text=True
    )


def run(deployed: Deployment, *words: str) -> tuple[int, str, str]:
    process = start(deployed, *words)
    out, err = process.communicate(timeout=LIMIT_S)
    return process.returncode, out, err


def test_a_turn_works_on_the_worker_and_what_was_allowed_is_not_asked(asking: Deployment) -> None:
    code, out, err = run(asking, "run", "--pool", "build", "--allow", "write_file", "Write it.")
    assert (code, out) == (0, "It is written.\n"), err
    assert "write_file" in err
    assert (asking.directory("one") / "a.txt").read_text() == "hello"


def test_where_nobody_can_be_asked_it_is_refused_and_said(asking: Deployment) -> None:
    words = ("run", "--pool", "build/app", "--output-format", "json", "Write it.")
    code, out, err = run(asking, *words)
    end = json.loads(out)
    assert (code, end["stop"], end["text"], end["calls"]) == (3, "end_turn", "It is written.", 1)
    assert [(each["tool"], each["reason"]) for each in end["refusals"]] == [("write_file", "user_denied")]
    assert "write_file needs approval, and no approver is available: refused" in err
    assert not (asking.directory("one") / "a.txt").exists()
    denied = [each for each in asking.events(end["session"]) if each["type"] == "tool.failed"]
    assert [each["payload"]["error_class"] for each in denied] == ["user_denied"]


def test_a_signal_stops_the_turn_at_the_server(asking: Deployment) -> None:
    first = run(asking, "run", "--pool", "build", "--allow", "write_file", "--output-format", "json", "Write it.")
    session = json.loads(first[1])["session"]
    words = ("run", "--pool", "build", "--resume", session, "--allow", "shell", "--json", "Wait.")
    process = start(asking, *words)
    asking.until(lambda: (asking.directory("one") / "begun").exists())
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    *events, end = out.splitlines()
    assert json.loads(end)["stop"] == "cancelled"
    assert "turn.cancelled" in {json.loads(each)["type"] for each in events}
    assert asking.get(f"/v1/sessions/{session}")["turn_id"] is None


def test_a_conversation_goes_on_line_by_line(asking: Deployment) -> None:
    process = start(asking, "chat", "--workspace", "pool:build/app", "--allow", "write_file", stdin=subprocess.PIPE)
    out, err = process.communicate("Write it.\n", timeout=LIMIT_S)
    assert process.returncode == 0, err
    assert "It is written." in out and "write_file" in out
    assert "To continue: callgate chat --pool" in err


def test_what_cannot_be_is_said_in_a_sentence(asking: Deployment) -> None:
    for words, sentence in (
        (("run", "--pool", "none", "x"), "No worker of pool none is connected"),
        (("run", "--pool", "build/other", "x"), "workspace in pool build; there are: app"),
        (("run", "--pool", "a b", "x"), "pool"),
        (("run", "--pool", "build", "--max-turns", "3", "x"), "--max-turns cannot be used with --pool"),
        (("run", "--pool", "build", "--workspace", "pool:build/app", "x"), "different workspaces"),
        (("run", "--pool", "build", "--continue", "x"), "--pool POOL/WORKSPACE"),
    ):
        code, out, err = run(asking, *words)
        assert code != 0 and out == "" and sentence in err, (words, err)
        assert "Traceback" not in err


def test_without_a_server_it_is_said_so(tmp_path: Path) -> None:
    with deployment(tmp_path) as made:
        code, _, err = run(made, "run", "--pool", "build", "x")
        assert code != 0 and "no instance runs" in err


def test_a_server_that_dies_in_a_turn_is_noticed(asking: Deployment) -> None:
    first = run(asking, "run", "--pool", "build", "--allow", "write_file", "--output-format", "json", "Write it.")
    session = json.loads(first[1])["session"]
    process = start(asking, "run", "--pool", "build", "--resume", session, "--allow", "shell", "Wait.")
    asking.until(lambda: (asking.directory("one") / "begun").exists())
    asking._processes[0].kill()
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1 and "the server that ran the turn has ended" in err, err
