"""Callers over the socket that read late: output waits for them, within bounds, and gaps are marked."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate, ToolContext, tool
from callgate.core import tasks
from callgate.socket.buffers import _MOST_EVENTS
from callgate.socket.listening import listen
from tests.kernel.socket.test_serving import Peer as ProcessPeer
from tests.kernel.socket.test_serving import Served
from tests.kernel.socket.test_socket_items import Door, Peer, base

__all__ = ["base"]

LIMIT_S = 60.0
PIECE = "x" * 4_095 + "\n"
BEYOND = 3 * _MOST_EVENTS // len(PIECE)
"""More pieces than wait for one caller."""


class State:
    """Progress of the tools below."""

    emitted = 0
    resumed = 0
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


@tool(side_effects="none")
async def burst(context: ToolContext, pieces: int) -> str:
    """Emit pieces in one step."""
    for _ in range(pieces):
        context.output(PIECE)
    await asyncio.sleep(0)
    State.ended.set()
    return "done"


@tool(side_effects="none")
async def threaded(context: ToolContext, pieces: int) -> str:
    """Emit pieces in a thread."""

    def emit() -> None:
        for _ in range(pieces):
            context.output(PIECE)
            State.emitted += 1

    await asyncio.to_thread(emit)
    State.ended.set()
    return "done"


@tool(side_effects="none")
async def silent() -> str:
    """Say nothing."""
    for _ in range(100):
        await asyncio.sleep(0)
    State.resumed += 1
    return "done"


@asynccontextmanager
async def opened(base: Path) -> AsyncIterator[Door]:
    State.emitted = State.resumed = 0
    State.ended = asyncio.Event()
    async with Gate(base / "ws", [steady, burst, threaded, silent], home=base / "home", mode="ask") as gate:
        door = Door(gate, listen(str(base / "run" / "s")), base / "home")
        door.server.start(door.listener)
        try:
            yield door
        finally:
            await door.close()


async def unread(door: Door) -> Peer:
    """A peer whose own buffer is small, so that only what it reads arrives."""
    peer = Peer(*await asyncio.open_unix_connection(door.listener.path, limit=64 * 1024))
    door._peers.append(peer)
    return peer


async def everything(peer: Peer) -> tuple[list[Any], Any]:
    """The events of a call, and its result."""
    events = []
    while (frame := await peer.read())["type"] == "tool_event":
        events.append(frame["event"])
    return events, frame["result"]


def delivered(events: list[Any]) -> int:
    return sum(len(each["text"]) for each in events if each["kind"] == "partial_text") // len(PIECE)


def marked(events: list[Any]) -> int:
    """How many events the marks in a stream stand for."""
    marks = [each["message"] for each in events if each["kind"] == "log" and each["level"] == "warn"]
    return sum(int(each.split()[0]) for each in marks)


def is_behind(door: Door) -> bool:
    """Whether a call waits for a peer to read."""
    return any(each._out.backpressure.is_on for each in door.server._connections.values())


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not met():
            await asyncio.sleep(0)


@pytest.mark.parametrize("name", ["steady", "threaded"])
async def test_a_tool_waits_for_a_caller_that_reads_late_and_nothing_is_lost(base: Path, name: str) -> None:
    async with opened(base) as door:
        peer = await unread(door)
        peer.start(name, pieces=BEYOND)
        await until(lambda: is_behind(door))
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert not State.ended.is_set() and State.emitted < BEYOND
        events, result = await everything(peer)
        assert (delivered(events), marked(events)) == (BEYOND, 0)
        assert (result["ok"], result.get("diagnostics", [])) == (True, [])


async def test_a_burst_that_fits_the_bound_arrives_whole_however_late_it_is_read(base: Path) -> None:
    async with opened(base) as door:
        peer = await unread(door)
        pieces = _MOST_EVENTS // len(PIECE) // 2
        peer.start("burst", pieces=pieces)
        async with asyncio.timeout(LIMIT_S):
            await State.ended.wait()
        events, result = await everything(peer)
        assert (delivered(events), marked(events)) == (pieces, 0)
        assert result.get("diagnostics", []) == []


@pytest.mark.parametrize("name", ["steady", "burst", "threaded"])
async def test_beyond_the_bound_each_dropped_event_is_marked_in_the_stream_and_in_the_result(
    base: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(tasks, "PATIENCE_S", 0.05)
    async with opened(base) as door:
        peer = await unread(door)
        peer.start(name, pieces=BEYOND)
        async with asyncio.timeout(LIMIT_S):
            await State.ended.wait()  # it does not wait for ever
        events, result = await everything(peer)
        dropped = BEYOND - delivered(events)
        assert dropped > 0
        assert marked(events) == dropped
        assert result["ok"] is True
        (note,) = result["diagnostics"]
        assert note["level"] == "warn" and re.match(rf"{dropped} events of this call were dropped", note["message"])
        peer.start("steady", id="r2", pieces=1)
        events, result = await everything(peer)
        assert (delivered(events), marked(events), result.get("diagnostics", [])) == (1, 0, [])


async def test_a_caller_that_reads_late_can_cancel_at_once(base: Path) -> None:
    async with opened(base) as door:
        peer = await unread(door)
        peer.start("steady", pieces=BEYOND)
        await until(lambda: is_behind(door))
        peer.send(type="cancel_tool_call", requestId="r1")
        await until(lambda: bool(door.records()))
        _, result = await everything(peer)
        assert result["error"]["code"] == "CANCELLED"


async def test_a_call_that_says_nothing_and_calls_of_others_do_not_wait(base: Path) -> None:
    async with opened(base) as door:
        peer, other = await unread(door), await unread(door)
        peer.start("steady", pieces=BEYOND)
        await until(lambda: is_behind(door))
        peer.start("silent", id="r2")
        await until(lambda: State.resumed == 1)
        other.start("steady", pieces=3)
        events, result = await everything(other)
        assert (delivered(events), result["ok"]) == (3, True)
        assert is_behind(door)


async def test_a_peer_that_leaves_while_a_call_waits_for_it_ends_the_call(base: Path) -> None:
    async with opened(base) as door:
        peer = await unread(door)
        peer.start("steady", pieces=BEYOND)
        await until(lambda: is_behind(door))
        peer.writer.transport.abort()
        await until(lambda: bool(door.records()))
        assert [each.error_class for each in door.records()] == ["cancelled"]


async def test_a_subscriber_learns_of_missed_events_though_no_other_follows(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "PATIENCE_S", 0.05)
    async with opened(base) as door:
        peer = await unread(door)
        peer.send(type="subscribe", requestId="s", types=["tool.output_delta"])
        assert (await peer.read())["type"] == "subscribed"
        peer.start("steady", pieces=BEYOND)
        async with asyncio.timeout(LIMIT_S):
            await State.ended.wait()
        shown = missed = 0
        while shown + missed < BEYOND:
            frame = await peer.read()
            if frame["type"] == "event":
                missed += frame.get("missed", 0)
                shown += "event" in frame
        assert (shown + missed, missed > 0) == (BEYOND, True)


# --- processes -----------------------------------------------------------------------------------

TOTAL = 6 * 1024 * 1024
"""Bytes of output: more than wait for one caller."""
SHELL = f"echo begun > begun; head -c {TOTAL} /dev/zero | tr '\\0' x | fold -w 1000; echo > ended"
HOST = """
import json, os, sys

def say(**frame):
    sys.stdout.write(json.dumps({"v": 1, **frame}) + chr(10))
    sys.stdout.flush()

for line in sys.stdin:
    request = json.loads(line)
    id, method = request["id"], request["method"]
    if method == "init":
        say(id=id, ok=True, result={"value": {}})
    elif method == "get_tool_schemas":
        schema = {"type": "object", "properties": {}, "additionalProperties": False}
        say(id=id, ok=True, result={"value": [{"name": "parts", "description": "Stream.", "input_schema": schema}]})
    elif method == "execute_tool":
        for n in range(PIECES):
            say(id=id, event={"type": "part", "payload": {"n": n, "data": "x" * 4_000}})
        say(id=id, ok=True, result={"value": "done"})
    else:
        say(id=id, ok=True, result={"value": None})
"""
PIECES = TOTAL // 4_000


@pytest.fixture
def working(base: Path) -> Iterator[Served]:
    script = base / "host.py"
    script.write_text(HOST.replace("PIECES", str(PIECES)))
    (base / "h").mkdir(mode=0o700)
    command = f'command = ["{os.path.realpath(sys.executable)}", "-I", "{script}"]'
    (base / "h" / "settings.toml").write_text(f'[hosts.parts]\n{command}\neffect = "none"\n')
    served = Served(base, "--mode", "write")
    yield served
    served.leave()


def read_all(peer: ProcessPeer) -> tuple[list[Any], Any]:
    events = []
    while (frame := peer.read())["type"] == "tool_event":
        events.append(frame["event"])
    return events, frame["result"]


def read_late(other: ProcessPeer, served: Served) -> None:
    """Let a call produce what it can while nobody reads, and others be served meanwhile. Ends well
    before the call continues without its caller."""
    until = time.monotonic() + tasks.PATIENCE_S / 2
    for n in range(2_000):
        other.call("read_file", {"path": "a.txt"}, served.ws, id=f"r{n}")
        assert other.until("tool_result")["result"]["ok"]
        if time.monotonic() > until:
            return


def test_the_output_of_a_command_waits_in_its_pipe_for_a_caller_that_reads_late(working: Served) -> None:
    peer, other = working.peer(), working.peer()
    peer.call("shell", {"command": SHELL}, working.ws)
    until_there(working.ws / "begun")
    read_late(other, working)
    assert not (working.ws / "ended").exists()
    events, result = read_all(peer)
    text = "".join(each["text"] for each in events if each["kind"] == "partial_text")
    assert (text.count("x"), marked(events), result["ok"]) == (TOTAL, 0, True)


def test_parts_of_a_host_wait_for_a_caller_that_reads_late(working: Served) -> None:
    peer, other = working.peer(), working.peer()
    peer.call("parts", {}, working.ws)
    read_late(other, working)
    events, result = read_all(peer)
    numbers = [each["part"]["n"] for each in events if each["kind"] == "part"]
    assert (numbers, marked(events)) == ([*range(PIECES)], 0), result
    assert result["ok"] and result.get("diagnostics", []) == []


def until_there(path: Path) -> None:
    waiting = threading.Event()
    for _ in range(int(LIMIT_S / 0.01)):
        if path.exists():
            return
        waiting.wait(0.01)
    raise AssertionError(f"{path} is not there")
