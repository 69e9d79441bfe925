"""Tasks have an owner, who holds them, hears what they raise, and ends them."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from contextvars import Context, ContextVar

import pytest

from callgate.core.tasks import TaskSet, start_task

LOG = logging.getLogger("tests.task_sets")


class Work:
    """Runs until it is let go; tells when it runs and how it ended."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.may_end = asyncio.Event()
        self.cancelled = 0

    async def __call__(self) -> str:
        self.running.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return "done"


async def fail() -> None:
    raise RuntimeError("boom")


async def test_a_task_is_held_until_it_has_ended() -> None:
    tasks, work = TaskSet(), Work()
    task = weakref.ref(tasks.start(work()))
    await work.running.wait()
    gc.collect()
    assert task() is not None and len(tasks) == 1
    work.may_end.set()
    await tasks.wait()
    assert len(tasks) == 0


async def test_whoever_has_the_task_gets_its_result() -> None:
    work = Work()
    work.may_end.set()
    assert await TaskSet().start(work()) == "done"


async def test_what_a_task_raises_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    tasks = TaskSet(LOG, "work for a peer failed")
    tasks.start(fail())
    await tasks.wait()
    (record,) = caplog.records
    assert (record.name, record.message) == (LOG.name, "work for a peer failed")
    assert record.exc_info is not None and "boom" in str(record.exc_info[1])


async def test_a_cancelled_task_is_nothing_to_log(caplog: pytest.LogCaptureFixture) -> None:
    tasks, work = TaskSet(LOG, "failed"), Work()
    tasks.start(work())
    await work.running.wait()
    tasks.cancel()
    await tasks.wait()
    assert (caplog.records, work.cancelled) == ([], 1)


async def test_without_a_log_whoever_awaits_a_task_gets_what_it_raised(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RuntimeError, match="boom"):
        await TaskSet().start(fail())
    gc.collect()
    assert caplog.records == []


async def test_cancelling_and_waiting_leave_out_the_task_that_asks() -> None:
    tasks, work = TaskSet(), Work()
    other = tasks.start(work())

    async def end() -> str:
        await work.running.wait()
        tasks.cancel()
        await tasks.wait()
        return "ended the others"

    assert await tasks.start(end()) == "ended the others"
    assert other.cancelled()


async def test_a_task_that_somebody_else_made_can_be_added() -> None:
    tasks, work = TaskSet(), Work()
    task = start_task(work())
    tasks.add(task)
    assert len(tasks) == 1
    tasks.cancel()
    await tasks.wait()
    assert task.cancelled() and len(tasks) == 0


async def test_waiting_has_a_limit_and_cancels_nothing() -> None:
    tasks, work = TaskSet(), Work()
    tasks.start(work())
    await work.running.wait()
    await tasks.wait(timeout_s=0)
    assert (len(tasks), work.cancelled) == (1, 0)
    tasks.cancel()
    await tasks.wait()


async def test_a_task_runs_in_the_context_that_it_is_given() -> None:
    variable: ContextVar[str] = ContextVar("variable", default="none")
    variable.set("ours")

    async def read() -> str:
        return variable.get()

    tasks = TaskSet()
    assert await tasks.start(read()) == "ours"
    assert await tasks.start(read(), context=Context()) == "none"
    assert await start_task(read(), context=Context()) == "none"
