"""A server that reads late: calls of a worker wait, within bounds, and dropped output is marked."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from callgate.core.content import TextBlock
from callgate.core.events import OUTPUT_DELTA
from callgate.core.tasks import Backpressure, dropped_events
from callgate.core.tools import ToolOutput
from callgate.features.fleet.worker import connection
from callgate.features.fleet.worker.connection import _Outbox
from callgate.features.fleet.worker.service import WorkerService
from callgate.protocol.host_v1.runtime import RuntimeWire
from callgate.protocol.host_v1.workers import OF_WORKER, RunTool, WorkerContext, ask

LIMIT_S = 60.0
PIECE = "x" * 1_000
CONTEXT = WorkerContext(
    session_id="s",
    workspace_path="pool://build/app",
    tool_use_id="tu_1",
    call_id="tu_1",
    mode="write",
    caller="http",
)
RUN = RuntimeWire(OF_WORKER).encode(ask("7", RunTool(tool_name="stream", context=CONTEXT))).rstrip()


class FakeSocket:
    """The server's end of a connection: it reads while `reads` is set."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.frames: list[Any] = []

    async def send(self, frame: bytes, *, text: bool) -> None:
        assert text
        await self.reads.wait()
        self.frames.append(json.loads(frame))


class FakeCalls:
    """A tool that emits pieces of output and returns."""

    def __init__(self, pieces: int) -> None:
        self.pieces = pieces
        self.ended = asyncio.Event()
        self.backpressure: Backpressure | None = None

    async def run(self, *given: Any) -> ToolOutput:
        report, self.backpressure = given[3], given[5]
        for _ in range(self.pieces):
            report(OUTPUT_DELTA, {"stream": "text", "text": PIECE})
        self.ended.set()
        return ToolOutput(content=[TextBlock("done")])

    async def stop_all(self, calls: Any) -> None:
        pass


async def streamed(pieces: int) -> tuple[FakeSocket, bool]:
    """Have a worker run a call for a server that reads only after the call has ended. Returns the
    frames, and whether the call was to wait."""
    socket, calls = FakeSocket(), FakeCalls(pieces)
    outbox = _Outbox(socket)  # type: ignore[arg-type]
    service = WorkerService(calls, {}, 1, outbox.put, backpressure=outbox.backpressure)  # type: ignore[arg-type]
    writing = asyncio.get_running_loop().create_task(outbox.run())
    service.receive(RUN)
    async with asyncio.timeout(LIMIT_S):
        await calls.ended.wait()
        assert calls.backpressure is outbox.backpressure
        waited = outbox.backpressure.is_on
        socket.reads.set()
        while not socket.frames or "ok" not in socket.frames[-1]:
            await asyncio.sleep(0)
    writing.cancel()
    await service.close()
    return socket, waited


async def test_a_call_is_to_wait_for_a_server_that_does_not_read() -> None:
    assert not (await streamed(10))[1]
    assert (await streamed(connection._HIGH // len(PIECE) + 10))[1]


async def test_dropped_output_is_marked_in_the_stream_and_in_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_MOST_WAITING", 100_000)
    socket, _ = await streamed(200)
    *events, answer = socket.frames
    delivered = [each for each in events if "text" in each["event"]["payload"]]
    dropped = 200 - len(delivered)
    assert dropped > 50
    assert answer["result"]["value"]["output"]["metadata"]["diagnostics"] == [dropped_events(dropped)]


async def test_the_mark_stands_where_the_output_is_missing() -> None:
    sent: list[Any] = []
    taken = iter([True, True, False, False, True, True])

    def send(frame: bytes, droppable: bool) -> bool:
        is_taken = not droppable or next(taken)
        if is_taken:
            sent.append(json.loads(frame))
        return is_taken

    service = WorkerService(FakeCalls(5), {}, 1, send)  # type: ignore[arg-type]
    service.receive(RUN)
    async with asyncio.timeout(LIMIT_S):
        while not sent or "ok" not in sent[-1]:
            await asyncio.sleep(0)
    await service.close()
    output, mark = {"text": PIECE, "stream": "text"}, {"log": {"level": "warn", "message": dropped_events(2)}}
    assert [each["event"]["payload"] for each in sent[:-1]] == [output, output, mark, output]
