"""The proxy as one of a chain: a conductor starts the agent, and carries what both say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.features.editor.acp.editor import Editor
from tests.features.editor.acp.talks import Fault

GREETING = {"protocolVersion": 1, "clientCapabilities": {}, "clientInfo": {"name": "conductor", "version": "1"}}


class Conductor:
    """The editor and the agent of a chain, in one."""

    def __init__(self, editor: Editor) -> None:
        self.editor = editor
        self.for_agent: list[tuple[str, Any]] = []

    def answer(self, wrapped: dict[str, Any]) -> Any:
        """As the agent does."""
        method, params = wrapped["method"], wrapped.get("params")
        self.for_agent.append((method, params))
        if method == "initialize":
            return {"protocolVersion": 1, "agentInfo": {"name": "last", "version": "1"}, "agentCapabilities": {}}
        if method == "session/new":
            return {"sessionId": "s1"}
        if method == "session/prompt":
            return {"stopReason": "end_turn"}
        raise Fault(-32601, "Method not found")

    async def from_agent(self, method: str, params: dict[str, Any]) -> Any:
        return await self.editor.ask("proxy/successor", {"method": method, "params": params, "_meta": {"hop": 1}})


@asynccontextmanager
async def _chained(home: Path, workspace: Path, *options: str) -> AsyncIterator[Conductor]:
    (home / "settings.toml").write_text('mode = "write"\n')
    editor = await Editor.spawned(home, "--unstable", *options, subcommand="acp-proxy", cwd=workspace, unstable=True)
    conductor = Conductor(editor)
    editor.answers["proxy/successor"] = conductor.answer
    try:
        yield conductor
    finally:
        await editor.stop()


async def test_a_chain_greets_its_successor_and_keeps_its_answer(home: Path, workspace: Path) -> None:
    async with _chained(home, workspace) as conductor:
        answer = await conductor.editor.ask("proxy/initialize", GREETING)
        assert answer["agentInfo"]["name"] == "last"
        [(method, params)] = conductor.for_agent
        assert method == "initialize"
        assert params["clientCapabilities"]["terminal"] is True


async def test_files_of_the_successor_go_through_the_gate(home: Path, workspace: Path) -> None:
    async with _chained(home, workspace) as conductor:
        await conductor.editor.ask("proxy/initialize", GREETING)
        opened = await conductor.editor.ask("session/new", {"cwd": str(workspace), "mcpServers": []})
        write = {"sessionId": opened["sessionId"], "path": str(workspace / "a"), "content": "x"}
        assert await conductor.from_agent("fs/write_text_file", write) == {}
        outside = {**write, "path": "/etc/passwd"}
        try:
            await conductor.from_agent("fs/write_text_file", outside)
        except Fault as fault:
            assert fault.data["class"] == "permission_denied"
        else:
            raise AssertionError("it was written")
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "hi"}}
        params = {"sessionId": opened["sessionId"], "update": update}
        conductor.editor.notify("proxy/successor", {"method": "session/update", "params": params})
        await asyncio.wait_for(conductor.editor.talks["s1"].seen("agent_message_chunk"), 30)
    assert (workspace / "a").read_text() == "x"


async def test_a_chain_needs_to_be_asked_for(home: Path, workspace: Path) -> None:
    (home / "settings.toml").write_text("")
    editor = await Editor.spawned(home, "--", "true", subcommand="acp-proxy", cwd=workspace)
    assert await editor.refused("proxy/initialize", GREETING) == -32601
    assert await editor.refused("proxy/successor", {"method": "x"}) == -32601
    await editor.stop()
