"""What a command costs in a home with 1,000 calls and in one with 1,000,000.

    python benchmarks/growth.py [--calls N] [--rounds N] [--only TEXT] [--homes DIR] [--json]

CPU and peak memory of a whole command, the medians of the rounds, in turn. A command should
cost what it shows: at most twice as much in the large home. Those that show, compare or delete a
tenth of all calls or more are marked; they are to take no more memory. The homes stay in DIR.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from benchmarks import report
from benchmarks.homes import GrownHome, add_session, grown_home
from benchmarks.trees import ROOT, environment

FEW = 1_000
MANY = 1_000_000
HOMES = os.path.join(ROOT, ".build", "growth")


class Cost(NamedTuple):
    cpu_ms: float
    peak_mb: float


def commands(home: GrownHome) -> Mapping[str, Callable[[], list[str]]]:
    """By title; `*` stands behind those that show or delete a tenth of all calls, or more."""

    def delete(calls: int) -> list[str]:
        return ["sessions", "delete", "--yes", add_session(home, calls)]

    return {
        "events -n 20": lambda: ["events", "-n", "20"],
        "events --session LARGE -n 20": lambda: ["events", "--session", home.large, "-n", "20"],
        "audit tail -n 20": lambda: ["audit", "tail", "-n", "20"],
        "audit search --tool RARE": lambda: ["audit", "search", "--tool", "rare_tool"],
        "audit search --tool NONE": lambda: ["audit", "search", "--tool", "no_such_tool"],
        "audit search --session SMALL": lambda: ["audit", "search", "--session", home.small],
        "audit search --error NONE": lambda: ["audit", "search", "--error", "timeout"],
        "audit search --text RARE": lambda: ["audit", "search", "--text", "rare_TOOL"],
        "audit verify *": lambda: ["audit", "verify"],
        "sessions list": lambda: ["sessions", "list", "--workspace", home.workspace],
        "sessions list --all": lambda: ["sessions", "list", "--all"],
        "sessions show SMALL": lambda: ["sessions", "show", home.small],
        "sessions show SUFFIX": lambda: ["sessions", "show", home.small[-12:]],
        "sessions delete SMALL": lambda: delete(10),
        "sessions show LARGE *": lambda: ["sessions", "show", home.large],
        "sessions export LARGE *": lambda: ["sessions", "export", home.large],
        "sessions export --json LARGE *": lambda: ["sessions", "export", "--json", home.large],
        "sessions delete LARGE *": lambda: delete(home.calls // 10),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks/growth.py", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--calls", type=int, default=MANY)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", metavar="TEXT", help="titles that contain it")
    parser.add_argument("--homes", default=HOMES, metavar="DIR", help="where the homes are kept")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    homes = [grown_home(options.homes, calls) for calls in (FEW, options.calls)]
    found = measure(homes, options.rounds, options.only)
    if not options.json:
        print(_table(found, homes), end="\n\n")
    print(json.dumps({title: [*map(_values, costs)] for title, costs in found.items()}))
    return 0


def measure(homes: Sequence[GrownHome], rounds: int, only: str) -> dict[str, list[Cost]]:
    figures: dict[str, list[list[Cost]]] = {}
    for _ in range(rounds):
        each = [commands(home) for home in homes]
        for title in each[0]:
            if only not in title:
                continue
            row = figures.setdefault(title, [[] for _ in homes])
            for home, known, costs in zip(homes, each, row, strict=True):
                costs.append(cost_of(known[title](), home.path))
    return {
        title: [
            Cost(median(c.cpu_ms for c in costs), median(c.peak_mb for c in costs)) for costs in row
        ]
        for title, row in figures.items()
    }


_LAUNCHER = """
import os, sys
nowhere = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1)]
argv = [sys.executable, *sys.argv[1:]]
pid = os.posix_spawn(sys.executable, argv, os.environ, file_actions=nowhere)
_, status, used = os.wait4(pid, 0)
print(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss)
"""
"""A peak of memory is never below that of the process that started it, so a small one does."""


def cost_of(words: Sequence[str], home: str) -> Cost:
    """Run a command to its end, what it prints thrown away."""
    ended = subprocess.run(
        [sys.executable, "-S", "-c", _LAUNCHER, "-m", "callgate", *words],
        env={**environment(ROOT), "CALLGATE_HOME": home},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    code, cpu_s, peak_kb = ended.stdout.split()
    if code != "0":
        raise SystemExit(f"callgate {' '.join(words)} failed")
    return Cost(float(cpu_s) * 1000, int(peak_kb) / 1024)


def _values(cost: Cost) -> dict[str, float]:
    return {"cpu_ms": round(cost.cpu_ms, 1), "peak_mb": round(cost.peak_mb, 1)}


def _table(found: Mapping[str, Sequence[Cost]], homes: Sequence[GrownHome]) -> str:
    few, many = (f"{home.calls:,}" for home in homes)
    head = ["command", f"CPU, ms, {few} calls", many, "ratio"]
    head += [f"memory, MB, {few} calls", many, "ratio"]
    rows = []
    for title, (small, large) in found.items():
        cells = [f"`{title.removesuffix(' *')}`" + (" *" if title.endswith("*") else "")]
        for name in ("cpu_ms", "peak_mb"):
            before, after = getattr(small, name), getattr(large, name)
            cells += [f"{before:,.0f}", f"{after:,.0f}", f"{after / before:.2f}"]
        rows.append(cells)
    return report.table(head, rows)


if __name__ == "__main__":
    sys.exit(main())
