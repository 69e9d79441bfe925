"""Work whose first step runs at once has a task of its own from that step on, and only if it waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

import pytest

from callgate.core.tasks import EagerTasks, Finished

VARIABLE: ContextVar[str] = ContextVar("variable", default="untouched")


@pytest.fixture
async def eager() -> AsyncIterator[EagerTasks]:
    eager = EagerTasks()
    yield eager
    await eager.close()


async def at_once() -> Any:
    return asyncio.current_task()


async def in_steps(turns: int = 3) -> set[Any]:
    tasks = set()
    for _ in range(turns):
        tasks.add(asyncio.current_task())
        await asyncio.sleep(0)
    return tasks | {asyncio.current_task()}


def finished(begun: object) -> Any:
    assert isinstance(begun, Finished)
    return begun.result


def waiting(begun: object) -> asyncio.Task[Any]:
    assert isinstance(begun, asyncio.Task)
    return begun


async def test_work_that_never_waits_makes_no_task_after_the_first(eager: EagerTasks) -> None:
    first = finished(eager.start(lambda _: at_once()))
    await asyncio.sleep(0)
    there = asyncio.all_tasks()
    assert {finished(eager.start(lambda _: at_once())) for _ in range(100)} == {first}
    assert asyncio.all_tasks() == there and asyncio.current_task() is not first


async def test_work_that_waits_is_in_one_task_from_its_first_step_to_its_end(eager: EagerTasks) -> None:
    for begun in [waiting(eager.start(lambda _: in_steps())) for _ in range(3)]:
        assert await begun == {begun}
    assert finished(eager.start(lambda _: at_once())) is not begun


async def test_no_two_pieces_of_work_share_a_task(eager: EagerTasks) -> None:
    begun = [waiting(eager.start(lambda _: in_steps())) for _ in range(5)]
    assert len({*begun, finished(eager.start(lambda _: at_once()))}) == 6
    await asyncio.gather(*begun)


async def test_work_that_starts_other_work_goes_on_in_its_own_task(eager: EagerTasks) -> None:
    async def outer() -> tuple[Any, Any, Any]:
        before = asyncio.current_task()
        return before, finished(eager.start(lambda _: at_once())), asyncio.current_task()

    for _ in range(2):
        before, inner, after = finished(eager.start(lambda _: outer()))
        assert before is after and inner is not before


async def test_it_can_be_started_where_there_is_no_task(eager: EagerTasks) -> None:
    done = asyncio.get_running_loop().create_future()

    def start() -> None:
        done.set_result([eager.start(lambda _: at_once()), eager.start(lambda _: in_steps()), asyncio.current_task()])

    asyncio.get_running_loop().call_soon(start)
    first, second, current = await done
    assert finished(first) is not None and current is None
    assert await waiting(second) == {second}


async def test_what_work_sets_in_its_context_is_its_own(eager: EagerTasks) -> None:
    async def work(value: str, turns: int) -> tuple[str, str]:
        before, token = VARIABLE.get(), VARIABLE.set(value)
        for _ in range(turns):
            await asyncio.sleep(0)
        after = VARIABLE.get()
        VARIABLE.reset(token)
        VARIABLE.set(value)
        return before, after

    VARIABLE.set("callers")
    assert finished(eager.start(lambda _: work("a", 0))) == ("callers", "a")
    begun = [waiting(eager.start(lambda _: work(value, 2))) for value in "bc"]
    assert await asyncio.gather(*begun) == [("callers", "b"), ("callers", "c")]
    assert finished(eager.start(lambda _: work("d", 0))) == ("callers", "d")
    assert VARIABLE.get() == "callers"


@pytest.mark.parametrize("turns_before", range(3))
async def test_a_cancellation_reaches_the_work_and_what_it_waits_for(eager: EagerTasks, turns_before: int) -> None:
    inner = asyncio.get_running_loop().create_future()
    heard: list[BaseException] = []

    async def work() -> str:
        try:
            await inner
        except asyncio.CancelledError as error:
            heard.append(error)
            await asyncio.sleep(0)
        return "cleaned up"

    finished(eager.start(lambda _: at_once()))
    await asyncio.sleep(0)  # the spare task has begun
    begun = waiting(eager.start(lambda _: work()))
    for _ in range(turns_before):
        await asyncio.sleep(0)
    begun.cancel()
    assert await begun == "cleaned up"
    assert len(heard) == 1 and inner.cancelled() and begun.cancelling() == 1


async def test_work_that_cancels_its_own_task_harms_none_after_it(eager: EagerTasks) -> None:
    async def work() -> Any:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return task

    cancelled = finished(eager.start(lambda _: work()))
    begun = waiting(eager.start(lambda _: in_steps()))
    assert await begun == {begun} and begun is not cancelled
    with pytest.raises(asyncio.CancelledError):
        await cancelled


async def test_no_task_is_left_once_it_was_closed() -> None:
    eager, before = EagerTasks(), asyncio.all_tasks()
    finished(eager.start(lambda _: at_once()))
    await eager.close()
    assert asyncio.all_tasks() == before
    finished(eager.start(lambda _: at_once()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_what_the_first_step_raises_is_its_starters(eager: EagerTasks) -> None:
    async def work() -> None:
        raise RuntimeError("boom")

    here = asyncio.current_task()
    with pytest.raises(RuntimeError, match="boom"):
        eager.start(lambda _: work())
    assert asyncio.current_task() is here
    assert finished(eager.start(lambda _: at_once())) is not here


async def test_limits_and_groups_of_the_first_step_go_on_in_the_others(eager: EagerTasks) -> None:
    async def work() -> str:
        try:
            async with asyncio.timeout(0.01), asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(60))
        except TimeoutError:
            return "in time"
        return "never"

    assert await waiting(eager.start(lambda _: work())) == "in time"


def test_a_loop_that_ends_takes_the_spare_task_along(caplog: pytest.LogCaptureFixture) -> None:
    eager = EagerTasks()

    async def use() -> None:
        finished(eager.start(lambda _: at_once()))
        assert await waiting(eager.start(lambda _: in_steps()))
        finished(eager.start(lambda _: at_once()))

    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            asyncio.run(use())
    assert caplog.records == []
