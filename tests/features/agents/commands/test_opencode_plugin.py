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


CHAT = """
import { Callgate } from "./callgate.mjs"
const sessions = { top: {}, sub: { parentID: "top" }, lost: null }
const client = { session: { get: async ({ path }) => (
  { data: sessions[path.id] ? { id: path.id, ...sessions[path.id] } : undefined }) } }
const hooks = await Callgate({ client, directory: "/work" })
const parts = [{ type: "text", text: "a" }, { type: "text", text: "file", synthetic: true }, { type: "file" }]
for (const id of ["top", "sub", "lost"]) await hooks["chat.message"]({ sessionID: id }, { parts })
await hooks["command.execute.before"]({ command: "fix", sessionID: "top", arguments: "b" })
await hooks["chat.message"]({ sessionID: "top" }, { parts })
await hooks["tool.execute.before"]({ tool: "bash", sessionID: "sub", callID: "c" }, { args: {} })
"""


def test_only_what_the_user_typed_in_the_conversation_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "DRIVER", CHAT)
    drive(tmp_path, f'cat >>{tmp_path}/log; echo >>{tmp_path}/log; echo \'{{"decision": "allow"}}\'\n')
    rows = list(map(json.loads, (tmp_path / "log").read_text().splitlines()))
    assert [(each["session_id"], each.get("prompt")) for each in rows] == [
        ("top", "a"),
        ("top", "/fix b"),
        ("top", None),
    ]
