"""Stopping calls: wherever they are, for whatever reason, with one end each."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest

from callgate.core.calls import ToolCall
from callgate.core.content import TextBlock
from callgate.core.effects import SideEffects
from callgate.core.errors import ToolCancelled, ToolErrorClass
from callgate.core.sessions import Session
from callgate.core.tools import ToolOutput
from callgate.dispatch.dispatcher import CallLimits
from callgate.dispatch.running import Running, Stop, StopLimits
from tests.support import QUICK, Bench, make_tool


async def forever(input: Any, context: Any) -> str:
    await asyncio.Event().wait()
    return "never"


async def polling(input: Any, context: Any) -> str:
    await context.cancel_event.wait()
    raise ToolCancelled()


async def stubborn(input: Any, context: Any) -> str:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue


async def test_a_stop_between_the_end_of_a_wait_and_what_follows_is_not_lost() -> None:
    table = Running(StopLimits())
    made = ToolCall(tool="t", arguments={}, session=Session(workspace="/"))
    waited: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def wait() -> Any:
        return await table.enter(made).until(waited)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    running = table.find(made.id)
    assert running is not None
    waited.set_result("started")
    running.stop = Stop.CANCEL  # as `Running.stop` does, before the waiting task has its turn
    with pytest.raises(ToolCancelled):
        await task
    table.remove(running)


@pytest.mark.spec("S4-61")
async def test_cancelling_a_session_reaches_all_its_calls_and_no_other() -> None:
    contexts: list[Any] = []
    cancelled: list[int] = []

    async def run(input: Any, context: Any) -> str:
        contexts.append(context)
        return await forever(input, context)

    bench = Bench("/", make_tool(run=run, on_cancel=lambda: cancelled.append(1)))
    other = Session(workspace="/")
    mine = [bench.start("probe") for _ in range(3)]
    theirs = bench.start("probe", session=other)
    await bench.recorder.seen("tool.called", 4)
    await bench.dispatcher.cancel_session_tools(bench.session.id)
    results = await asyncio.gather(*mine)
    assert [r.error.error_class for r in results] == [ToolErrorClass.CANCELLED] * 3
    assert [c.cancel_event.is_set() for c in contexts] == [True, True, True, False]
    assert len(cancelled) == 3
    assert not theirs.done()
    await bench.dispatcher.cancel_session_tools(other.id)
    await theirs


@pytest.mark.spec("S4-62")
async def test_a_polling_tool_ends_itself_and_its_end_comes_after_its_clean_up() -> None:
    order: list[str] = []

    async def run(input: Any, context: Any) -> str:
        await context.cancel_event.wait()
        await asyncio.sleep(0)
        order.append("cleaned")
        raise ToolCancelled()

    bench = Bench("/", make_tool(run=run))
    call = bench.start("probe")
    await bench.recorder.seen("tool.called")
    await bench.dispatcher.cancel_session_tools(bench.session.id)
    order += bench.recorder.types
    assert order == ["cleaned", "tool.called", "tool.failed"]
    assert (await call).error.error_class is ToolErrorClass.CANCELLED


@pytest.mark.spec("S4-62")
@pytest.mark.parametrize("details", [{"left": 3}, [1, 2], None])
async def test_a_tool_that_ends_itself_keeps_the_details_of_its_error(details: Any) -> None:
    async def run(input: Any, context: Any) -> str:
        await context.cancel_event.wait()
        raise ToolCancelled("stopped at 3", details=details)

    bench = Bench("/", make_tool(run=run))
    call = bench.start("probe")
    await bench.recorder.seen("tool.called")
    await bench.dispatcher.cancel_session_tools(bench.session.id)
    error = (await call).error
    own = details if isinstance(details, dict) else {} if details is None else {"details": details}
    assert (error.error_class, error.details) == (ToolErrorClass.CANCELLED, {**own, "stopped": True})


@pytest.mark.spec("S4-63", "T-2")
async def test_output_returned_after_a_cancel_is_kept_but_the_call_is_cancelled() -> None:
    async def run(input: Any, context: Any) -> ToolOutput:
        await context.cancel_event.wait()
        return ToolOutput(content=[TextBlock("half of it")], success=False)

    bench = Bench("/", make_tool(run=run))
    call = bench.start("probe")
    await bench.recorder.seen("tool.called")
    await bench.dispatcher.cancel_session_tools(bench.session.id)
    result = await call
    assert result.error.error_class is ToolErrorClass.CANCELLED
    assert result.partial
    assert "half of it" in result.text
    failed = bench.recorder.one("tool.failed")
    assert failed.payload["partial_output"] == "half of it"
    assert bench.recorder.of("tool.completed") == []


@pytest.mark.spec("S4-64", "T-1")
async def test_a_queued_call_never_starts_once_cancelled() -> None:
    started: list[int] = []

    async def run(input: Any, context: Any) -> str:
        started.append(1)
        return await forever(input, context)

    bench = Bench("/", make_tool(run=run), limits=CallLimits(concurrency=1, stop=QUICK.stop))
    calls = [bench.start("probe") for _ in range(3)]
    await bench.recorder.seen("tool.called")
    await bench.dispatcher.cancel_session_tools(bench.session.id)
    results = await asyncio.gather(*calls)
    assert [r.error.error_class for r in results] == [ToolErrorClass.CANCELLED] * 3
    assert started == [1]
    assert len(bench.recorder.of("tool.called")) == 1
    assert len(bench.recorder.terminal) == 3


@pytest.mark.spec("S4-67", "T-9")
async def test_a_tool_that_ignores_everything_is_abandoned_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench("/", make_tool(run=stubborn))
    call = bench.start("probe")
    await bench.recorder.seen("tool.called")
    with caplog.at_level(logging.WARNING, "callgate"):
        await bench.dispatcher.cancel_session_tools(bench.session.id)
        result = await call
    assert result.error.error_class is ToolErrorClass.CANCELLED
    assert result.error.details == {"stopped": False}
    assert "abandoned" in caplog.text
    await bench.dispatcher.close()


async def test_abandoned_work_keeps_its_slot_until_it_has_ended() -> None:
    release = asyncio.Event()

    async def run(input: Any, context: Any) -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    limits = CallLimits(concurrency=1, stop=StopLimits(grace_s=0.01, abandon_s=0.05, slot_s=30))
    bench = Bench("/", make_tool(run=run), make_tool("next"), limits=limits)
    call = bench.start("probe")
    await bench.recorder.seen("tool.called")
    await bench.dispatcher.cancel_session_tools(bench.session.id)
    assert (await call).error.error_class is ToolErrorClass.CANCELLED
    after = bench.start("next")
    await asyncio.sleep(0.02)
    assert not after.done(), "the slot is still taken"
    release.set()
    assert (await after).ok


async def test_abandoned_work_loses_its_slot_in_the_end() -> None:
    limits = CallLimits(concurrency=1, stop=StopLimits(grace_s=0.01, abandon_s=0.02, slot_s=0.05))

    async def run(input: Any, context: Any) -> str:
        for _ in range(3):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue
        return "gave up"

    bench = Bench("/", make_tool(run=run), make_tool("next"), limits=limits)
    call = bench.start("probe")
    await bench.recorder.seen("tool.called")
    await bench.dispatcher.cancel_session_tools(bench.session.id)
    await call
    async with asyncio.timeout(60):
        assert (await bench.run("next")).ok


@pytest.mark.spec("S4-69")
async def test_cancelling_twice_equals_once() -> None:
    cancels: list[int] = []
    bench = Bench("/", make_tool(run=forever, on_cancel=lambda: cancels.append(1)))
    call = bench.start("probe")
    await bench.recorder.seen("tool.called")
    await asyncio.gather(*(bench.dispatcher.cancel_session_tools(bench.session.id) for _ in range(3)))
    await call
    await bench.dispatcher.cancel_session_tools(bench.session.id)
    assert cancels == [1]
    assert len(bench.recorder.terminal) == 1


@pytest.mark.spec("S4-70")
async def test_several_stubborn_calls_are_stopped_at_once_and_not_one_after_another() -> None:
    all_cancelled = asyncio.Barrier(4)

    async def run(input: Any, context: Any) -> str:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await all_cancelled.wait()  # none is over before each has been cancelled
        return "late"

    bench = Bench("/", make_tool(run=run), limits=CallLimits(stop=StopLimits(grace_s=0.05, abandon_s=600)))
    calls = [bench.start("probe") for _ in range(4)]
    await bench.recorder.seen("tool.called", 4)
    async with asyncio.timeout(60):
        await bench.dispatcher.cancel_session_tools(bench.session.id)
    await asyncio.gather(*calls)
    await bench.dispatcher.close()


async def test_a_call_that_finished_before_the_cancel_keeps_its_result() -> None:
    bench = Bench("/", make_tool())
    result = await bench.run("probe")
    assert not await bench.dispatcher.cancel(result.call_id)
    assert result.ok


async def test_one_call_can_be_cancelled_by_its_id() -> None:
    bench = Bench("/", make_tool(run=forever))
    first, second = bench.start("probe"), bench.start("probe")
    await bench.recorder.seen("tool.called", 2)
    id = bench.recorder.of("tool.called")[0].payload["call_id"]
    assert await bench.dispatcher.cancel(id)
    assert (await first).error.error_class is ToolErrorClass.CANCELLED
    assert not second.done()
    await bench.dispatcher.close()
    assert (await second).error.error_class is ToolErrorClass.SHUTTING_DOWN


async def test_a_caller_that_goes_away_takes_its_call_along() -> None:
    cleaned = asyncio.Event()

    async def run(input: Any, context: Any) -> str:
        try:
            return await forever(input, context)
        finally:
            assert context.cancel_event is not None
            cleaned.set()

    bench = Bench("/", make_tool(run=run))
    call = bench.start("probe")
    await bench.recorder.seen("tool.called")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert cleaned.is_set()
    failed = bench.recorder.one("tool.failed")
    assert (failed.payload["error_class"], failed.payload["reason"]) == ("cancelled", "caller_gone")
    assert len(bench.recorder.records) == 1


@pytest.mark.parametrize("phase", ["asked", "queued"])
async def test_a_caller_that_goes_away_before_the_start_leaves_one_end(phase: str) -> None:
    bench = Bench(
        "/",
        make_tool("writer", SideEffects.WRITE),
        make_tool("slow", run=forever),
        limits=CallLimits(concurrency=1, stop=QUICK.stop),
    )
    if phase == "queued":
        blocker = bench.start("slow")
        await bench.recorder.seen("tool.called")
        call = bench.start("slow")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    else:
        call = bench.start("writer", turn_id="t")
        await bench.recorder.seen("tool.confirmation_requested")
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert [e.payload.get("reason") for e in bench.recorder.terminal] == ["caller_gone"]
    await bench.log.flush()
    assert await bench.confirmations.open() == []
    await bench.dispatcher.close()
    if phase == "queued":
        await blocker


async def test_a_timeout_around_a_call_works_as_anywhere() -> None:
    bench = Bench("/", make_tool(run=forever))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await bench.run("probe")
    assert len(bench.recorder.terminal) == 1
    assert asyncio.current_task().cancelling() == 0


async def test_a_timeout_inside_a_tool_is_its_own_business() -> None:
    async def run(input: Any, context: Any) -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)
        except TimeoutError:
            pass
        async with asyncio.TaskGroup() as group:
            task = group.create_task(asyncio.sleep(0, "inner"))
        return task.result()

    bench = Bench("/", make_tool(run=run))
    assert (await bench.run("probe")).text == "inner"


async def test_our_own_cancel_leaves_the_callers_task_uncancelled() -> None:
    bench = Bench("/", make_tool(run=forever, timeout_s=0.02))

    async def caller() -> int:
        assert (await bench.run("probe")).error.error_class is ToolErrorClass.TIMEOUT
        await asyncio.sleep(0)
        return asyncio.current_task().cancelling()

    assert await asyncio.create_task(caller()) == 0


async def test_where_timeout_and_cancel_meet_the_timeout_is_reported() -> None:
    async def run(input: Any, context: Any) -> str:
        await context.cancel_event.wait()
        await asyncio.sleep(0.1)
        return "late"

    bench = Bench("/", make_tool(run=run, timeout_s=0.05, on_cancel=lambda: True))
    call = bench.start("probe")
    await bench.recorder.seen("tool.called")
    await bench.dispatcher.cancel_session_tools(bench.session.id)
    assert (await call).error.error_class is ToolErrorClass.TIMEOUT


async def test_after_close_new_calls_are_refused_and_recorded() -> None:
    bench = Bench("/", make_tool(), make_tool("slow", run=polling))
    slow = bench.start("slow")
    await bench.recorder.seen("tool.called")
    await bench.dispatcher.close()
    await bench.dispatcher.close()
    assert (await slow).error.error_class is ToolErrorClass.SHUTTING_DOWN
    refused = await bench.run("probe")
    assert refused.error.error_class is ToolErrorClass.SHUTTING_DOWN
    assert bench.recorder.events[-1].payload["error_class"] == "cancelled"
    assert bench.recorder.events[-1].payload["class"] == "shutting_down"
    assert len(bench.recorder.records) == 2


@pytest.mark.spec("S4-68")
async def test_a_failing_cancel_does_not_keep_the_call_from_ending(caplog: Any) -> None:
    def explode() -> bool:
        raise RuntimeError("cancel is broken")

    bench = Bench("/", make_tool(run=forever, on_cancel=explode))
    call = bench.start("probe")
    await bench.recorder.seen("tool.called")
    await bench.dispatcher.cancel_session_tools(bench.session.id)
    assert (await call).error.error_class is ToolErrorClass.CANCELLED


@pytest.mark.parametrize("way", ["waits", "polls"])
async def test_a_tool_that_looks_at_the_event_may_clean_up_longer_than_the_grace(way: str) -> None:
    limits = CallLimits(stop=StopLimits(grace_s=0.01, abandon_s=30.0))
    noticed, cleaned = asyncio.Event(), asyncio.Event()

    async def run(input: Any, context: Any) -> ToolOutput:
        if way == "waits":
            await context.cancel_event.wait()
        while not context.cancel_event.is_set():
            await asyncio.sleep(0)
        noticed.set()
        await cleaned.wait()
        return ToolOutput(content=[TextBlock("half of it")], success=False)

    bench = Bench("/", make_tool(run=run), limits=limits)
    task = bench.start("probe")
    await bench.recorder.seen("tool.called")
    stopping = asyncio.create_task(bench.dispatcher.cancel_session_tools(bench.session.id))
    await noticed.wait()
    await asyncio.sleep(10 * limits.stop.grace_s)  # many graces: nothing cancels it meanwhile
    assert not task.done()
    cleaned.set()
    result = await task
    await stopping
    assert result.error.error_class is ToolErrorClass.CANCELLED
    assert result.error.details == {"stopped": True}
    assert result.content[0] == TextBlock("half of it")


async def test_a_tool_that_blocks_the_loop_past_its_limit_has_timed_out() -> None:
    def run(input: Any, context: Any) -> str:
        time.sleep(0.05)
        return "late"

    bench = Bench("/", make_tool(run=run))
    result = await bench.run("probe", timeout_s=0.01)
    assert result.error.error_class is ToolErrorClass.TIMEOUT
    assert bench.recorder.types[-1] == "tool.failed"
