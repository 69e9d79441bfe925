"""Measure callgate beside its peers and print the tables, then everything as one JSON line.

    python benchmarks/run.py [--only NAME]... [--rounds N] [--quick] [--json] [--rows FILE]

What is measured, and how, stands in the README beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from benchmarks import memory, report, rows, start
from benchmarks.cases import CASES, EVERYDAY
from benchmarks.contest import Failed, Outcome, hold
from benchmarks.contestants import CALLS, Contestant, idle, loads
from benchmarks.efforts import Scale, chosen_scale, rounds
from benchmarks.trees import ROOT

SECTIONS = ("calls", "everyday", "idle", "memory", "start")


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    scale = chosen_scale(options.quick, options.rounds)
    chosen = set(options.only or SECTIONS)
    named = [each for each in CALLS if each.name in chosen]
    out = Output(tables=not options.json)
    out.values |= {"machine": report.machine(), "load_before": os.getloadavg()}
    if "calls" in chosen or named:
        measure_calls(named or CALLS, scale, out)
    if "everyday" in chosen:
        measure_everyday(scale, out)
    if "idle" in chosen:
        measure_idle(scale, out)
    if "memory" in chosen:
        measure_memory(scale, out)
    if "start" in chosen:
        measure_start(scale, out)
    out.values["load_after"] = os.getloadavg()
    if options.rows is not None:
        rows.write_rows(options.rows, rows.with_facts(out.rows, ROOT, run=rows.new_run()))
    print(json.dumps(out.values, ensure_ascii=False))
    return 1 if out.failed else 0


class Output:
    """Tables and the JSON line go to stdout, remarks on the way to stderr."""

    def __init__(self, *, tables: bool) -> None:
        self.values: dict[str, Any] = {}
        self.rows: list[rows.Row] = []
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
        out.rows += rows.rows_of_calls(case, found[case])
    out.table(report.calls_table(found, contestants))
    out.values["versions"] = {each.package: each.version for each in contestants}
    out.values["calls"] = {case: report.outcome_values(each) for case, each in found.items()}


def measure_everyday(scale: Scale, out: Output) -> None:
    """Single calls, and arguments, results, effects, rules and sessions as agents have them."""
    peer = "pydantic-ai"
    names = ("bare", "gate", peer)
    pair = [each for each in CALLS if each.name in names and each.version is not None]
    out.remark("one call every 50 ms ...")
    singles = hold(pair, "add", scale.singles, "singles")
    out.failures(singles)
    out.table(report.singles_table(singles, pair))
    out.rows += rows.rows_of_calls("singles", singles)
    found = {}
    for case in EVERYDAY:
        out.remark(f"{case} ...")
        found[case] = hold(pair[1:], case, scale.calls)
        out.failures(found[case])
        if case not in CASES:
            out.rows += rows.rows_of_calls(case, found[case])
    out.table(report.everyday_table(found, peer))
    out.remark("effects, rules and sessions ...")
    loaded = hold(loads(), "add", scale.calls._replace(batch=max(20, scale.calls.batch // 3)))
    out.failures(loaded)
    out.table(report.idle_table(loaded, loads()))
    out.rows += rows.rows_of_calls("loads", loaded)
    out.values["singles"] = report.outcome_values(singles)
    out.values["everyday"] = {case: report.outcome_values(each) for case, each in found.items()}
    out.values["loads"] = report.outcome_values(loaded)


def measure_idle(scale: Scale, out: Output) -> None:
    out.remark("the same with much lying idle ...")
    contestants = idle(scale.idle, scale.audit_bytes)
    found = hold(contestants, "add", scale.calls)
    out.failures(found)
    out.table(report.idle_table(found, contestants))
    out.rows += rows.rows_of_calls("idle", found)
    out.values["idle"] = report.outcome_values(found)


def measure_memory(scale: Scale, out: Output) -> None:
    out.remark("memory ...")
    found = {f"one {what}": memory.bytes_each(what, scale.idle) for what in memory.WHAT}
    found[f"growth over {scale.many:,} calls"] = memory.bytes_each("calls", scale.many)
    out.table(report.memory_table(found))
    out.rows += rows.rows_of_memory(
        {what.removeprefix("one "): [size] for what, size in found.items()}
    )
    out.values["memory"] = found


def measure_start(scale: Scale, out: Output) -> None:
    out.remark("cold start ...")
    found = start.measure(scale.starts)
    out.table(report.start_table(found))
    out.rows += rows.rows_of_starts(found)
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
    parser.add_argument("--rounds", type=rounds, metavar="N", help="at least 2")
    parser.add_argument("--quick", action="store_true", help="small counts: does it run at all?")
    parser.add_argument("--json", action="store_true", help="the JSON line alone")
    parser.add_argument("--rows", metavar="FILE", help="a JSON line for each row, for compare.py")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
