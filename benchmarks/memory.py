"""What an idle session and a registered tool take in memory, and by how much many calls grow it.

    python -m benchmarks.memory session|tool|calls COUNT

Measured as the growth of a fresh process's resident memory, because a validator's compiled
schema is not on Python's heap.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import subprocess
import sys
import tempfile

from benchmarks.cases import CASES
from benchmarks.ours import as_tool, more_tools, used_sessions
from benchmarks.trees import ROOT, environment
from callgate import Gate

WHAT = ("session", "tool")


def bytes_each(what: str, count: int, tree: str = ROOT) -> int:
    """Measured in a process of its own; for `calls` those of all together."""
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", what, str(count)],
        cwd=tree,
        env=environment(tree),
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        raise RuntimeError(f"memory per {what}: {ended.stderr.strip()}")
    return int(ended.stdout)


async def _sessions(home: str, count: int) -> float:
    case = CASES["add"]
    async with Gate(workspace=home, tools=[as_tool(case)], home=home) as gate:
        await used_sessions(gate, case, 100)
        before = _resident()
        kept = await used_sessions(gate, case, count)
        return (_resident() - before) / len(kept)


async def _tools(home: str, count: int) -> float:
    async with Gate(workspace=home, tools=[as_tool(CASES["add"])], home=home) as gate:
        before = _resident()
        for factory in more_tools(count):
            gate.register(factory)
        return (_resident() - before) / count


async def _calls(home: str, count: int) -> float:
    """The growth in all, after a hundredth of the calls."""
    case = CASES["add"]
    async with Gate(workspace=home, tools=[as_tool(case)], home=home) as gate:
        before = 0
        for number in range(count + count // 100):
            if number == count // 100:
                before = _resident()
            assert (await gate.call(case.function.__name__, case.arguments)).ok
            if number % 300 == 0:
                await asyncio.sleep(0)
        return _resident() - before


def _resident() -> int:
    gc.collect()
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except FileNotFoundError:  # macOS has only the peak, in bytes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="callgate-benchmark-") as home:
        measure = {"session": _sessions, "tool": _tools, "calls": _calls}[sys.argv[1]]
        print(round(asyncio.run(measure(home, int(sys.argv[2])))))
