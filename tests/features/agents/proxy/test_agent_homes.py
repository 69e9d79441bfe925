"""An agent behind the proxy leaves sessions and its login in the user's home, and no settings or code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.agent_files import DATA, EXECUTED, attack, files
from tests.features.agents.proxy.conftest import AGENT, Open, play

LOGINS = {
    "claude": (".claude/.credentials.json", {"claudeAiOauth": {"accessToken": "new"}}),
    "codex": (".codex/auth.json", {"tokens": {"refresh_token": "new"}}),
    "gemini": (".gemini/oauth_creds.json", {"access_token": "new"}),
    "opencode": (".local/share/opencode/auth.json", {"x": {"type": "oauth", "refresh": "new"}}),
}


@pytest.mark.parametrize("name", LOGINS)
@pytest.mark.parametrize("mode", ["none", "read", "ask", "write"])
async def test_it_leaves_sessions_and_a_login_and_nothing_that_runs_later(
    opened: Open, home: Path, workspace: Path, tmp_path: Path, name: str, mode: str
) -> None:
    person, program = home.parent, tmp_path / "bin" / f"{name}.py"
    program.parent.mkdir()
    program.write_text(AGENT.read_text())
    paths = [person / each for each in EXECUTED[name].split()]
    for path in paths[::2]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}\n")
    before = files(person)
    login, content = LOGINS[name]
    write = f"echo '{json.dumps(content)}' > {person / login}.new && mv {person / login}.new {person / login}"
    data = "; ".join(f"mkdir -p {(person / each).parent}; echo data >> {person / each}" for each in DATA[name])
    async with opened("--mode", mode, command=(sys.executable, str(program))) as editor:
        talk = await editor.new(workspace)
        _, *others = await play(talk, {"run": attack(paths)}, {"run": write}, {"run": data})
    assert [each["code"] for each in others] == [0, 0], others
    after = files(person)
    changed = {path: text for path, text in after.items() if before.get(path) != text and text}
    assert json.loads(changed.pop(login)) == content
    assert changed == (dict.fromkeys(DATA[name], "data\n") if mode in ("ask", "write") else {})
    assert before.keys() <= after.keys()
    assert list((home / "run").glob("agent-home-*")) == []
