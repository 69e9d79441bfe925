"""A tool that waits for something which fails: the failure is the tool's to handle."""

from __future__ import annotations

import asyncio
from typing import Any

from callgate.core.tools import ToolContext
from tests.support import Bench, make_tool


def failing(error: Exception) -> asyncio.Future[None]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    loop.call_soon(future.set_exception, error)
    return future


async def test_a_tool_can_handle_the_failure_of_what_it_waits_for() -> None:
    seen: list[str] = []

    async def run(input: dict[str, Any], context: ToolContext) -> str:
        for _ in range(2):
            try:
                await failing(ValueError())
            except ValueError:
                seen.append("handled")
            finally:
                seen.append("cleaned up")
        return "done"

    result = await Bench("/", make_tool(run=run)).run("probe")
    assert (result.ok, result.value) == (True, "done")
    assert seen == ["handled", "cleaned up"] * 2


async def test_a_failure_that_the_tool_does_not_handle_ends_the_call() -> None:
    async def run(input: dict[str, Any], context: ToolContext) -> str:
        await failing(ValueError())
        return "done"

    result = await Bench("/", make_tool(run=run)).run("probe")
    assert (result.error.error_class, result.error.reason) == ("execution_error", "exception")


async def test_abandoned_work_can_handle_it_too() -> None:
    ended = asyncio.Event()
    released: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(input: dict[str, Any], context: ToolContext) -> str:
        while True:
            try:
                await asyncio.shield(released)
            except asyncio.CancelledError:
                continue
            except ValueError:
                ended.set()
                return "late"

    bench = Bench("/", make_tool(run=run))
    result = await bench.run("probe", timeout_s=0.01)
    assert result.error.details == {"stopped": False}
    for _ in range(5):  # steps of the loop, in which the abandoned work comes to wait again
        await asyncio.sleep(0)
    released.set_exception(ValueError())
    async with asyncio.timeout(60):
        await ended.wait()
