"""What processes leave that are killed: an instance closes it, at its start and while it serves."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from callgate.audit.reading import newest_first
from callgate.core.events import FAILED, Event
from callgate.storage.sqlite.store import SqliteStore
from tests.kernel.cli.instances import short_directory
from tests.kernel.cli.running import start
from tests.kernel.storage.processes import child

LIVES = "tests.kernel.gate.lives"


async def killed(home: Path, ws: Path) -> Any:
    """A call without effects whose process was killed before it came to an end."""
    async with child("hang", home, ws, module=LIVES) as hanging:
        call = await hanging.hear()
        hanging.process.kill()
        await hanging.process.wait()
    return call


async def end_of(home: Path, call: Any) -> Event:
    async with await SqliteStore.open(str(home)) as store, asyncio.timeout(60):
        with store.wake(call["session"]) as hint:
            while True:
                events = await store.read_events(call["session"])
                if events[-1].type == FAILED:
                    return events[-1]
                await hint.wait()


@pytest.mark.spec("T46")
async def test_an_instance_closes_what_dead_processes_left_before_it_came_and_since() -> None:
    with short_directory() as base:
        home, ws = base / "h", base / "ws"
        home.mkdir(mode=0o700)
        ws.mkdir()
        calls = [await killed(home, ws)]
        process = start("serve", "--no-http", cwd=ws, env={"CALLGATE_HOME": str(home)})
        try:
            await end_of(home, calls[0])
            calls.append(await killed(home, ws))
            ends = [await end_of(home, call) for call in calls]
        finally:
            process.terminate()
            process.communicate(timeout=60)
        assert {end.payload["reason"] for end in ends} == {"interrupted"}
        lines = [line.id for line, _ in newest_first(str(home / "audit.jsonl"))]
        assert lines[::-1] == [f"audit_{end.id}" for end in ends]
