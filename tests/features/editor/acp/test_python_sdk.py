"""The official Python SDK as the client; what it drops or complains of is a failure."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import acp
import pytest
from acp import schema
from acp.connection import StreamDirection, StreamEvent

from tests.features.editor.acp.conftest import NewHome
from tests.features.editor.acp.editor import CALLGATE, environment
from tests.features.editor.acp.models import Asks, Models, Says
from tests.features.editor.acp.published import Published

pytestmark = pytest.mark.asyncio(loop_scope="session")


class SdkEditor:
    """What the SDK calls a client."""

    def __init__(self) -> None:
        self.updates: list[Any] = []
        self.questions: list[str] = []
        self.buffers: dict[str, str] = {}
        self.terminals: list[str] = []
        self.begun = asyncio.Event()
        self._over = asyncio.Event()

    async def session_update(self, session_id: str, update: Any, **more: Any) -> None:
        self.updates.append(update)

    async def request_permission(self, session_id: str, tool_call: Any, options: list[Any], **more: Any) -> Any:
        self.questions.append(tool_call.tool_call_id)
        chosen = next(each for each in options if each.kind == "allow_once")
        return schema.RequestPermissionResponse(
            outcome=schema.AllowedOutcome(outcome="selected", option_id=chosen.option_id)
        )

    async def read_text_file(self, session_id: str, path: str, **more: Any) -> Any:
        if path not in self.buffers:
            raise acp.RequestError(-32002, "Resource not found")
        return schema.ReadTextFileResponse(content=self.buffers[path])

    async def write_text_file(self, session_id: str, path: str, content: str, **more: Any) -> None:
        self.buffers[path] = content

    async def create_terminal(self, session_id: str, command: str, **more: Any) -> Any:
        self.terminals.append("create")
        return schema.CreateTerminalResponse(terminal_id="t")

    async def wait_for_terminal_exit(self, session_id: str, terminal_id: str, **more: Any) -> Any:
        self.begun.set()
        await self._over.wait()
        return schema.WaitForTerminalExitResponse(signal="SIGKILL")

    async def terminal_output(self, session_id: str, terminal_id: str, **more: Any) -> Any:
        return schema.TerminalOutputResponse(output="so far", truncated=False)

    async def kill_terminal(self, session_id: str, terminal_id: str, **more: Any) -> None:
        self.terminals.append("kill")
        self._over.set()

    async def release_terminal(self, session_id: str, terminal_id: str, **more: Any) -> None:
        self.terminals.append("release")
        self._over.set()


class Checked:
    """Validates every message of the agent as it passes."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.count = 0
        self._asked: dict[Any, str] = {}
        self._published = Published()

    def __call__(self, event: StreamEvent) -> None:
        message = event.message
        if event.direction is StreamDirection.OUTGOING:
            if "method" in message and "id" in message:
                self._asked[message["id"]] = message["method"]
            return
        self.count += 1
        method = None if "method" in message else self._asked.get(message["id"])
        self.problems += self._published.problems(message, method)


@pytest.mark.spec("S2-01", "S2-24", "S2-31")
async def test_the_python_sdk_drives_a_session_from_its_start_to_its_second_life(
    new_home: NewHome, models: Models, workspace: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    editor, checked = SdkEditor(), Checked()
    play = models.play(
        Says("I write.", thinking="Better write.", calls=[Asks("write_file", {"path": "a.txt", "content": "x\n"})]),
        Says("Done."),
    )
    files = schema.FileSystemCapabilities(read_text_file=True, write_text_file=True)
    can = schema.ClientCapabilities(fs=files, terminal=True)
    async with acp.spawn_agent_process(
        editor,
        CALLGATE[0],
        *CALLGATE[1:],
        "acp",
        env=environment(new_home()),
        transport_kwargs={"stderr": None, "limit": 16 * 1024 * 1024},
        observers=[checked],
        use_unstable_protocol=True,
    ) as (agent, process):
        greeting = await agent.initialize(protocol_version=acp.PROTOCOL_VERSION, client_capabilities=can)
        assert greeting.agent_capabilities is not None and greeting.agent_capabilities.load_session
        opened = await agent.new_session(cwd=str(workspace), mcp_servers=[])
        id = opened.session_id
        assert (await agent.prompt(prompt=[acp.text_block(f"go {play}")], session_id=id)).stop_reason == "end_turn"
        assert (len(editor.questions), editor.buffers) == (1, {str(workspace / "a.txt"): "x\n"})
        await agent.set_session_mode(mode_id="write", session_id=id)
        running = asyncio.ensure_future(
            agent.prompt(prompt=[acp.text_block('/tool shell {"command": "sleep 1000"}')], session_id=id)
        )
        await asyncio.wait_for(editor.begun.wait(), 60)
        await agent.cancel(session_id=id)
        assert (await asyncio.wait_for(running, 60)).stop_reason == "cancelled"
        assert editor.terminals == ["create", "kill", "release"]
        live = _said(editor.updates)
        await agent.close_session(session_id=id)
        editor.updates.clear()
        await agent.load_session(cwd=str(workspace), session_id=id, mcp_servers=[])
        assert _said(editor.updates) == live == "I write.Done."
        listed = await agent.list_sessions(cwd=str(workspace))
        assert [each.session_id for each in listed.sessions] == [id]
        with pytest.raises(acp.RequestError) as caught:
            await agent.load_session(cwd=str(workspace), session_id="nobody", mcp_servers=[])
        assert caught.value.code == -32602
    assert process.returncode == 0
    assert (checked.problems, [each.getMessage() for each in caplog.records]) == ([], [])
    assert checked.count > 20


def _said(updates: list[Any]) -> str:
    return "".join(each.content.text for each in updates if each.session_update == "agent_message_chunk")
