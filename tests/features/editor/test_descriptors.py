"""An editor or an MCP client on two descriptors, served by a program that has no command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

LIMIT_S = 60.0
EDITOR = """
import asyncio, os, sys
from callgate.features.editor.instance import serve_editor
from callgate.features.editor.stdio import AcpOptions

requests, answers = os.dup(0), os.dup(1)
os.dup2(2, 1)
code = asyncio.run(serve_editor(requests, answers, AcpOptions(), lambda wired: None))
assert code == 0
print([name for name in sys.modules if name.split(".")[:2] == ["callgate", "cli"]], file=sys.stderr)
"""
MCP = """
import asyncio, os, sys
from callgate.config.home import Home
from callgate.features.mcp.server.local import serve_mcp
from callgate.instance.wiring.builder import register_configured
from callgate.instance.wiring.runtime import Wired

requests, answers = os.dup(0), os.dup(1)
os.dup2(2, 1)
wired = Wired(Home.from_environment())
register_configured(wired, ".")
asyncio.run(serve_mcp(requests, answers, wired, wired.session("."), elicits=False))
print([name for name in sys.modules if name.split(".")[:2] == ["callgate", "cli"]], file=sys.stderr)
"""


class Conversation:
    def __init__(self, program: str, base: Path) -> None:
        (base / "ws").mkdir()
        (base / "ws" / "a.txt").write_text("hello\n")
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=base / "ws",
            env={**os.environ, "CALLGATE_HOME": str(base / "home")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def send(self, method: str, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", "method": method, **message}).encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, method: str, **params: Any) -> tuple[Any, list[Any]]:
        """The result, and what came before it."""
        self.send(method, id=method, params=params)
        before = []
        assert self.process.stdout is not None
        while (message := json.loads(self.process.stdout.readline())).get("id") != method:
            before.append(message)
        return message["result"], before

    def end(self) -> str:
        """What it wrote to stderr."""
        _, errors = self.process.communicate(timeout=LIMIT_S)
        assert self.process.returncode == 0, errors
        return errors.decode()


def test_a_prompt_of_an_editor_needs_nothing_of_the_command_line(tmp_path: Path) -> None:
    editor = Conversation(EDITOR, tmp_path)
    editor.ask("initialize", protocolVersion=1)
    session = editor.ask("session/new", cwd=str(tmp_path / "ws"), mcpServers=[])[0]["sessionId"]
    prompt = [{"type": "text", "text": '/tool read_file {"path": "a.txt"}'}]
    end, updates = editor.ask("session/prompt", sessionId=session, prompt=prompt)
    assert end["stopReason"] == "end_turn"
    assert any(each["params"]["update"].get("status") == "completed" for each in updates)
    assert editor.end() == "[]\n"


def test_a_call_of_an_mcp_client_needs_nothing_of_the_command_line(tmp_path: Path) -> None:
    client = Conversation(MCP, tmp_path)
    client.ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={"name": "test", "version": "1"})
    client.send("notifications/initialized")
    result, _ = client.ask("tools/call", name="read_file", arguments={"path": "a.txt"})
    assert "hello" in result["content"][0]["text"]
    assert client.end() == "[]\n"
