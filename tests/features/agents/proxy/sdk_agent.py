"""An agent made with the official Python SDK, which does all that a client offers."""

from __future__ import annotations

import asyncio
from typing import Any

import acp
from acp import schema


class SdkAgent(acp.Agent):
    def on_connect(self, conn: Any) -> None:
        self._client = conn

    async def initialize(self, protocol_version: int, **more: Any) -> Any:
        return acp.InitializeResponse(
            protocol_version=protocol_version,
            agent_capabilities=schema.AgentCapabilities(),
            agent_info=schema.Implementation(name="sdk", version="1"),
        )

    async def new_session(self, cwd: str, **more: Any) -> Any:
        self._cwd = cwd
        return acp.NewSessionResponse(session_id="sdk-1")

    async def cancel(self, session_id: str, **more: Any) -> None:
        pass

    async def prompt(self, session_id: str, prompt: list[Any], **more: Any) -> Any:
        client, path = self._client, f"{self._cwd}/a.txt"
        await client.session_update(
            session_id, acp.start_tool_call("c1", "Edit", kind="edit", status="pending", raw_input=None)
        )
        asked = await client.request_permission(
            session_id,
            schema.ToolCallUpdate(tool_call_id="c1", raw_input={"path": path, "content": "sdk\n"}),
            [
                schema.PermissionOption(option_id="y", name="Yes", kind="allow_once"),
                schema.PermissionOption(option_id="n", name="No", kind="reject_once"),
            ],
        )
        said = [getattr(asked.outcome, "option_id", "cancelled")]
        await client.write_text_file(session_id, path, "sdk\n")
        said.append((await client.read_text_file(session_id, path)).content)
        terminal = (await client.create_terminal(session_id, "cat", args=["a.txt"], cwd=self._cwd)).terminal_id
        said.append(str((await client.wait_for_terminal_exit(session_id, terminal)).exit_code))
        said.append((await client.terminal_output(session_id, terminal)).output)
        await client.release_terminal(session_id, terminal)
        await client.session_update(session_id, acp.update_tool_call("c1", status="completed"))
        await client.session_update(session_id, acp.update_agent_message_text("|".join(said)))
        return acp.PromptResponse(stop_reason="end_turn")


asyncio.run(acp.run_agent(SdkAgent()))
