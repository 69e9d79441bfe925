"""A call that is stopped and does not end holds up no caller of the library or of HTTP; its record
tells of its true end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate, ToolContext, tool
from callgate.audit.reading import newest_first
from callgate.core.calls import ToolCall
from callgate.core.content import TextBlock
from callgate.core.errors import ToolErrorClass
from callgate.core.sessions import Session
from callgate.core.tools import ToolOutput
from callgate.dispatch import early_answers
from callgate.dispatch.early_answers import EarlyAnswers
from callgate.dispatch.running import Running, StopLimits
from callgate.runtime import Runtime
from tests.features.web.instances import serving
from tests.support import make_tool


class Free:
    """Lets the deaf tool end, in the loop of one test."""

    event: asyncio.Event


@tool(side_effects="none", timeout_s=60)
async def deaf(context: ToolContext) -> str:
    """Ignore whoever wants to stop it."""
    context.progress("begun")
    while not Free.event.is_set():
        try:
            await Free.event.wait()
        except asyncio.CancelledError:
            pass
    return "done"


@tool(side_effects="none")
async def tidy(context: ToolContext) -> str:
    """Clean up when it is stopped."""
    context.progress("begun")
    await context.cancel_event.wait()
    return "half of it"


@tool(side_effects="none")
async def bounded() -> str:
    """Have a time limit and a group of tasks of its own."""
    try:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()
    except TimeoutError:
        pass
    async with asyncio.TaskGroup() as group:
        await group.create_task(asyncio.sleep(0))
    return "both"


@pytest.fixture(autouse=True)
def free() -> None:
    Free.event = asyncio.Event()


async def begun(runtime: Runtime, start: Callable[[], Any]) -> asyncio.Task[Any]:
    """A call in a task, once its tool has begun."""
    seen = asyncio.Event()
    unlisten = runtime.sessions.listen(lambda event: seen.set() if event.type == "tool.progress" else None)
    task = asyncio.get_running_loop().create_task(start())
    async with asyncio.timeout(60):
        await seen.wait()
    unlisten()
    return task


async def ended(runtime: Runtime) -> None:
    """Every call under way has ended."""
    Free.event.set()
    async with asyncio.timeout(60):
        while runtime.calls.in_flight():
            await asyncio.sleep(0)
    await runtime.sessions.conversations.flush()


@pytest.mark.parametrize("why", ["cancelled", "timeout"])
async def test_the_library_answers_at_once_and_the_record_has_the_true_end(
    home: Path, tmp_path: Path, why: str
) -> None:
    async with Gate(tmp_path, [deaf]) as gate:
        timeout_s = 0.05 if why == "timeout" else None
        call = await begun(gate.runtime, lambda: gate.call("deaf", timeout_s=timeout_s))
        stopping = asyncio.create_task(gate.cancel()) if why == "cancelled" else None
        async with asyncio.timeout(60):
            result = await call
        (running,) = gate.runtime.calls.in_flight()  # it was not abandoned either
        assert running.call.id == result.call_id and result.duration_ms > 0
        assert (result.error.error_class, result.error.details) == (ToolErrorClass(why), {"stopped": False})
        assert not list(newest_first(str(home / "audit.jsonl")))
        await ended(gate.runtime)
        if stopping is not None:
            await stopping
    ((record, _),) = newest_first(str(home / "audit.jsonl"))
    assert (record.call_id, record.error_class) == (result.call_id, why)
    assert record.ms >= result.duration_ms


async def test_of_a_batch_the_calls_that_are_stopped_hold_up_none(tmp_path: Path) -> None:
    async with Gate(tmp_path, [deaf, tidy]) as gate:
        uses = [{"type": "tool_use", "id": name, "name": name, "input": {}} for name in ("deaf", "tidy")]
        call = await begun(gate.runtime, lambda: gate.call_all(uses))
        stopping = asyncio.create_task(gate.cancel())
        async with asyncio.timeout(60):
            stubborn, partial = await call
        assert (stubborn.error.details, partial.error.details) == ({"stopped": False}, {"stopped": True})
        assert (partial.content[0], partial.partial) == (TextBlock("half of it"), True)
        await ended(gate.runtime)
        await stopping


class Slow:
    """A tool that takes its time to answer a cancel, and then ends."""

    definition = make_tool("slow")().definition
    asked: asyncio.Event

    async def execute(self, input: Any, context: ToolContext) -> ToolOutput:
        context.progress("begun")
        await self.asked.wait()
        return ToolOutput(content=[TextBlock("ended")])

    async def cancel(self) -> bool:
        for _ in range(10):  # turns of the loop
            await asyncio.sleep(0)
        self.asked.set()
        return True


async def test_a_tool_that_is_still_being_asked_to_end_may_tell_how_it_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_answers, "STOP_S", 0.0)
    monkeypatch.setattr(early_answers, "CLEAN_UP_S", 60.0)
    Slow.asked = asyncio.Event()
    async with Gate(tmp_path, [Slow]) as gate:
        call = await begun(gate.runtime, lambda: gate.call("slow"))
        await gate.cancel()
        assert (await call).error.details == {"stopped": True}


async def test_a_caller_who_is_cancelled_leaves_nothing_behind(tmp_path: Path) -> None:
    async with Gate(tmp_path, [tidy]) as gate:
        call = await begun(gate.runtime, lambda: gate.call("tidy"))
        call.cancel()
        async with asyncio.timeout(60):
            with pytest.raises(asyncio.CancelledError):
                await call
        assert not gate.runtime.calls.in_flight()


async def test_time_limits_and_groups_inside_a_tool_work_and_leave_the_caller_alone(tmp_path: Path) -> None:
    async with Gate(tmp_path, [bounded]) as gate:
        task = asyncio.current_task()
        assert task is not None
        assert (await gate.call("bounded")).value == "both"
        assert (asyncio.current_task(), task.cancelling()) == (task, 0)


async def test_work_that_never_waits_has_ended_without_a_turn_of_the_loop() -> None:
    turned: list[bool] = []
    asyncio.get_running_loop().call_soon(lambda: turned.append(True))

    async def work(call: Any, confirmation: Any, task: Any) -> Any:
        assert task is asyncio.current_task()
        return task

    answers = EarlyAnswers(work, Running(StopLimits()))
    call = ToolCall(tool="t", arguments={}, session=Session(workspace="/"))
    assert await answers.run(call) is not asyncio.current_task()
    assert turned == []
    await answers.close()


async def test_calls_that_never_wait_share_one_task_and_one_that_waits_keeps_it(tmp_path: Path) -> None:
    tasks: list[Any] = []

    @tool(side_effects="none")
    async def note(wait: bool = False) -> None:
        """Note the task it runs in."""
        tasks.append(asyncio.current_task())
        if wait:
            await asyncio.sleep(0)
            tasks.append(asyncio.current_task())

    async with Gate(tmp_path, [note]) as gate:
        for wait in (False, False, True, False):
            assert (await gate.call("note", {"wait": wait})).ok
        assert len({*tasks[:4]}) == 1 and tasks[4] is not tasks[0]
        assert asyncio.current_task() not in tasks
    assert tasks[0].done() and tasks[4].done()


async def test_a_call_inside_the_first_step_of_another_has_a_task_of_its_own(tmp_path: Path) -> None:
    tasks: list[Any] = []

    @tool(side_effects="none")
    async def inner() -> None:
        """Note the task it runs in."""
        tasks.append(asyncio.current_task())

    @tool(side_effects="none")
    async def outer() -> None:
        """Call the other."""
        tasks.append(asyncio.current_task())
        assert (await gate.call("inner")).ok
        tasks.append(asyncio.current_task())

    async with Gate(tmp_path, [inner, outer]) as gate:
        for _ in range(2):
            assert (await gate.call("outer")).ok
        assert tasks[0] is tasks[2] is not tasks[1]
        left = asyncio.all_tasks()
    assert all(each.done() for each in left - {asyncio.current_task()})


@pytest.mark.parametrize("how", ["from outside", "by the tool", "and taken back"])
async def test_a_task_that_was_cancelled_serves_no_other_call(tmp_path: Path, how: str) -> None:
    tasks: list[Any] = []

    @tool(side_effects="none")
    async def sleepy(cancel: bool = False) -> str:
        """Wait a turn."""
        tasks.append(asyncio.current_task())
        if cancel:
            tasks[-1].cancel()
        if cancel and how == "and taken back":
            tasks[-1].uncancel()
        if not cancel and len(tasks) > 1:
            turn = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(turn.set_result, None)
            await turn
        return "done"

    async with Gate(tmp_path, [sleepy]) as gate, asyncio.timeout(60):
        await gate.call("sleepy")
        await asyncio.sleep(0)  # so that the task waits
        if how == "from outside":
            tasks[0].cancel()
        elif how == "by the tool":
            with pytest.raises(asyncio.CancelledError):
                await gate.call("sleepy", {"cancel": True})
        else:
            assert (await gate.call("sleepy", {"cancel": True})).ok
        await asyncio.sleep(0)
        assert (await gate.call("sleepy")).value == "done"
        assert (await gate.call("sleepy")).value == "done"
        assert not gate.runtime.calls.in_flight()


async def test_what_a_tool_sets_in_its_context_stays_there(tmp_path: Path) -> None:
    variable: ContextVar[str] = ContextVar("variable", default="unset")
    seen: list[str] = []

    @tool(side_effects="none")
    async def mark(text: str, wait: bool) -> None:
        """Set a variable, and read it after a turn."""
        seen.append(variable.get())
        token = variable.set(text)
        if wait:
            await asyncio.sleep(0)
        seen.append(variable.get())
        variable.reset(token)
        variable.set(text)

    async with Gate(tmp_path, [mark]) as gate:
        for wait in (False, True, False):
            variable.set("the caller's")
            assert (await gate.call("mark", {"text": "the tool's", "wait": wait})).ok
            assert variable.get() == "the caller's"
    assert seen == ["the caller's", "the tool's"] * 3


@asynccontextmanager
async def instance(home: Path, tmp_path: Path) -> AsyncIterator[Any]:
    async with serving(home, tmp_path / "ws", tools=(deaf,)) as made:
        try:
            yield made
        finally:
            await ended(made.runtime)


async def test_http_answers_a_call_that_is_out_of_time_at_once(home: Path, tmp_path: Path) -> None:
    async with instance(home, tmp_path) as made, asyncio.timeout(60):
        result = (await made.client().post("/v1/calls", tool="deaf", timeout_s=0.05)).json()
        assert (result["error"]["class"], result["error"]["details"]) == ("timeout", {"stopped": False})
        assert result["duration_ms"] >= 50
        assert [each.call.id for each in made.runtime.calls.in_flight()] == [result["call_id"]]


async def test_http_answers_a_cancelled_call_and_who_cancelled_it_at_once(home: Path, tmp_path: Path) -> None:
    async with instance(home, tmp_path) as made, asyncio.timeout(60):
        call = await begun(made.runtime, lambda: made.client().call("deaf"))
        (running,) = made.runtime.calls.in_flight()
        stopped = await made.client().http.delete(f"/v1/calls/{running.call.id}")
        assert stopped.json() == {"cancelled": True}
        result = await call
        assert (result["error"]["class"], result["error"]["details"]) == ("cancelled", {"stopped": False})
        assert [each.call.id for each in made.runtime.calls.in_flight()] == [result["call_id"]]
