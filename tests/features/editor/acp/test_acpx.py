"""acpx, a client for the command line, as people use it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.features.editor.acp.conftest import NewHome
from tests.features.editor.acp.editor import CALLGATE, environment
from tests.features.editor.acp.published import NODE, TOOLS
from tests.needs import needs

pytestmark = needs("acp clients")

SCRIPT = """
repeat = true

[[replies]]
text = "I write it down."
calls = [{ tool = "write_file", input = { path = "note.txt", content = "noted\\n" } }]

[[replies]]
text = "That was it."
"""
FINE, DENIED = 0, 5


class Acpx:
    """acpx with a home of its own; what it keeps running ends with the session."""

    def __init__(self, home: Path, workspace: Path, script: Path) -> None:
        self.workspace = workspace
        self._agent = shlex.join([*CALLGATE, "acp", "--model", f"scripted:{script}"])
        self._env = {**environment(home), "PATH": f"{NODE.parent}:{os.environ['PATH']}"}

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.line(*arguments), capture_output=True, text=True, timeout=60, env=self._env)

    def line(self, *arguments: str) -> list[str]:
        acpx = TOOLS / "node_modules/acpx/dist/cli.js"
        return [str(NODE), str(acpx), "--agent", self._agent, "--cwd", str(self.workspace), "--ttl", "60", *arguments]

    def started(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.line(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self._env
        )


@pytest.fixture
def acpx(new_home: NewHome, tmp_path: Path, workspace: Path) -> Acpx:
    script = tmp_path / "script.toml"
    script.write_text(SCRIPT)
    return Acpx(new_home(), workspace, script)


@pytest.mark.spec("S2-01", "S2-27", "S2-55", "S2-56")
def test_what_is_approved_is_written_and_the_wire_is_nothing_but_messages(acpx: Acpx) -> None:
    ran = acpx("--approve-all", "--format", "json", "--json-strict", "exec", "Write it down.")
    assert (ran.returncode, ran.stderr, (acpx.workspace / "note.txt").read_text()) == (FINE, "", "noted\n")
    messages = [json.loads(line) for line in ran.stdout.splitlines()]
    assert {each["jsonrpc"] for each in messages} == {"2.0"}
    methods = [each["method"] for each in messages if "method" in each]
    assert methods[:2] == ["initialize", "session/new"]
    assert {"session/prompt", "session/update", "session/request_permission", "fs/write_text_file"} <= set(methods)
    assert [each["result"]["stopReason"] for each in messages if "stopReason" in each.get("result", {})] == ["end_turn"]
    [id] = {each["params"]["sessionId"] for each in messages if each.get("method") == "session/update"}
    listed = acpx("--format", "json", "sessions", "list")
    assert [each["sessionId"] for each in json.loads(listed.stdout)["sessions"]] == [id]


@pytest.mark.spec("S2-58")
def test_what_is_denied_is_not_written(acpx: Acpx) -> None:
    ran = acpx("--deny-all", "--format", "quiet", "exec", "Write it down.")
    assert (ran.returncode, (acpx.workspace / "note.txt").exists()) == (DENIED, False), ran.stderr


@pytest.mark.spec("S2-18", "S2-28", "S2-30", "S2-35")
def test_a_session_is_made_set_resumed_and_closed(acpx: Acpx) -> None:
    assert acpx("sessions", "new").returncode == FINE
    try:
        assert acpx("set-mode", "write").returncode == FINE
        ran = acpx("--deny-all", "--no-fs", "--verbose", "prompt", "Write it down.")  # nobody is asked
        assert ran.returncode == FINE, ran.stdout + ran.stderr
        assert "session/resume" in ran.stdout + ran.stderr
        assert (acpx.workspace / "note.txt").read_text() == "noted\n"
    finally:
        assert acpx("sessions", "close").returncode == FINE


@pytest.mark.soak
@pytest.mark.spec("S2-31", "S2-34", "S2-36")
def test_a_prompt_is_cancelled_from_another_terminal_and_the_next_one_runs(acpx: Acpx) -> None:
    begun = acpx.workspace / "begun"
    os.mkfifo(begun)
    assert acpx("sessions", "new").returncode == FINE
    try:
        assert acpx("set-mode", "sudo").returncode != FINE
        assert acpx("set-mode", "write").returncode == FINE
        command = '/tool shell {"command": "echo x > begun; exec sleep 1000"}'
        with acpx.started(
            "--approve-all", "--no-fs", "--no-terminal", "--format", "json", "prompt", command
        ) as running:
            try:
                assert begun.read_text() == "x\n"  # it runs
                assert acpx("cancel").returncode == FINE
                out, _ = running.communicate(timeout=60)
            finally:
                running.kill()
        assert '"cancelled"' in out
        again = acpx("--deny-all", "--no-fs", "prompt", "Write it down.")  # the mode says write: nobody is asked
        assert again.returncode == FINE, again.stdout + again.stderr
        assert (acpx.workspace / "note.txt").read_text() == "noted\n", again.stdout
    finally:
        assert acpx("sessions", "close").returncode == FINE
