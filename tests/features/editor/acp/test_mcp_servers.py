"""MCP servers that an editor names, through the real process and its sandbox."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.features.editor.acp.conftest import NewHome
from tests.features.editor.acp.editor import LIMIT_S, Editor
from tests.features.editor.acp.talks import Talk
from tests.features.mcp.client.labs import ODD

pytestmark = pytest.mark.asyncio(loop_scope="session")


def odd(workspace: Path) -> Path:
    """The server, where the sandbox lets it be seen wherever these tests lie."""
    return Path(shutil.copy(ODD, workspace))


def holding(workspace: Path) -> dict[str, Any]:
    """A server that holds a pipe open as long as any of its processes lives; one of them is in a
    session of its own, which no signal to a group reaches."""
    os.mkfifo(workspace / "alive")
    script = f"exec 3>alive; setsid sleep 1000 & exec {sys.executable} -I {odd(workspace)}"
    return {"name": "odd", "command": "/bin/sh", "args": ["-c", script], "env": []}


async def opened(workspace: Path) -> int:
    """The pipe, once the server holds it."""
    return await asyncio.wait_for(asyncio.to_thread(os.open, workspace / "alive", os.O_RDONLY), LIMIT_S)


async def is_gone(pipe: int) -> bool:
    try:
        return await asyncio.wait_for(asyncio.to_thread(os.read, pipe, 1), LIMIT_S) == b""
    finally:
        os.close(pipe)


async def completed(talk: Talk, name: str, input: str) -> dict[str, Any]:
    """Call until the server has started: before that, its tools are not known. What a server
    answered is untrusted, so that later calls need approval."""
    talk.allow("allow_once")
    async with asyncio.timeout(LIMIT_S):
        while (card := await talk.tool(name, input))["status"] != "completed":
            pass
    return card


@pytest.mark.spec("S2-78")
@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, pytest.param(None, marks=pytest.mark.soak), pytest.param(signal.SIGTERM, marks=pytest.mark.soak)],
)
async def test_however_an_agent_ends_no_server_is_left(
    new_home: NewHome, workspace: Path, number: signal.Signals | None
) -> None:
    editor = await Editor.spawned(new_home())
    try:
        await editor.greet({})
        server = holding(workspace)
        talk = await editor.new(workspace, mode="write", mcpServers=[server])
        pipe = await opened(workspace)
        await completed(talk, "mcp__odd__pid", "{}")
        if number is not None:
            os.kill(editor.process.pid, number)
        else:
            assert await editor.stop() == 0
        assert await is_gone(pipe)
    finally:
        await editor.stop()
    assert editor.problems == []


@pytest.mark.spec("S2-04", "S2-18")
async def test_a_session_that_is_closed_ends_its_server_and_no_other(rich: Editor, workspace: Path) -> None:
    server = holding(workspace)
    first = await rich.new(workspace, mode="write", mcpServers=[server])
    pipe = await opened(workspace)
    other = {**server, "args": ["-c", f"exec {sys.executable} -I {odd(workspace)} --modern"]}
    second = await rich.new(workspace, mode="write", mcpServers=[other])
    await first.close()
    assert await is_gone(pipe)
    card = await completed(second, "mcp__odd__echo", '{"text": "hi"}')
    assert card["content"][0]["content"]["text"] == "hi"
    await second.close()


async def test_a_server_that_fails_is_a_notice_and_nothing_waits_for_one_that_never_answers(
    rich: Editor, workspace: Path
) -> None:
    never = {"name": "never", "command": "/bin/sh", "args": ["-c", "sleep 1000"], "env": []}
    fails = {"name": "fails", "command": "/bin/sh", "args": ["-c", "exit 3"], "env": []}
    slow = await rich.new(workspace, mcpServers=[never, fails])
    quick = await rich.new(workspace)
    assert (await quick.tool("list_dir", "{}"))["status"] == "completed"
    await slow.seen("notice")
    assert ["fails" in each["title"] for each in slow.updates("notice")] == [True]
    await slow.close()


async def test_a_server_of_an_editor_is_in_the_sandbox(rich: Editor, workspace: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    server = {"name": "odd", "command": sys.executable, "args": ["-I", str(odd(workspace))], "env": []}
    talk = await rich.new(workspace, mode="write", mcpServers=[server])
    await completed(talk, "mcp__odd__write", '{"text": "inside.txt"}')
    await talk.tool("mcp__odd__write", f'{{"text": "{outside}"}}')
    assert (workspace / "inside.txt").exists() and not outside.exists()
    await talk.close()


async def test_a_server_of_the_editor_writes_nothing_before_a_call_that_may_change_something(
    rich: Editor, workspace: Path
) -> None:
    script = shutil.copy(Path(ODD).parents[1] / "rights/writing_server.py", workspace)
    server = {"name": "writing", "command": sys.executable, "args": ["-I", script], "env": []}
    talk = await rich.new(workspace, mode="read", mcpServers=[server])
    async with asyncio.timeout(LIMIT_S):  # until it is there, no such tool is known
        while "Mode read" not in json.dumps(
            (refused := await talk.tool("mcp.writing/change", '{"text": "x"}'))["content"]
        ):
            pass
    assert (refused["status"], [*workspace.glob("left-by-*")]) == ("failed", [])
    await talk.set_mode("write")
    changed = await talk.tool("mcp.writing/change", '{"text": "x"}')
    assert (changed["status"], (workspace / "left-by-change-x").exists()) == ("completed", True)
