"""What a sandbox costs: `true` in each, from a small parent and from one of a gigabyte.

    python benchmarks/sandbox.py [--rounds N] [--quick] [--json]

Every figure is a median over rounds, and what is compared is measured in turn, round by round.
"bare" is the same broker with nothing restricted; the sandboxes are to be read against it.
What does not work on this machine is left out and named.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import median
from typing import Any

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import msgspec

from callgate.core.commands import OnOutput
from callgate.sandbox import machines, profiles
from callgate.sandbox.dry_runs import manifests, overlays
from callgate.sandbox.dry_runs import overlays as differences
from callgate.sandbox.jails import Jail
from callgate.sandbox.plans import (
    Backend,
    CannotGuarantee,
    Command,
    Launcher,
    Running,
    SandboxPlan,
    choose,
)
from callgate.sandbox.processes.broker_client import BrokerLauncher, BrokerProcess

LARGE = 1 << 30
TREES = (1_000, 10_000)
"""Files of the workspaces that are looked at; the last is previewed."""
PARALLEL = 32


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--quick", action="store_true", help="a look at whether it works")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--bwrap", help="where bubblewrap is, if not where systems have it")
    options = parser.parse_args(argv)
    rounds = 3 if options.quick else options.rounds
    figures = asyncio.run(measure(rounds, options.bwrap or shutil.which("bwrap")))
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures)
    return 0


async def measure(rounds: int, bwrap: str | None) -> dict[str, Any]:
    process = BrokerProcess()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as workspace:
        try:
            backends = await machines.look(process, bwrap=bwrap)
            ways, left_out = launchers(process, backends, workspace)
            command = Command(argv=("/bin/true",), cwd=workspace, env={})
            small = await in_turn(ways, command, rounds)
            ballast = bytearray(os.urandom(1 << 20)) * (LARGE >> 20)
            large = await in_turn(ways, command, rounds)
            del ballast
            rates = {name: await rate(way, command, rounds) for name, way in ways.items()}
            memory = resident(process.pid or 0)
        finally:
            process.close()
    observed = {count: observing(count, rounds) for count in TREES}
    return {
        "observing": observed,
        "preview": await previews(TREES[-1], rounds, bwrap),
        "milliseconds": {name: {"small": small[name], "1 GB": large[name]} for name in ways},
        "commands per second, 32 at once": rates,
        "broker": {"start ms": await starts(rounds), "resident KiB": memory},
        "left out": left_out,
    }


def launchers(
    process: BrokerProcess, backends: Sequence[Backend], workspace: str
) -> tuple[dict[str, Launcher], dict[str, str]]:
    by_name = {backend.name: backend for backend in backends}
    bwrap = getattr(by_name["bubblewrap"], "path", None)
    home = os.path.expanduser("~")
    places = profiles.SandboxPaths(
        workspace=workspace, home=home, callgate_home=os.path.join(home, ".callgate")
    )
    jail = profiles.workspace(places)
    wanted: dict[str, tuple[Jail, tuple[str, ...]]] = {
        "landlock + seccomp": (Jail(), ("landlock", "seccomp")),
        "landlock + seccomp, secrets hidden": (profiles.read(places), ("landlock", "seccomp")),
        "namespaces + seccomp": (jail, ("seccomp", "namespaces")),
        "bubblewrap + seccomp": (jail, ("seccomp", "bubblewrap")),
    }
    ways: dict[str, Launcher] = {"bare": BrokerLauncher(process, None)}
    left_out = {}
    for name, (which, names) in wanted.items():
        try:
            plan: SandboxPlan = choose(which, [by_name[each] for each in names])
            ways[name] = BrokerLauncher(process, plan, bwrap=bwrap)
        except CannotGuarantee as refused:
            left_out[name] = str(refused)
    if bwrap is not None and "bubblewrap + seccomp" in ways:
        ways["bubblewrap, the least it can do"] = Least(process, bwrap)
    return ways, left_out


class Least:
    """bubblewrap with nothing asked of it but namespaces: below this no jail of it can get."""

    def __init__(self, process: BrokerProcess, bwrap: str) -> None:
        self._launcher = BrokerLauncher(process, None)
        self._before = (bwrap, "--unshare-all", "--ro-bind", "/", "/")

    async def start(self, command: Command, on_output: OnOutput) -> Running:
        argv = (*self._before, *command.argv)
        return await self._launcher.start(msgspec.structs.replace(command, argv=argv), on_output)


async def in_turn(ways: dict[str, Launcher], command: Command, rounds: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            times[name].append(await timed(lambda way=way: once(way, command)))  # type: ignore[misc]
    return {name: round(median(each) * 1e3, 2) for name, each in times.items()}


async def once(way: Launcher, command: Command) -> None:
    ended = await (await way.start(command, lambda stream, data: None)).wait()
    assert ended.code == 0, ended


async def timed(work: Callable[[], Awaitable[None]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def rate(way: Launcher, command: Command, rounds: int) -> int:
    async def all_at_once() -> None:
        await asyncio.gather(*(once(way, command) for _ in range(PARALLEL)))

    times = [await timed(all_at_once) for _ in range(max(rounds // 10, 1))]
    return round(PARALLEL / median(times))


async def starts(rounds: int) -> float:
    """From nothing to the end of a first command, less what a command takes afterwards."""
    command = Command(argv=("/bin/true",), cwd="/", env={})
    times = []
    for _ in range(max(rounds // 6, 1)):
        process = BrokerProcess()
        try:
            way = BrokerLauncher(process, None)
            first = await timed(lambda way=way: once(way, command))  # type: ignore[misc]
            times.append(first - await timed(lambda way=way: once(way, command)))  # type: ignore[misc]
        finally:
            process.close()
    return round(median(times) * 1e3, 1)


def observing(count: int, rounds: int) -> float:
    """Two looks at a workspace and their comparison: what it costs to know a command's effects."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as workspace:
        fill(workspace, count)
        times = []
        for _ in range(max(rounds // 4, 1)):
            began = time.perf_counter()
            manifests.compare(manifests.take(workspace), manifests.take(workspace))
            times.append(time.perf_counter() - began)
    return round(median(times) * 1e3, 1)


async def previews(count: int, rounds: int, bwrap: str | None) -> dict[str, float]:
    """A command that changes one file: from nothing to the list of changes, and all removed."""
    process = BrokerProcess()
    times: dict[str, list[float]] = {"overlay": [], "copy": []}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as base:
        try:
            backends = await machines.look(process, bwrap=bwrap)
            workspace = os.path.join(base, "workspace")
            os.mkdir(workspace)
            fill(workspace, count)
            for _ in range(max(rounds // 6, 1)):
                for way, each in times.items():
                    work = functools.partial(one_preview, process, backends, base, way)
                    each.append(await timed(work))
        except CannotGuarantee:
            return {}
        finally:
            process.close()
    return {way: round(median(each) * 1e3, 1) for way, each in times.items()}


async def one_preview(
    process: BrokerProcess, backends: Sequence[Backend], base: str, way: overlays.Way
) -> None:
    workspace = os.path.join(base, "workspace")
    places = profiles.SandboxPaths(workspace=workspace, home=base, callgate_home=f"{base}/home")
    command = Command(argv=("/bin/sh", "-c", "echo x > 0/0"), cwd=workspace, env={})
    stage = await overlays.prepare(workspace, [f"{base}/previews"], [way])
    try:
        stage, running = await overlays.start(
            stage, process, backends, command, places, lambda stream, data: None
        )
        await running.wait()
        assert [each.path for each in differences.find(stage)] == ["0/0"]
    finally:
        overlays.remove(stage)


def fill(workspace: str, count: int) -> None:
    for number in range(count):
        directory = os.path.join(workspace, str(number // 50))
        if number % 50 == 0:
            os.mkdir(directory)
        with open(os.path.join(directory, str(number)), "w") as file:
            file.write(f"{number}\n" * 200)


def resident(pid: int) -> int:
    out = subprocess.run(
        ["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True
    )
    return int(out.stdout)


def show(figures: dict[str, Any]) -> None:
    times = figures["milliseconds"]
    rates = figures["commands per second, 32 at once"]
    heads = f"{'small parent':>20}{'1 GB parent':>20}{'32 at once':>14}"
    print(f"{'one `true`, ms (over bare)':38}{heads}")
    for name, each in times.items():
        cells = []
        for size in ("small", "1 GB"):
            over = each[size] - times["bare"][size]
            cells.append(f"{each[size]:.2f} ({over:+.2f})")
        print(f"{name:38}{cells[0]:>20}{cells[1]:>20}{rates[name]:>12}/s")
    broker = figures["broker"]
    print(f"broker: {broker['start ms']} ms to start, {broker['resident KiB']} KiB resident")
    for count, took in figures["observing"].items():
        print(f"observing {count:,} files, before and after: {took} ms")
    for way, took in figures["preview"].items():
        print(f"preview of a change in {TREES[-1]:,} files, {way}: {took} ms")
    for name, why in figures["left out"].items():
        print(f"left out: {name}: {why}")


if __name__ == "__main__":
    raise SystemExit(main())
