"""One tool in one file, called over every wire: the same answer, the same record."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import StdioServerParameters
from mcp.client.client import Client

from callgate import Gate
from callgate.client.blocking import connect
from callgate.sources.functions import load_tools
from tests.kernel.cli.running import CALLGATE, environment, installed

LIMIT_S = 60.0
TOOL = '''
from callgate import tool

@tool(side_effects="read")
async def count_words(text: str) -> dict:
    """Count the words of a text."""
    return {"words": len(text.split())}
'''
GIVEN = {"text": "one two three"}
VALUE = {"words": 3}


class Place:
    """A home whose settings load the file, and a workspace."""

    def __init__(self, path: Path) -> None:
        self.home, self.work = path / "home", path / "work"
        self.home.mkdir(mode=0o700)
        self.work.mkdir()
        self.file = self.home / "counting.py"
        self.file.write_text(TOOL)
        (self.home / "settings.toml").write_text('[tools]\nload = ["counting.py"]\n')
        self.env = environment({"CALLGATE_HOME": str(self.home)})


async def by_library(place: Place) -> Any:
    tools = load_tools(str(place.file), beside=str(place.home))
    async with Gate(place.work, home=place.home, tools=tools) as gate:
        return (await gate.call("count_words", GIVEN)).value


async def by_command(place: Place) -> Any:
    words = ("call", "--no-instance", "--json", "count_words", "text=one two three")
    return installed(*words, cwd=place.work, env=place.env).json["value"]


async def by_socket(place: Place) -> Any:
    async with connect(home=place.home, cwd=place.work) as gate:
        return (await gate.call("count_words", GIVEN)).value


async def by_http(place: Place) -> Any:
    (record,) = (json.loads(each.read_text()) for each in (place.home / "instances").iterdir())
    (token,) = (each.read_text() for each in (place.home / "run").glob("*.token"))
    async with httpx2.AsyncClient(base_url=record["httpUrl"].rstrip("/"), timeout=LIMIT_S) as client:
        answer = await client.post(
            "/v1/calls",
            json={"tool": "count_words", "arguments": GIVEN},
            headers={"authorization": f"Bearer {token.strip()}"},
        )
    return answer.json()["value"]


async def by_mcp(place: Place) -> Any:
    words = ["mcp", "serve", "--workspace", str(place.work)]
    server = StdioServerParameters(command=CALLGATE, args=words, env=dict(place.env))
    async with asyncio.timeout(LIMIT_S), Client(server) as client:
        return (await client.call_tool("count_words", GIVEN)).structured_content


async def by_editor(place: Place) -> Any:
    """ACP, with a prompt that makes one call."""
    agent = subprocess.Popen([CALLGATE, "acp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=place.env)
    assert agent.stdin is not None
    assert agent.stdout is not None

    def ask(id: int, method: str, params: Mapping[str, Any]) -> tuple[Any, list[Any]]:
        message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        agent.stdin.write(json.dumps(message).encode() + b"\n")  # type: ignore[union-attr]
        agent.stdin.flush()  # type: ignore[union-attr]
        updates = []
        while "id" not in (said := json.loads(agent.stdout.readline())):  # type: ignore[union-attr]
            updates.append(said["params"]["update"])
        return said["result"], updates

    ask(1, "initialize", {"protocolVersion": 1})
    made, _ = ask(2, "session/new", {"cwd": str(place.work), "mcpServers": []})
    text = f"/tool count_words {json.dumps(GIVEN)}"
    prompt = {"sessionId": made["sessionId"], "prompt": [{"type": "text", "text": text}]}
    _, updates = await asyncio.to_thread(ask, 3, "session/prompt", prompt)
    agent.communicate(timeout=LIMIT_S)
    (end,) = (each for each in updates if each.get("status") == "completed")
    return json.loads(end["content"][0]["content"]["text"])


async def by_model(place: Place, tools: str) -> Any:
    """A model that calls natively, or writes its calls as text; what it is told is the answer."""
    script = place.home / f"{tools}.toml"
    script.write_text(
        '[[replies]]\ncalls = [{ tool = "count_words", input = { text = "one two three" } }]\n'
        '[[replies]]\nexpect = \'"words":3\'\ntext = "Three."\n'
    )
    with (place.home / "settings.toml").open("a") as settings:
        settings.write(f'[models.{tools}]\nkind = "scripted"\npath = "{script}"\ntools = "{tools}"\n')
    ran = installed("run", "Count.", "--model", tools, cwd=place.work, env=place.env)
    return VALUE if (ran.code, ran.out.strip()) == (0, "Three.") else ran


async def by_native_model(place: Place) -> Any:
    return await by_model(place, "native")


async def by_text_model(place: Place) -> Any:
    return await by_model(place, "text")


WIRES: dict[str, Callable[[Place], Awaitable[Any]]] = {
    "library": by_library,
    "cli": by_command,
    "plugin": by_socket,
    "http": by_http,
    "mcp": by_mcp,
    "acp": by_editor,
    "agent": by_native_model,
    "llm": by_text_model,
}
"""By the caller that the record names."""


@pytest.mark.spec("S4-80")
@pytest.mark.timeout(180)
async def test_a_tool_in_one_file_is_the_same_over_every_wire(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert installed("serve", "--detach", cwd=place.work, env=place.env).code == 0
    try:
        values = {wire: await call(place) for wire, call in WIRES.items()}
    finally:
        installed("stop", cwd=place.work, env=place.env)
    assert values == dict.fromkeys(WIRES, VALUE)
    records = [json.loads(line) for line in (place.home / "audit.jsonl").read_text().splitlines()]
    same = ("tool", "decision", "args", "args_hash", "result", "side_effects", "source", "policy")
    assert [record["caller"] for record in records] == list(WIRES)
    assert len({tuple(str(record.get(key)) for key in same) for record in records}) == 1
    assert os.path.realpath(place.work) == records[0]["cwd"]
