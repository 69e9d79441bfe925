"""The plugin for opencode lets a call run only if the hook said so in so many words."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from callgate.features.agents.commands import editing
from tests.needs import needs

pytestmark = needs("node")

DRIVER = """
import { Callgate } from "./callgate.mjs"
const hooks = await Callgate({ directory: "/work" })
const input = { tool: "bash", sessionID: "s", callID: "c" }
try {
  await hooks["tool.execute.before"](input, { args: { command: "ls" } })
  await hooks["tool.execute.after"]({ ...input, args: {} }, { output: "x" })
  console.log("ran")
} catch (error) { console.log("refused: " + error.message) }
"""


def drive(path: Path, script: str | None) -> str:
    home = path / "gate"
    hook = home / "hooks/opencode/hook"
    hook.parent.mkdir(parents=True)
    if script is not None:
        hook.write_text("#!/bin/sh\n" + script)
        hook.chmod(0o700)
    (path / "callgate.mjs").write_text(editing.with_hook("opencode", str(home), "", 1.0))
    (path / "drive.mjs").write_text(DRIVER)
    done = subprocess.run(["node", "drive.mjs"], cwd=path, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def test_an_allowed_call_runs_and_the_hook_is_told_of_both_ends(tmp_path: Path) -> None:
    script = f'cat >>{tmp_path}/log; echo >>{tmp_path}/log; echo \'{{"decision": "allow"}}\'\n'
    assert drive(tmp_path, script) == "ran"
    before, after = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert (before["tool_name"], before["tool_input"]) == ("bash", {"command": "ls"})
    assert before["hook_event_name"] == "tool.execute.before"
    assert after["hook_event_name"] == "tool.execute.after"
    assert after["tool_response"] == "x"


@pytest.mark.parametrize(
    "script",
    [
        'echo \'{"decision": "deny", "reason": "no"}\'\n',
        "echo garbage\n",
        "echo '{}'\n",
        "exit 1\n",
        "kill -9 $$\n",
        None,
    ],
    ids=range(6),
)
def test_anything_else_is_a_refusal(tmp_path: Path, script: str | None) -> None:
    assert drive(tmp_path, script).startswith("refused: ")
