"""List the function calls of one warm call, in their order: where it spends what `run.py` counts.

    python benchmarks/function_calls.py [add|order] [gate|dispatcher]

Python's calls, and resumptions of coroutines, stand with their file and line; C's are marked `C`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AsyncExitStack
from typing import Any

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from benchmarks import ours
from benchmarks.cases import CASES

WARM_UP = 50
TRIES = 20
"""Of which the shortest list is printed: the others did something that is done now and then."""


def main(case: str = "add", setup: str = "gate") -> None:
    lines = asyncio.run(_listed(case, setup))
    print("\n".join(lines))
    print(f"{len(lines)} function calls, without those of the reader")


async def _listed(case: str, setup: str) -> list[str]:
    async with AsyncExitStack() as stack:
        prepared = await getattr(ours, setup)(CASES[case], stack)
        for _ in range(WARM_UP):
            await prepared.call()
        await prepared.settle()
        return min([await _traced(prepared.call) for _ in range(TRIES)], key=len)


async def _traced(call: Any) -> list[str]:
    lines: list[str] = []
    depth = 0

    def profile(frame: Any, event: str, argument: Any) -> None:
        nonlocal depth
        code, place = frame.f_code, os.path.basename(frame.f_code.co_filename)
        if event == "call":
            lines.append(f"{'  ' * depth}{code.co_qualname} ({place}:{code.co_firstlineno})")
        elif event == "c_call":
            name = getattr(argument, "__qualname__", argument)
            lines.append(f"{'  ' * depth}C {name} ({place}:{frame.f_lineno})")
        depth += {"call": 1, "return": -1}.get(event, 0)

    sys.setprofile(profile)
    try:
        await call()
    finally:
        sys.setprofile(None)
    return lines[:-1]  # the last one is `setprofile` itself


if __name__ == "__main__":
    main(*sys.argv[1:])
