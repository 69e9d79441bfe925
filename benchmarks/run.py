"""Measure callgate beside its peers and print the tables, then everything as one JSON line.

    python benchmarks/run.py [--only NAME]... [--rounds N] [--quick] [--json]

What is measured, and how, stands in the README beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from benchmarks import memory, report, start
from benchmarks.cases import CASES
from benchmarks.contest import Effort, Failed, Outcome, hold
from benchmarks.contestants import CALLS, Contestant, idle

SECTIONS = ("calls", "idle", "memory", "start")


class Scale(NamedTuple):
    """How much of everything."""

    calls: Effort = Effort(rounds=40, batch=300)
    starts: int = 15
    idle: int = 10_000
    audit_bytes: int = 100_000_000


QUICK = Scale(calls=Effort(rounds=3, batch=20), starts=2, idle=50, audit_bytes=200_000)


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    scale = QUICK if options.quick else Scale()
    if options.rounds is not None:
        scale = scale._replace(
            calls=scale.calls._replace(rounds=options.rounds), starts=options.rounds
        )
    chosen = set(options.only or SECTIONS)
    named = [each for each in CALLS if each.name in chosen]
    out = Output(tables=not options.json)
    out.values |= {"machine": report.machine(), "load_before": os.getloadavg()}
    if "calls" in chosen or named:
        measure_calls(named or CALLS, scale, out)
    if "idle" in chosen:
        measure_idle(scale, out)
    if "memory" in chosen:
        measure_memory(scale, out)
    if "start" in chosen:
        measure_start(scale, out)
    out.values["load_after"] = os.getloadavg()
    print(json.dumps(out.values, ensure_ascii=False))
    return 1 if out.failed else 0


class Output:
    """Tables and the JSON line go to stdout, remarks on the way to stderr."""

    def __init__(self, *, tables: bool) -> None:
        self.values: dict[str, Any] = {}
        self.failed = False
        self._tables = tables

    def table(self, text: str) -> None:
        if self._tables:
            print(text, end="\n\n", flush=True)

    def remark(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def failures(self, found: Mapping[str, Outcome]) -> None:
        for name, outcome in found.items():
            if isinstance(outcome, Failed):
                self.remark(f"{name} failed: {outcome.why}")
                self.failed = True


def measure_calls(contestants: Sequence[Contestant], scale: Scale, out: Output) -> None:
    present = [each for each in contestants if each.version is not None]
    for each in contestants:
        if each.version is None:
            out.remark(f"{each.name} skipped: {each.package} is not installed")
    found = {}
    for case in CASES:
        out.remark(f"one call in process: {case} ...")
        found[case] = hold(present, case, scale.calls)
        out.failures(found[case])
    out.table(report.calls_table(found, contestants))
    out.values["versions"] = {each.package: each.version for each in contestants}
    out.values["calls"] = {case: report.outcome_values(each) for case, each in found.items()}


def measure_idle(scale: Scale, out: Output) -> None:
    out.remark("the same with much lying idle ...")
    contestants = idle(scale.idle, scale.audit_bytes)
    found = hold(contestants, "add", scale.calls)
    out.failures(found)
    out.table(report.idle_table(found, contestants))
    out.values["idle"] = report.outcome_values(found)


def measure_memory(scale: Scale, out: Output) -> None:
    out.remark("memory ...")
    found = {what: memory.bytes_each(what, scale.idle) for what in memory.WHAT}
    out.table(report.memory_table(found))
    out.values["memory"] = found


def measure_start(scale: Scale, out: Output) -> None:
    out.remark("cold start ...")
    found = start.measure(scale.starts)
    out.table(report.start_table(found))
    out.values["start"] = report.start_values(found)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/run.py", description=__doc__.split("\n")[0])
    names = [*SECTIONS, *(each.name for each in CALLS)]
    parser.add_argument(
        "--only",
        action="append",
        choices=names,
        metavar="NAME",
        help=f"a section or a contestant, may be repeated: {', '.join(names)}",
    )
    parser.add_argument("--rounds", type=_rounds, metavar="N", help="at least 2")
    parser.add_argument("--quick", action="store_true", help="small counts: does it run at all?")
    parser.add_argument("--json", action="store_true", help="the JSON line alone")
    return parser.parse_args(argv)


def _rounds(text: str) -> int:
    if (rounds := int(text)) < 2:
        raise ValueError
    return rounds


if __name__ == "__main__":
    sys.exit(main())
