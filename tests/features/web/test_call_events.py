"""Clients that read the events of their call late: the call waits, within bounds, and gaps are marked."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from callgate import ToolContext, tool
from callgate.core import tasks
from callgate.features.web import frames
from tests.features.web.instances import Client, serving

LIMIT_S = 60.0
PIECE = "x" * 4_095 + "\n"
BEYOND = 4 * frames.MOST_BYTES // len(PIECE)


class State:
    emitted = 0
    ended: asyncio.Event


@tool(side_effects="none")
async def steady(context: ToolContext, pieces: int) -> str:
    """Emit pieces, with a turn of the loop between any two."""
    for _ in range(pieces):
        context.output(PIECE)
        State.emitted += 1
        await asyncio.sleep(0)
    State.ended.set()
    return "done"


async def start(client: Client, pieces: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask for the events of a call, and read only the head of the response."""
    State.emitted, State.ended = 0, asyncio.Event()
    reader, writer = await asyncio.open_connection("127.0.0.1", client.port, limit=64 * 1024)
    body = json.dumps({"tool": "steady", "arguments": {"pieces": pieces}})
    head = {
        "Host": f"127.0.0.1:{client.port}",
        "Accept": "text/event-stream",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
        "Authorization": client.headers["authorization"],
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    writer.write(f"POST /v1/calls HTTP/1.1\r\n{lines}\r\n{body}".encode())
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
    return reader, writer


async def everything(reader: asyncio.StreamReader) -> tuple[list[Any], Any]:
    """The events of the call, and its result."""
    data = bytearray()
    async with asyncio.timeout(LIMIT_S):
        while size := int(await reader.readline(), 16):
            data += await reader.readexactly(size)
            await reader.readline()
    told = []
    for block in data.decode().strip().split("\n\n"):
        kind, body = block.split("\n", 1)
        told.append((kind, json.loads(body.removeprefix("data: "))))
    assert [kind for kind, _ in told[-1:]] == ["event: result"]
    return [each for _, each in told[:-1]], told[-1][1]


def delivered(events: list[Any]) -> int:
    return sum(len(each["payload"]["text"]) for each in events if each["type"] == "tool.output_delta") // len(PIECE)


def marked(events: list[Any]) -> int:
    return sum(int(each["payload"]["message"].split()[0]) for each in events if each["type"] == "tool.log")


async def test_a_call_waits_for_a_client_that_reads_late_and_nothing_is_lost(home: Path, tmp_path: Path) -> None:
    async with serving(home, tmp_path / "ws", tools=[steady]) as instance:
        reader, writer = await start(instance.client(), BEYOND)
        last = -1
        async with asyncio.timeout(LIMIT_S):
            while last != State.emitted:
                last = State.emitted
                for _ in range(200):
                    await asyncio.sleep(0)
        assert State.emitted < BEYOND
        events, result = await everything(reader)
        assert (delivered(events), marked(events)) == (BEYOND, 0)
        assert (result["ok"], result["diagnostics"]) == (True, [])
        writer.close()


async def test_beyond_the_bound_each_dropped_event_is_marked_in_the_stream_and_in_the_result(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "PATIENCE_S", 0.05)
    async with serving(home, tmp_path / "ws", tools=[steady]) as instance:
        reader, writer = await start(instance.client(), BEYOND)
        async with asyncio.timeout(LIMIT_S):
            await State.ended.wait()
        events, result = await everything(reader)
        lost = BEYOND - delivered(events)
        assert lost > 0
        counted = int(result["diagnostics"][0]["message"].split()[0])
        assert counted == marked(events) >= lost  # the last events of the call count, too
        assert (result["ok"], result["diagnostics"][0]["level"]) == (True, "warn")
        writer.close()


async def test_a_client_that_leaves_while_its_call_waits_ends_the_call(home: Path, tmp_path: Path) -> None:
    async with serving(home, tmp_path / "ws", tools=[steady]) as instance:
        _, writer = await start(instance.client(), BEYOND)
        async with asyncio.timeout(LIMIT_S):
            while not instance.runtime.calls.in_flight():
                await asyncio.sleep(0)
            writer.transport.abort()
            while instance.runtime.calls.in_flight():
                await asyncio.sleep(0)
        assert not State.ended.is_set()
