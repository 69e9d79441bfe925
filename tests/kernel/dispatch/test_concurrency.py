"""Calls side by side: how many, in which order, and with what of their own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from callgate.core.content import TextBlock, ToolResultBlock, ToolUseBlock
from callgate.core.effects import SideEffects
from callgate.core.sessions import Mode, Session
from callgate.dispatch.dispatcher import CallLimits
from callgate.dispatch.lanes import Lanes
from tests.support import QUICK, Bench, make_tool

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}}


class Gauge:
    """A tool body that waits to be released and counts how many wait at once."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.started: list[int] = []
        self.release = asyncio.Event()

    async def __call__(self, input: Any, context: Any) -> str:
        self.running += 1
        self.most = max(self.most, self.running)
        self.started.append(input.get("n", 0))
        try:
            await self.release.wait()
        finally:
            self.running -= 1
        return str(input.get("n", 0))


async def run_all(bench: Bench, count: int, session: Session | None = None) -> list[ToolResultBlock]:
    uses = [ToolUseBlock(f"u{n}", "probe", {"n": n}) for n in range(count)]
    dispatch = bench.dispatcher.dispatch
    return await asyncio.gather(*(dispatch(use, session or bench.session) for use in uses))


@pytest.mark.spec("S4-27", "T-3")
async def test_six_calls_under_a_cap_of_four_start_in_order_and_all_finish() -> None:
    gauge = Gauge()
    bench = Bench("/", make_tool(schema=NUMBER, run=gauge))
    batch = asyncio.create_task(run_all(bench, 6))
    await bench.recorder.seen("tool.called", 4)
    await asyncio.sleep(0)
    assert gauge.started == [0, 1, 2, 3]
    assert len(bench.recorder.of("tool.called")) == 4, "a queued call has not been called"
    gauge.release.set()
    blocks = await batch
    assert [block.content for block in blocks] == [[TextBlock(str(n))] for n in range(6)]
    assert gauge.started == [0, 1, 2, 3, 4, 5]
    assert gauge.most == 4


@pytest.mark.parametrize("narrower", [Mode.ASK, Mode.READ, Mode.NONE])
async def test_a_queued_call_does_not_start_in_a_mode_that_would_not_let_it(narrower: Mode) -> None:
    gauge = Gauge()
    probe = make_tool(effect=SideEffects.WRITE, schema=NUMBER, run=gauge)
    bench = Bench("/", probe, mode=Mode.WRITE)
    batch = asyncio.create_task(run_all(bench, 5))
    await bench.recorder.seen("tool.called", 4)
    bench.session.mode = narrower
    gauge.release.set()
    assert [block.is_error for block in await batch] == [False] * 4 + [True]
    assert gauge.started == [0, 1, 2, 3]


@pytest.mark.spec("S4-28")
async def test_the_cap_is_per_session() -> None:
    gauge = Gauge()
    bench = Bench("/", make_tool(schema=NUMBER, run=gauge))
    sessions = [Session(workspace="/"), Session(workspace="/")]
    batches = [asyncio.create_task(run_all(bench, 5, s)) for s in sessions]
    await bench.recorder.seen("tool.called", 8)
    assert gauge.running == 8
    gauge.release.set()
    await asyncio.gather(*batches)


@pytest.mark.spec("S4-29")
def test_a_cap_below_one_is_refused() -> None:
    with pytest.raises(ValueError):
        Bench("/", limits=CallLimits(concurrency=0))
    with pytest.raises(ValueError):
        Lanes(-1)


@pytest.mark.spec("S4-31")
async def test_parallel_calls_of_one_tool_share_no_state() -> None:
    async def run(input: Any, context: Any) -> str:
        mine = context.tool_use_id
        await asyncio.sleep(0)
        assert context.tool_use_id == mine
        input["n"] += 100
        return str(input["n"])

    bench = Bench("/", make_tool(schema=NUMBER, run=run))
    results = await asyncio.gather(*(bench.run("probe", {"n": n}) for n in range(20)))
    assert [result.text for result in results] == [str(n + 100) for n in range(20)]


@pytest.mark.spec("S4-32")
async def test_a_call_that_waits_for_a_person_holds_no_slot() -> None:
    asked = asyncio.Event()

    async def never(question: Any) -> bool:
        asked.set()
        await asyncio.Event().wait()
        return False

    bench = Bench(
        "/",
        make_tool("writer", SideEffects.WRITE),
        make_tool("look"),
        human=never,
        limits=CallLimits(concurrency=1, stop=QUICK.stop),
    )
    waiting = bench.start("writer")
    await asked.wait()
    assert (await bench.run("look")).ok
    await bench.dispatcher.cancel_session_tools(bench.session.id)
    await waiting


async def test_a_tool_may_cap_itself_and_lets_others_pass() -> None:
    gauge = Gauge()
    bench = Bench("/", make_tool("single", schema=NUMBER, run=gauge, max_concurrent=1), make_tool("look"))
    first, second = bench.start("single", {"n": 1}), bench.start("single", {"n": 2})
    await bench.recorder.seen("tool.called")
    assert (await bench.run("look")).ok
    assert gauge.started == [1]
    gauge.release.set()
    await asyncio.gather(first, second)
    assert gauge.most == 1


async def test_no_slot_is_lost_when_calls_are_cancelled_in_the_queue() -> None:
    gauge = Gauge()
    bench = Bench("/", make_tool(schema=NUMBER, run=gauge), limits=CallLimits(concurrency=2, stop=QUICK.stop))
    tasks = [bench.start("probe", {"n": n}) for n in range(6)]
    await bench.recorder.seen("tool.called", 2)
    for task in tasks[2:5]:
        task.cancel()
    gauge.release.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert gauge.started == [0, 1, 5]
    assert len(await asyncio.gather(*(bench.run("probe", {"n": n}) for n in range(4)))) == 4
    assert bench.dispatcher._lanes.by_session == {}, "an idle session costs nothing"
