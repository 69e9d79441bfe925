"""`callgate protect` and `callgate hook test` with the real agents, offline."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from callgate.features.agents.known import codex
from callgate.socket.instances import live
from tests.features.agents.real.gates import PROGRAMS, TOOLS, Gate

pytestmark = pytest.mark.timeout(300)
_RUN_S = 240.0


class Person:
    """A fresh home with one agent in PATH."""

    def __init__(self, path: Path, agent: str) -> None:
        self.agent, self.path, self.work = agent, path, path / "work"
        programs = path / "bin"
        for each in (self.work, programs):
            each.mkdir()
        (programs / PROGRAMS[agent].name).symlink_to(PROGRAMS[agent])
        found = f"{programs}:{TOOLS / '.bin'}:{os.environ['PATH']}"
        self.env = {**os.environ, "HOME": str(path), "CALLGATE_HOME": str(path / "gate"), "PATH": found}

    def callgate(self, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "callgate", *words]
        return subprocess.run(
            command, cwd=cwd or self.work, env=self.env, capture_output=True, text=True, timeout=_RUN_S,
            stdin=subprocess.DEVNULL, check=False, start_new_session=True,
        )  # fmt: skip

    def protect(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.callgate("protect", self.agent, "--trust", "--no-service", *words)


@pytest.fixture
def person(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Person]:
    if not PROGRAMS[request.param].exists():
        pytest.skip(f"needs {request.param}: see scripts/get_agents.sh")
    person = Person(tmp_path, request.param)
    yield person
    if live(str(tmp_path / "gate")):
        person.callgate("stop", "--now")


@pytest.mark.parametrize("person", ["claude", "gemini", "kimi", "qwen"], indirect=True)
def test_one_command_protects_the_agent_and_its_program_obeys(person: Person) -> None:
    ran = person.protect()
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "asked callgate about a test call and obeyed the refusal" in ran.stdout
    assert "is protected in this directory" in ran.stdout


@pytest.mark.parametrize("person", ["codex"], indirect=True)
def test_codex_is_protected_once_it_trusts_the_hook(person: Person) -> None:
    ran = person.protect()
    assert ran.returncode == 1
    assert "Codex is NOT protected in this directory" in ran.stdout
    assert "open /hooks" in ran.stdout
    with pytest.MonkeyPatch.context() as patch:  # what a person does in /hooks
        patch.setenv("HOME", str(person.path))
        patch.delenv("CODEX_HOME", raising=False)
        mark = str(person.path / "gate/hooks/codex")
        hooks = codex.listed_hooks(str(PROGRAMS["codex"]), str(person.work), mark)
    states = (f'[hooks.state."{each["key"]}"]\ntrusted_hash = "{each["currentHash"]}"\n' for each in hooks)
    (person.path / ".codex/config.toml").write_text("\n".join(states))
    ran = person.protect()
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Codex is protected in this directory" in ran.stdout


@pytest.mark.parametrize("person", ["claude"], indirect=True)
def test_a_repository_that_turns_hooks_off_is_found_by_the_run_of_the_program(person: Person) -> None:
    settings = person.work / ".claude/settings.json"
    settings.parent.mkdir()
    assert person.protect().returncode == 0
    settings.write_text(json.dumps({"disableAllHooks": True}))
    ran = person.callgate("hook", "test", "claude")
    assert ran.returncode == 1
    assert "NOT protected" in ran.stdout


@pytest.mark.parametrize("agent", ["claude", "codex", "gemini", "kimi", "qwen"])
def test_a_refusal_names_the_command_that_helps(tmp_path: Path, agent: str) -> None:
    """Without an instance, and in a directory that is not trusted."""
    if not PROGRAMS[agent].exists():
        pytest.skip(f"needs {agent}: see scripts/get_agents.sh")
    gate = Gate(tmp_path, agent)
    outcome = gate.run("touch alone.txt")
    assert f"callgate protect {agent}" in outcome.told
    try:
        gate.start()
        gate.workspace = tmp_path / "elsewhere"
        gate.workspace.mkdir()
        outcome = gate.run("touch allowed.txt")
    finally:
        gate.close()
    assert f"callgate trust {gate.workspace}" in outcome.told
    assert not gate.ran("allowed.txt")
