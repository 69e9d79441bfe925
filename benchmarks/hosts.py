"""What a call of a tool in another process costs, beside a bare pipe and MCP servers.

    python benchmarks/hosts.py [--rounds N] [--calls N] [--quick] [--json]
    python benchmarks/hosts.py --install      the TypeScript SDK, into .build

    calls    one no-op after another; wall time of each, and CPU of the caller's process
    many     64 calls in flight, of 16 sessions
    starts   from nothing to the first answer that names the tools
    memory   what all processes take more with it, keepers and brokers included (PSS)

Every contestant has its process started before; in every round each does a batch, in turn, and
ratios are taken within a round. `a line over asyncio's pipes` is a child that writes back what
it reads. The hosts go through the whole dispatcher: arguments checked, policy asked, events, an
audit record. The MCP clients call the tool and nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from benchmarks import report
from benchmarks.host_contestants import PIPE, Contestant, Ground, Once, install, sdk_version

Found = dict[str, dict[str, float]]
IN_FLIGHT = 64


async def measure(directory: Path, rounds: int, calls: int) -> dict[str, Found]:
    async with Ground.open(directory) as ground:
        found = await measure_calls(ground.calls(), rounds, calls)
        starts = await measure_starts(ground.starts(), max(rounds // 2, 2))
    return {**found, "starts": starts}


async def measure_calls(
    contestants: dict[str, Contestant], rounds: int, calls: int
) -> dict[str, Found]:
    walls: dict[str, list[float]] = {name: [] for name in contestants}
    cpus: dict[str, list[float]] = {name: [] for name in contestants}
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    async with contextlib.AsyncExitStack() as stack:
        running: dict[str, Once] = {}
        for name, contestant in contestants.items():
            running[name] = await stack.enter_async_context(contestant())
        for once in running.values():
            await batch(once, max(calls // 10, 2))
        for _ in range(rounds):
            for name, once in running.items():
                wall, cpu = await batch(once, calls)
                walls[name].append(wall)
                cpus[name].append(cpu)
        for _ in range(max(rounds // 2, 2)):
            for name, once in running.items():
                if name != PIPE:  # it knows no ids: one line at a time
                    rates[name].append(await many(once, calls))
    one_by_one = {
        name: {
            "us": round(median(walls[name]), 1),
            "cpu_us": round(median(cpus[name]), 1),
            "to_pipe": round(median(map(_ratio, walls[name], walls[PIPE])), 2),
        }
        for name in contestants
    }
    return {
        "calls": one_by_one,
        "many": {name: {"per_second": round(median(rates[name]))} for name in rates if rates[name]},
    }


def _ratio(one: float, other: float) -> float:
    return one / other


async def batch(once: Once, calls: int) -> tuple[float, float]:
    """One after another: microseconds of wall time and of our CPU for each."""
    began, worked = time.perf_counter(), time.process_time()
    for _ in range(calls):
        await once(0)
    took = time.perf_counter() - began, time.process_time() - worked
    return took[0] / calls * 1e6, took[1] / calls * 1e6


async def many(once: Once, calls: int) -> float:
    """Calls in a second, with so many in flight at any time."""
    each = max(calls // 16, 1)

    async def one_caller(number: int) -> None:
        for _ in range(each):
            await once(number)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(IN_FLIGHT):
            group.create_task(one_caller(number))
    return each * IN_FLIGHT / (time.perf_counter() - began)


async def measure_starts(contestants: dict[str, Contestant], rounds: int) -> Found:
    times: dict[str, list[float]] = {name: [] for name in contestants}
    shares: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds + 1):  # the first starts what all others of its kind use
        for name, contestant in contestants.items():
            before = sum(map(share, processes()))
            began = time.perf_counter()
            async with contestant():
                times[name].append((time.perf_counter() - began) * 1e3)
                shares[name].append((sum(map(share, processes())) - before) / 1024)
    return {
        name: {
            "ms": round(median(times[name][1:]), 1),
            "first_ms": round(times[name][0], 1),
            "pss_mib": round(median(shares[name][1:]), 1),
        }
        for name in contestants
    }


def processes(parent: int | None = None) -> list[int]:
    """All below us."""
    tasks = Path(f"/proc/{parent or os.getpid()}/task")
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in tasks.iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *processes(child)]
    return found


def share(pid: int) -> int:
    """KiB of memory that are a process's, what it shares divided by who shares it."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0


def show(found: dict[str, Found]) -> None:
    rows = [
        [
            name,
            f"{each['us']:,.0f}",
            f"{each['to_pipe']:.1f}",
            f"{each['cpu_us']:,.0f}",
            f"{found['many'][name]['per_second']:,}" if name in found["many"] else "",
        ]
        for name, each in found["calls"].items()
    ]
    head = [
        "one call of a tool in another process",
        "µs",
        "to the pipe",
        "CPU of the caller, µs",
        "calls/s, 64 in flight",
    ]
    print(report.table(head, rows), end="\n\n")
    rows = [
        [name, f"{each['ms']:,.0f}", f"{each['first_ms']:,.0f}", f"{each['pss_mib']:.1f}"]
        for name, each in found["starts"].items()
    ]
    head = ["one more process", "ready, ms", "the first, ms", "memory when idle, MiB"]
    print(report.table(head, rows), end="\n\n")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--calls", type=int, default=300, help="in a batch")
    parser.add_argument("--quick", action="store_true", help="a look at whether it works")
    parser.add_argument("--install", action="store_true", help="get the TypeScript SDK of MCP")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    if options.install:
        install()
        print(f"The TypeScript SDK {sdk_version()} is in .build.")
        return 0
    rounds, calls = (2, 20) if options.quick else (options.rounds, options.calls)
    with tempfile.TemporaryDirectory(prefix="cg", dir="/var/tmp") as directory:
        found: dict[str, Any] = asyncio.run(measure(Path(directory), rounds, calls))
    if not options.json:
        if sdk_version() is None:
            print("Without the TypeScript SDK of MCP: see --install.\n")
        show(found)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
