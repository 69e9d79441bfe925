"""MCP servers that others wrote, behind the gate and in the sandbox: by the settings, and in an editor."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from callgate.core.calls import CallerKind, ToolCall
from callgate.core.content import ImageBlock
from tests.needs import needs
from tests.unit.sources.mcp.labs import Lab, refusal
from tests.unit.surfaces.acp.clients import connected
from tests.unit.surfaces.acp.test_mcp_servers import NOTICES, call, notices, opened

TOOLS = Path(__file__).parents[2] / ".tools/mcp_servers"
NPM = TOOLS / "node_modules/@modelcontextprotocol"
COMMANDS: dict[str, tuple[str, ...]] = {
    "everything": ("node", str(NPM / "server-everything/dist/index.js")),
    "filesystem": ("node", str(NPM / "server-filesystem/dist/index.js"), "."),
    "git": (sys.executable, "-m", "mcp_server_git"),
}
ENV = {"PYTHONPATH": str(TOOLS / "python")}

pytestmark = [pytest.mark.soak, needs("mcp servers", "node", "git", "no /tmp")]


class RealLab(Lab):
    """With the sandbox that everybody has."""

    def __init__(self, base: Path) -> None:
        super().__init__(base, settings="x")
        told = [
            f'[mcp.{name}]\ncommand = "{command[0]}"\nargs = {json.dumps(command[1:])}\neffect = "read"\n'
            f"set_env = {{ PYTHONPATH = {json.dumps(ENV['PYTHONPATH'])} }}\n"
            'effects = { write_file = "write", git_add = "write" }\n'
            for name, command in COMMANDS.items()
        ]
        (self.home / "settings.toml").write_text('mode = "write"\n' + "".join(told))

    def call(self, tool: str, session: Any = None, timeout_s: float = 60.0, **arguments: Any) -> Any:
        return self.wired.runtime.call(
            ToolCall(
                tool=f"mcp.{tool}",
                arguments=arguments,
                session=self.session,
                caller=CallerKind.CLI,
                timeout_s=timeout_s,
            )
        )


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[RealLab]:
    async with RealLab(tmp_path) as lab:
        yield lab


def repository(path: Path) -> None:
    for arguments in (["init", "-q"], ["config", "user.name", "a"], ["config", "user.email", "a@example.com"]):
        subprocess.run(["git", "-C", str(path), *arguments], check=True)


async def test_the_everything_server(lab: RealLab) -> None:
    assert (await lab.call("everything/echo", message="hi")).text == "Echo: hi"
    assert "5" in (await lab.call("everything/get-sum", a=2, b=3)).text
    assert refusal(await lab.call("everything/get-sum", a="2", b=3)) == ("validation_error", None)
    weather = await lab.call("everything/get-structured-content", location="Chicago")
    assert isinstance(weather.value, dict) and "temperature" in weather.value
    image = await lab.call("everything/get-tiny-image")
    assert [type(each) for each in image.content].count(ImageBlock) == 1
    slow = await lab.call("everything/trigger-long-running-operation", duration=0.5, steps=2)
    assert slow.ok
    assert [each["fraction"] for each in lab.of("tool.progress")] == [0.5, 1.0]
    assert (await lab.call("everything/resources/list")).value["resources"]
    assert (await lab.call("everything/prompts/list")).value["prompts"]


async def test_the_filesystem_server_stays_in_the_workspace(lab: RealLab, tmp_path: Path) -> None:
    inside, outside = lab.ws / "inside.txt", tmp_path / "outside.txt"
    assert (await lab.call("filesystem/write_file", path=str(inside), content="hi")).ok
    assert inside.read_text() == "hi"
    assert (await lab.call("filesystem/read_text_file", path=str(inside))).text == "hi"
    assert not (await lab.call("filesystem/write_file", path=str(outside), content="hi")).ok
    assert not outside.exists()


async def test_a_server_that_is_declared_to_read_cannot_write(lab: RealLab) -> None:
    made = await lab.call("filesystem/create_directory", path=str(lab.ws / "made"))
    assert (made.ok, (lab.ws / "made").exists()) == (False, False)
    (mismatch,) = lab.of("tool.effect_mismatch")
    assert mismatch["path"] == str(lab.ws / "made")
    after = await lab.call("filesystem/list_directory", path=str(lab.ws))
    assert refusal(after) == ("host_unavailable", "mcp_quarantined")


async def test_the_git_server(lab: RealLab) -> None:
    repository(lab.ws)
    (lab.ws / "a.txt").write_text("one\n")
    place = {"repo_path": str(lab.ws)}
    assert "a.txt" in (await lab.call("git/git_status", **place)).text
    assert (await lab.call("git/git_add", **place, files=["a.txt"])).ok
    staged = await lab.call("git/git_diff_staged", **place)
    assert "+one" in staged.text


async def test_all_of_them_in_the_sessions_of_an_editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callgate.sources.mcp.session_servers.PATIENCE_S", 60.0)
    workspace = tmp_path / "project"
    workspace.mkdir()
    repository(workspace)
    servers = [
        {
            "name": name,
            "command": command[0],
            "args": list(command[1:]),
            "env": [{"name": key, "value": value} for key, value in ENV.items()],
        }
        for name, command in COMMANDS.items()
    ]
    async with connected(tmp_path / "home", settings='mode = "write"\n', capabilities=NOTICES) as client:
        session = await opened(client, workspace, servers)
        assert (await call(client, session, "mcp__everything__echo", message="hi")) == ("completed", "Echo: hi")
        written = await call(
            client, session, "mcp__filesystem__write_file", path=str(workspace / "a.txt"), content="hi"
        )
        assert (written[0], (workspace / "a.txt").read_text()) == ("completed", "hi")
        status = await call(client, session, "mcp.git/git_status", repo_path=str(workspace))
        assert status[0] == "completed" and "a.txt" in status[1]
        assert notices(client, session) == []
        await client.ask("session/close", sessionId=session)
