"""Starting, hearing and ending the processes in `children`."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from callgate.core.events import Event
from callgate.core.stores import Store

ROOT = Path(__file__).resolve().parents[3]


class Child:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def hear(self) -> Any:
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            line = await self.process.stdout.readline()
        return json.loads(line) if line else None

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())


@asynccontextmanager
async def child(
    role: str, *arguments: object, module: str = "tests.kernel.storage.children", prefix: Sequence[str] = ()
) -> AsyncIterator[Child]:
    """`prefix` are the words of a command that starts it."""
    process = await asyncio.create_subprocess_exec(
        *prefix,
        sys.executable,
        "-m",
        module,
        role,
        *map(str, arguments),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield Child(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


MANY_KILLS = [pytest.param(500, seed, marks=pytest.mark.soak) for seed in range(1, 5)]
"""Two thousand kills, in parts that run side by side."""


async def kill_again_and_again(
    zygotes: AbstractAsyncContextManager[Child], kills: int, *, seed: int = 0, works: int = 30
) -> list[Any]:
    """What processes said that were each killed somewhere in its work, one after the other."""
    dice = random.Random(seed)
    heard: list[Any] = []
    async with zygotes as zygote:
        for life in range(kills):
            zygote.tell(str(life))
            born = await _until(zygote, "born", heard)
            for _ in range(dice.randrange(1, works)):  # never before it has done something
                heard.append(await zygote.hear())
            await asyncio.sleep(dice.uniform(0, 0.01))  # any point of what it does next
            os.kill(born, signal.SIGKILL)
            await _until(zygote, "died", heard)
    return heard


async def _until(zygote: Child, word: str, heard: list[Any]) -> Any:
    while True:
        said = await zygote.hear()
        assert said is not None, "the process that starts the others is gone"
        if word in said:
            return said[word]
        heard.append(said)


async def all_events(store: Store) -> dict[str, list[Event]]:
    """By session; reading page by page also proves that the numbers have no gap."""
    found: dict[str, list[Event]] = {}
    cursor = None
    while True:
        page = await store.list_sessions(cursor=cursor, limit=500)
        for session in page.sessions:
            events = found[session.id] = []
            while some := await store.read_events(session.id, after=len(events)):
                events += some
            assert len(events) == session.last_seq
        cursor = page.cursor
        if cursor is None:
            return found
