"""Plays one case through one entry, in the same way for all entries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, ExitStack
from typing import Any

from callgate.instance.wiring.runtime import Wired
from tests.features.contract.pipeline.cases import Case
from tests.features.contract.pipeline.scenes import LIMIT_S, Scene, fake_sandbox


class Entry:
    """One way into the dispatch pipeline, opened for one case."""

    def __init__(self, scene: Scene, wired: Wired) -> None:
        self.scene, self.wired = scene, wired

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        """Make one call, and return its result as this surface shows it."""
        raise NotImplementedError

    async def cancel(self, call_id: str) -> None:
        """Cancel a call."""
        await self.wired.runtime.calls.cancel(call_id)


Open = Callable[[Scene], AbstractAsyncContextManager[Entry]]


async def play(open: Open, case: Case) -> list[dict[str, Any]]:
    """Play a case, and return its lines of the snapshot."""
    scene = Scene(case)
    try:
        with ExitStack() as stack:
            stack.enter_context(fake_sandbox(scene))
            async with asyncio.timeout(LIMIT_S), open(scene) as entry:
                result = await _played(entry, case)
        return scene.lines(result)
    finally:
        scene.close()


async def _played(entry: Entry, case: Case) -> Any:
    for tool, arguments in case.before:
        await entry.call(tool, arguments)
    if case.is_closing:
        await entry.wired.runtime.close()
    if not case.stop:
        return await entry.call(case.tool, case.arguments)
    running = []
    if case.stop == "queued":
        running = [asyncio.ensure_future(entry.call("wait", {}))]
        await entry.scene.started.wait()
    task = asyncio.ensure_future(entry.call(case.tool, case.arguments))
    if case.stop == "queued":
        await until(lambda: len(entry.wired.runtime.calls.in_flight()) == 2)
    else:
        await (entry.scene.asked if case.stop == "asked" else entry.scene.started).wait()
    await until(lambda: bool(entry.wired.runtime.calls.in_flight()))
    newest = entry.wired.runtime.calls.in_flight()[-1].call.id
    await entry.cancel(newest)
    result = await task
    for each in entry.wired.runtime.calls.in_flight() if running else ():
        await entry.cancel(each.call.id)
    await asyncio.gather(*running)
    return result


async def until(holds: Callable[[], bool]) -> None:
    """Wait for a state that no event announces."""
    while not holds():
        await asyncio.sleep(0.005)
