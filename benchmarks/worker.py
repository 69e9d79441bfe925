"""One contestant in a process of its own, which works only when it is told to.

    python -m benchmarks.worker SETUP CASE [BURDEN]

    < calls 300      > 8123456         nanoseconds of CPU for 300 calls
    < count 20       > 3160            function calls made by 20 calls
    < singles 20     > 9123456         the same CPU as `calls`, with 50 ms between two calls
    < waited 95      > 312000          nanoseconds that 95 of 100 of these took at most

Nobody's imports, threads or garbage weigh on anybody else, and the batches of all can be
interleaved although each runs alone.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import time
from contextlib import AsyncExitStack
from typing import Any, TextIO

from benchmarks.cases import CASES, EVERYDAY, Prepared
from benchmarks.contestants import Contestant

WARM_UP = 50


async def serve(contestant: Contestant, case_name: str, replies: TextIO) -> None:
    case = (CASES | EVERYDAY)[case_name]
    async with AsyncExitStack() as stack:
        prepared = await contestant.load()(case, stack)
        for _ in range(WARM_UP):
            found = prepared.value(await prepared.call())
            if found != case.expected:
                raise AssertionError(f"{case.expected} was expected, not {found!r}")
        await prepared.settle()
        gc.collect()
        print("ready", file=replies, flush=True)
        for line in sys.stdin:
            order, count = line.split()
            done = await ORDERS[order](prepared, int(count))
            print(done, file=replies, flush=True)


async def _clock(prepared: Prepared, count: int) -> int:
    call = prepared.call
    started = time.process_time_ns()
    for _ in range(count):
        await call()
    await prepared.settle()
    return time.process_time_ns() - started


async def _count(prepared: Prepared, count: int) -> int:
    """Calls of functions, Python's and C's, and resumptions of coroutines."""
    seen = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal seen
        if event in ("call", "c_call"):
            seen += 1

    sys.setprofile(profile)
    try:
        await _clock(prepared, count)
    finally:
        sys.setprofile(None)
    return seen


PAUSE_S = 0.05
_waits: list[int] = []


async def _singles(prepared: Prepared, count: int) -> int:
    """One call after the other, as an agent makes them. The pauses cost a timer each."""
    _waits.clear()
    started = time.process_time_ns()
    for _ in range(count):
        await asyncio.sleep(PAUSE_S)
        began = time.perf_counter_ns()
        await prepared.call()
        _waits.append(time.perf_counter_ns() - began)
    await prepared.settle()
    return time.process_time_ns() - started


async def _waited(prepared: Prepared, percent: int) -> int:
    return sorted(_waits)[len(_waits) * percent // 100]


ORDERS = {"calls": _clock, "count": _count, "singles": _singles, "waited": _waited}


def main(setup: str, case: str, burden: str | None = None) -> None:
    logging.disable(logging.INFO)  # some log every call unless told otherwise
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints is no reply
    contestant = Contestant(
        name=setup,
        title=setup,
        setup=setup,
        package="",
        burden=None if burden is None else int(burden),
    )
    asyncio.run(serve(contestant, case, replies))


if __name__ == "__main__":
    main(*sys.argv[1:])
