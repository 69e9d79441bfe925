"""What a durable write costs: `write_file` through `Gate`, beside a bare loop with the same syncs.

    python benchmarks/writes.py [--rounds N] [--calls N] [--directory DIR] [--json]

The bare loop writes a temporary file, syncs it, renames it, syncs the directory, appends a line to
one log and waits for a sync that covers it, which all callers share; each caller is a thread. Every
figure is a median over rounds, and what is compared is measured in turn on the same disk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from benchmarks import report
from callgate import Gate
from callgate.audit.syncing import GroupSync
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.sessions import Session

CALLERS = (1, 64)
CONTENT = "x" * 1000
Measure = Callable[[str, int, int], float]
"""Directory, callers and calls of each: seconds for all."""


def bare(directory: str, callers: int, calls: int) -> float:
    log = os.open(os.path.join(directory, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    names = os.open(directory, os.O_RDONLY)
    group = GroupSync(lambda: os.fsync(log))

    def write(caller: int) -> None:
        for turn in range(calls):
            path = os.path.join(directory, f"{caller}-{turn}")
            file = os.open(f"{path}.tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            os.write(file, CONTENT.encode())
            os.fsync(file)
            os.close(file)
            os.rename(f"{path}.tmp", path)
            os.fsync(names)
            os.write(log, f"{path}\n".encode())
            group.request().result()

    with ThreadPoolExecutor(callers) as threads:
        begun = time.perf_counter()
        list(threads.map(write, range(callers)))
        taken = time.perf_counter() - begun
    group.close()
    os.close(names)
    os.close(log)
    return taken


def through_gate(directory: str, callers: int, calls: int) -> float:
    return asyncio.run(_through_gate(directory, callers, calls, "synced"))


def through_fast_gate(directory: str, callers: int, calls: int) -> float:
    return asyncio.run(_through_gate(directory, callers, calls, "fast"))


async def _through_gate(directory: str, callers: int, calls: int, files: str) -> float:
    workspace, home = os.path.join(directory, "ws"), os.path.join(directory, "home")
    os.mkdir(workspace)
    os.mkdir(home, 0o700)
    with open(os.path.join(home, "settings.toml"), "w") as settings:
        settings.write(f'[durability]\nfiles = "{files}"\n')
    async with Gate(workspace, mode="write", home=home) as gate:

        async def write(caller: int) -> None:
            session = Session(workspace=workspace, mode=gate.session.mode)
            for turn in range(-1, calls):
                if turn == 0:  # modules, threads and the session's row are there by now
                    await ready.wait()
                result = await gate.runtime.call_promptly(
                    ToolCall(
                        tool="write_file",
                        arguments={"path": f"{caller}-{turn}", "content": CONTENT},
                        session=session,
                        caller=CallerKind.LIBRARY,
                    )
                )
                if not result.ok:
                    raise RuntimeError(str(result.error))

        ready = asyncio.Barrier(callers + 1)
        async with asyncio.TaskGroup() as group:
            for caller in range(callers):
                group.create_task(write(caller))
            await ready.wait()
            begun = time.perf_counter()
        return time.perf_counter() - begun


CONTESTANTS: dict[str, Measure] = {
    "bare loop": bare,
    "write_file, synced": through_gate,
    'write_file, files = "fast"': through_fast_gate,
}


def measure(rounds: int, calls: int, directory: str | None) -> dict[str, dict[int, float]]:
    """Contestant to callers to writes a second."""
    found: dict[str, dict[int, list[float]]] = {
        name: {callers: [] for callers in CALLERS} for name in CONTESTANTS
    }
    for _ in range(rounds):
        for callers in CALLERS:
            each = max(1, calls // callers)
            for name, run in CONTESTANTS.items():
                with tempfile.TemporaryDirectory(dir=directory) as place:
                    found[name][callers].append(callers * each / run(place, callers, each))
    return {
        name: {callers: median(rates) for callers, rates in by_callers.items()}
        for name, by_callers in found.items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=640, help="of all callers together")
    parser.add_argument("--directory", help="on the disk to measure")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    found = measure(options.rounds, options.calls, options.directory)
    if options.json:
        print(json.dumps(found))
        return 0
    best = found["bare loop"]
    head = [cell for n in CALLERS for cell in (f"{n} callers", "to the bare loop")]
    rows = [
        [
            name,
            *(cell for n in CALLERS for cell in (f"{rates[n]:,.0f}", f"{rates[n] / best[n]:.2f}")),
        ]
        for name, rates in found.items()
    ]
    print(report.table(["writes a second", *head], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
