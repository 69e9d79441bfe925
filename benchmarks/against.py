"""Measure another commit and this tree in turn, in one run, and print the comparison.

    python benchmarks/against.py REV [--only SECTION]... [--rounds N] [--quick] [--rows FILE]

Both run with the same interpreter and the same libraries, each with its own `src` and its own
`benchmarks`; only callgate's own rows are measured. What the verdicts mean stands in `compare.py`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from benchmarks import compare, memory, rows, start
from benchmarks.cases import CASES
from benchmarks.contest import Failed, hold
from benchmarks.contestants import CALLS, Contestant, idle
from benchmarks.efforts import Scale, chosen_scale, rounds
from benchmarks.trees import ROOT, checkout

SECTIONS = ("calls", "idle", "memory", "start")
OURS = [each for each in CALLS if each.package == "callgate"]

Sides = dict[str, list[rows.Row]]
"""The rows of each tree."""


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    scale = chosen_scale(options.quick, options.rounds)
    with checkout(options.revision) as other:
        sides = measure(other, set(options.only or SECTIONS), scale)
        run = rows.new_run()
        sides = {tree: rows.with_facts(found, tree, run) for tree, found in sides.items()}
        old, new = sides[other], sides[ROOT]
    if options.rows is not None:
        rows.write_rows(options.rows, new)
        rows.write_rows(f"{options.rows}.old", old)
    print(f"old: {old[0].commit}, new: {new[0].commit}, load {new[0].machine['load']}\n")
    return compare.show(compare.compare(old, new))


def measure(other: str, chosen: set[str], scale: Scale) -> Sides:
    sides: Sides = {other: [], ROOT: []}
    if "calls" in chosen:
        for case in CASES:
            _measure_calls(sides, case, case, OURS, scale)
    if "idle" in chosen:
        _measure_calls(sides, "idle", "add", idle(scale.idle, scale.audit_bytes), scale)
    if "memory" in chosen:
        _measure_memory(sides, scale)
    if "start" in chosen:
        for tree, starts in start.measure_trees([*sides], scale.starts).items():
            sides[tree] += rows.rows_of_starts(starts)
    return sides


def _measure_calls(
    sides: Sides, prefix: str, case: str, contestants: Sequence[Contestant], scale: Scale
) -> None:
    """Each contestant of one tree directly before or behind the same of the other."""
    print(f"{prefix} ...", file=sys.stderr, flush=True)
    names = {(tree, each.name): f"{each.name} of {tree}" for each in contestants for tree in sides}
    doubled = [
        each._replace(name=names[tree, each.name], tree=tree)
        for each in contestants
        for tree in sides
    ]
    found = hold(doubled, case, scale.calls)
    for name, outcome in found.items():
        if isinstance(outcome, Failed):
            print(f"{name} failed: {outcome.why}", file=sys.stderr)
    for tree, into in sides.items():
        into += rows.rows_of_calls(
            prefix, {each.name: found[names[tree, each.name]] for each in contestants}
        )


def _measure_memory(sides: Sides, scale: Scale) -> None:
    print("memory ...", file=sys.stderr, flush=True)
    found: dict[str, dict[str, list[float]]] = {tree: {} for tree in sides}
    for _ in range(scale.memory):
        for what in memory.WHAT:
            for tree in sides:
                size = memory.bytes_each(what, scale.idle, tree)
                found[tree].setdefault(what, []).append(size)
    for tree, sizes in found.items():
        sides[tree] += rows.rows_of_memory(sizes)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/against.py", description=__doc__.split("\n")[0]
    )
    parser.add_argument("revision", metavar="REV", help="a commit, a branch or a tag")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="may be repeated")
    parser.add_argument("--rounds", type=rounds, metavar="N", help="at least 2")
    parser.add_argument("--quick", action="store_true", help="small counts: does it run at all?")
    parser.add_argument(
        "--rows", metavar="FILE", help="also write the rows; the other's to FILE.old"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
