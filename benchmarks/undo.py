"""What undo of commands costs: each command with and without stored pre-images, and its undo.

    python benchmarks/undo.py [--rounds N] [--files N ...] [--quick] [--json] [--directory DIR]

Every figure is a minimum over rounds in milliseconds, in turn: "bare" is the same sandboxed command
without undo, "recorded" ends when its changes are listed. "CPU" counts all processes, in ticks of
10 ms; it hardly depends on other load of the machine. `git stash` and a shadow repository do the
same job for the files that git knows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import msgspec

from callgate.core.commands import Command, Preimages
from callgate.sandbox import profiles
from callgate.sandbox.machines import look_now
from callgate.sandbox.plans import choose
from callgate.sandbox.processes.broker_client import BrokerLauncher, BrokerProcess
from callgate.workspace.files import WorkspaceFileAPI
from callgate.workspace.undo.discarding import discard
from callgate.workspace.undo.history import History
from callgate.workspace.undo.records import Origin

SIZES = (1_000, 10_000, 100_000)
MANY = 5_000
_GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "gc.auto=0")
COMMANDS = {
    "nothing": "true",
    "ten files by sed -i": "sed -i s/a/b/ d0/f?",
    "1,000 directories": "mkdir $(seq -f new%g 1000)",
    f"{MANY:,} files by sed -i": "sed -i s/a/b/ d?/f* d1?/f* d2?/f* d3?/f* d4?/f*",
    f"{MANY:,} files removed": "rm d?/f* d1?/f* d2?/f* d3?/f* d4?/f*",
}


class Bench:
    def __init__(self, directory: str, files: int) -> None:
        self.root = os.path.join(directory, "ws")
        home = os.path.join(directory, "home")
        for each in range(files // 100):
            os.makedirs(os.path.join(self.root, f"d{each}"))
            for number in range(100):
                with open(os.path.join(self.root, f"d{each}", f"f{number}"), "w") as file:
                    file.write("a line of a file\n" * 200)
        os.makedirs(os.path.join(home, ".callgate"))
        places = profiles.SandboxPaths(
            workspace=self.root, home=home, callgate_home=os.path.join(home, ".callgate")
        )
        names = {"namespaces", "seccomp"}
        plan = choose(
            profiles.workspace(places), [each for each in look_now() if each.name in names]
        )
        self.broker = BrokerProcess()
        self.launcher = BrokerLauncher(self.broker, plan)
        self.history = History(os.path.join(home, ".callgate", "undo"))
        self.count = 0

    async def run(self, script: str, *, recorded: bool) -> Origin:
        self.count += 1
        origin = Origin(
            session="s", call=f"c{self.count}", tool="shell", workspace=os.fsencode(self.root)
        )
        command = Command(argv=("/bin/bash", "-c", script), cwd=self.root, env={"PATH": "/bin"})
        directory = None
        if recorded:
            directory = self.history.begin_command(origin)
            bounds = self.history.bounds
            stored = Preimages(
                directory=directory,
                roots=(self.root,),
                max_file=bounds.limit,
                max_total=bounds.max_call,
            )
            command = msgspec.structs.replace(command, preimages=stored)
        running = await self.launcher.start(command, lambda stream, data: None)
        ended = await running.wait()
        assert ended.code == 0, ended
        if directory is not None:
            self.history.settle(directory, origin)
        return origin

    def cpu(self) -> float:
        """Return the milliseconds of this process, the broker and its ended children."""
        with open(f"/proc/{self.broker.pid}/stat") as file:
            ticks = file.read().rpartition(")")[2].split()[11:15]
        own = time.process_time() * 1e3
        return own + sum(map(int, ticks)) * 1e3 / os.sysconf("SC_CLK_TCK")

    def undo(self, origin: Origin) -> None:
        by = msgspec.structs.replace(origin, call=f"{origin.call}-undo", tool="undo")
        files = WorkspaceFileAPI(
            self.root, guard=lambda real, access: None, changes=self.history.of(by)
        )
        remaining = discard(files, self.history, self.history.of_call(origin.call).changes)
        assert not remaining, remaining


async def timed(work: Callable[[], Awaitable[Any]]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = await work()
    return (time.perf_counter() - began) * 1e3, result


async def measure(files: int, rounds: int, directory: str) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory(dir=directory) as place:
        bench = Bench(place, files)
        try:
            found = {}
            for name, script in COMMANDS.items():
                if (str(MANY)[:1] + ",000 files" in name) and files < MANY:
                    continue
                found[name] = await compared(bench, script, rounds)
            found |= by_git(bench.root, rounds)
            return found
        finally:
            bench.broker.close()


async def compared(bench: Bench, script: str, rounds: int) -> dict[str, float]:
    names = ("bare", "recorded", "undo", "bare CPU", "recorded CPU", "undo CPU")
    times: dict[str, list[float]] = {name: [] for name in names}
    await bench.run("true", recorded=False)
    for _ in range(rounds):
        before = bench.cpu()
        recorded, origin = await timed(lambda: bench.run(script, recorded=True))
        times["recorded"].append(recorded)
        times["recorded CPU"].append(bench.cpu() - before)
        began, before = time.perf_counter(), time.process_time()
        if bench.history.of_call(origin.call).changes:
            bench.undo(origin)
            times["undo"].append((time.perf_counter() - began) * 1e3)
            times["undo CPU"].append((time.process_time() - before) * 1e3)
        copy = bench.root + "-copy"
        subprocess.run(["cp", "-a", bench.root, copy], check=True)
        before = bench.cpu()
        bare, _ = await timed(lambda: bench.run(script, recorded=False))
        times["bare"].append(bare)
        times["bare CPU"].append(bench.cpu() - before)
        shutil.rmtree(bench.root)
        os.rename(copy, bench.root)
    return {name: round(min(each), 1) for name, each in times.items() if each}


def by_git(root: str, rounds: int) -> dict[str, dict[str, float]]:
    """What git needs for ten changed files: a stash, and a commit to a shadow repository."""
    shadow = root + "-shadow"
    environment = {**os.environ, "GIT_DIR": shadow, "GIT_WORK_TREE": root}
    ours: list[float] = []
    stash: list[float] = []
    subprocess.run([*_GIT, "init", "-q"], env=environment, check=True)
    for repository in (environment, None):
        for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
            subprocess.run([*_GIT, *words], env=repository, cwd=root, check=True)
    for number in range(rounds):
        for each in range(10):
            with open(os.path.join(root, "d0", f"f{each}"), "a") as file:
                file.write(f"{number}\n")
        began = time.perf_counter()
        subprocess.run([*_GIT, "add", "-A"], env=environment, check=True)
        subprocess.run([*_GIT, "commit", "-qm", "next"], env=environment, check=True)
        ours.append((time.perf_counter() - began) * 1e3)
        began = time.perf_counter()
        subprocess.run([*_GIT, "stash", "-q"], cwd=root, check=True)
        stash.append((time.perf_counter() - began) * 1e3)
    return {
        "ten files, shadow repository": {"recorded": round(min(ours), 1)},
        "ten files, git stash": {"recorded": round(min(stash), 1)},
    }


def copied(directory: str) -> float:
    """Return the time of `cp` for the bytes of `MANY` files."""
    with tempfile.TemporaryDirectory(dir=directory) as place:
        source = os.path.join(place, "source")
        for each in range(MANY // 100):
            os.makedirs(os.path.join(source, f"d{each}"))
            for number in range(100):
                with open(os.path.join(source, f"d{each}", f"f{number}"), "w") as file:
                    file.write("a line of a file\n" * 200)
        began = time.perf_counter()
        subprocess.run(["cp", "-a", source, os.path.join(place, "target")], check=True)
        return round((time.perf_counter() - began) * 1e3, 1)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a look at whether it works")
    parser.add_argument("--files", type=int, nargs="*", default=SIZES, help="sizes of workspaces")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--directory", default="/var/tmp", help="where workspaces are made")
    options = parser.parse_args(argv)
    rounds, sizes = (1, SIZES[:1]) if options.quick else (options.rounds, options.files)
    figures: dict[str, Any] = {
        f"{size:,} files": asyncio.run(measure(size, rounds, options.directory)) for size in sizes
    }
    figures[f"cp of {MANY:,} files"] = copied(options.directory)
    if options.json:
        print(json.dumps(figures, indent=2))
        return 0
    for size, rows in figures.items():
        if isinstance(rows, float):
            print(f"{size}: {rows} ms")
            continue
        columns = ("bare", "recorded", "undo", "bare CPU", "recorded CPU", "undo CPU")
        print(f"{size:30} " + " ".join(f"{each:>12}" for each in columns))
        for name, row in rows.items():
            cells = (row.get(each, "") for each in columns)
            print(f"  {name:28} " + " ".join(f"{cell:>12}" for cell in cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
