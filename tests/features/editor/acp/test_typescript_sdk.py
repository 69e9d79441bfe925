"""The official TypeScript SDK as the client."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.features.editor.acp.conftest import NewHome
from tests.features.editor.acp.editor import CALLGATE, environment
from tests.features.editor.acp.published import NODE, SDK
from tests.needs import needs

SCRIPT = """
[[replies]]
thinking = "I had better write."
text = "I write it down."
calls = [{ tool = "write_file", input = { path = "note.txt", content = "noted\\n" } }]

[[replies]]
expect = "note.txt"
text = "It is written."
"""


@needs("acp clients")
@pytest.mark.spec("S2-01", "S2-24", "S2-28", "S2-31", "S2-55")
def test_the_typescript_sdk_drives_a_session_from_its_start_to_its_second_life(
    new_home: NewHome, tmp_path: Path, workspace: Path
) -> None:
    script = tmp_path / "script.toml"
    script.write_text(SCRIPT)
    home = new_home()
    ran = subprocess.run(
        [
            NODE,
            Path(__file__).parent / "clients/drive.mjs",
            SDK / "dist/v1/stable/acp.js",
            workspace,
            *CALLGATE,
            "acp",
            "--model",
            f"scripted:{script}",
        ],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(home),
    )
    assert ran.returncode == 0, ran.stderr
    saw = json.loads(ran.stdout)
    assert saw["complaints"] == []
    assert (saw["initialized"]["protocolVersion"], saw["initialized"]["agentInfo"]["name"]) == (1, "callgate")
    assert saw["modes"] == ["none", "read", "ask", "write"]
    assert [saw[each]["stopReason"] for each in ("prompted", "ran", "cancelled")] == [
        "end_turn",
        "end_turn",
        "cancelled",
    ]
    assert (len(saw["asked"]), saw["written"]) == (1, {str(workspace / "note.txt"): "noted\n"})
    assert not (workspace / "note.txt").exists()
    assert (saw["released"], saw["unknown"], saw["listed"], saw["exit"]) == ([True, True], -32602, [True], 0)
    assert _told(saw["live"]) == _told(saw["replayed"]) != []
    assert [each for each in saw["replayed"] if each["sessionUpdate"] == "user_message_chunk"] != []
    assert _told(saw["resumed"]) == []


def _told(updates: list[dict]) -> list[tuple[str, str]]:
    """What the agent said and did, in whole sentences."""
    said: list[tuple[str, str]] = []
    for each in updates:
        kind = each["sessionUpdate"]
        if kind in ("agent_message_chunk", "agent_thought_chunk"):
            before = said.pop()[1] if said and said[-1][0] == kind else ""
            said.append((kind, before + each["content"]["text"]))
        elif kind == "tool_call":
            said.append((kind, each["toolCallId"]))
    ends = [
        ("end", f"{each['toolCallId']} {each['status']}")
        for each in updates
        if each.get("status") in ("completed", "failed")
    ]
    return said + sorted(ends)
