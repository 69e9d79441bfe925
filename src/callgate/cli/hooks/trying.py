"""`callgate hook test`: the agent's own program makes a harmless call, and it must come to us."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from typing import NamedTuple

from callgate.cli.hooks import editing
from callgate.cli.hooks.checks import installed_files
from callgate.cli.hooks.launching import SHELL, can_launch, launch, run
from callgate.cli.hooks.scripted_model import Step, serving
from callgate.config.agents.settings_files import AGENTS
from callgate.surfaces.socket.instances import live

_LIMIT_S = 120.0


class Trial(NamedTuple):
    ok: bool
    message: str


def try_agent(home: str, agent: str, workspace: str) -> Trial:
    """Run the program in the workspace. The command that its model asks for says a word that
    nobody knows: if an instance recorded it, the hook works."""
    label = AGENTS[agent].label
    program = shutil.which(AGENTS[agent].program)
    settings = _settings(home, agent, workspace)
    if settings is None:
        return Trial(False, f"No hook of {label} is installed: callgate hook install {agent}.")
    if program is None:
        return Trial(False, f"There is no program {AGENTS[agent].program} here to try.")
    if not can_launch(agent):
        return Trial(
            False, f"callgate cannot start {label} without its model: try a call in it yourself."
        )
    if not live(home):
        return Trial(False, "No callgate instance runs: callgate serve --detach.")
    word = f"callgate-hook-test-{secrets.token_hex(8)}"
    tool, arguments = SHELL[agent](f"echo {word}")
    started = time.time()
    with tempfile.TemporaryDirectory() as agent_home, serving([Step(tool, arguments)]) as model:
        launched = launch(agent, program, settings, agent_home, model.url)
        try:
            ended = run(launched, workspace, _LIMIT_S)
        except (OSError, subprocess.SubprocessError) as error:
            return Trial(False, f"{label} could not be tried: {error}")
        if len(model.requests) < 2:
            said = (ended.stderr or ended.stdout).strip().splitlines()
            return Trial(False, f"{label} did not make the call: {said[-1] if said else 'silent'}")
    outcome = _recorded(home, word)
    if outcome is None:
        return Trial(False, f"{label} made a call that did not come to callgate: NOT protected.")
    seconds = time.time() - started
    return Trial(True, f"{label} asked callgate about the call ({outcome}; {seconds:.1f} s).")


def _settings(home: str, agent: str, workspace: str) -> str | None:
    for path in installed_files(home, agent, workspace):
        return editing.read(path)
    return None


def _recorded(home: str, word: str) -> str | None:
    """What the audit log says of the call: the last lines of it are enough."""
    try:
        with open(os.path.join(home, "audit.jsonl"), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 1_000_000))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        if word.encode() in line:
            record = json.loads(line)
            return str(record.get("reason") or record.get("decision"))
    return None
