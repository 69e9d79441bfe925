"""So many callers at once, each waiting for its call: how many calls a second that makes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

NAME = "note"
ANSWER = "kept"


async def measure(call: Callable[[int], Awaitable[object]], count: int, at_once: int) -> float:
    """Calls a second, after one of each caller that does not count."""
    numbers = iter(range(count + at_once))

    async def caller() -> None:
        for number in numbers:
            assert await call(number) == ANSWER

    await asyncio.gather(*(call(next(numbers)) for _ in range(at_once)))
    begun = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(at_once)))
    return count / (time.perf_counter() - begun)
