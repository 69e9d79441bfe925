"""Compare two files of measured rows and print a table of ratios, each with a verdict.

    python benchmarks/run.py --rows old.jsonl
    python benchmarks/run.py --rows new.jsonl
    python benchmarks/compare.py old.jsonl new.jsonl

A ratio is new to old. Rows that were measured in turn in one run (`against.py`) are compared
round by round, because the noise of the machine falls on both; others by their medians. Beside
the ratio stands the interval that holds the true one with 95 % confidence, from the order of
the rounds alone. `worse` and `better`: the whole interval is more than 5 % away from 1. `same`:
the whole interval is nearer than that. `unclear`: neither; more rounds or a quieter machine may
tell. The command ends with 1 if a row is worse.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from benchmarks import report
from benchmarks.rows import Row, read_rows

TOLERANCE = 0.05
MISSED = 0.025
"""How likely the true median is below the interval, or above it."""


class Interval(NamedTuple):
    low: float
    high: float


class Comparison(NamedTuple):
    name: str
    old: Row | None
    new: Row | None
    ratio: float | None
    interval: Interval | None
    verdict: str


def compare(old: Iterable[Row], new: Iterable[Row]) -> list[Comparison]:
    """One comparison for each name, in the order of the files. Pure."""
    befores = {row.name: row for row in old}
    afters = {row.name: row for row in new}
    return [_compare(name, befores.get(name), afters.get(name)) for name in {**befores, **afters}]


def _compare(name: str, old: Row | None, new: Row | None) -> Comparison:
    if old is None or new is None:
        return Comparison(name, old, new, None, None, "only new" if old is None else "only old")
    if old.unit != new.unit:
        raise ValueError(f"{name} is in {old.unit} and in {new.unit}")
    if old.run == new.run and len(old.rounds) == len(new.rounds):
        ratios = [after / before for after, before in zip(new.rounds, old.rounds, strict=True)]
        ratio, interval = median(ratios), median_interval(ratios)
    else:
        ratio = new.median / old.median
        before, after = median_interval(old.rounds), median_interval(new.rounds)
        interval = Interval(after.low / before.high, after.high / before.low)
    return Comparison(name, old, new, ratio, interval, _verdict(interval))


def _verdict(interval: Interval) -> str:
    if interval.low > 1 + TOLERANCE:
        return "worse"
    if interval.high < 1 - TOLERANCE:
        return "better"
    if interval.low >= 1 - TOLERANCE and interval.high <= 1 + TOLERANCE:
        return "same"
    return "unclear"


def median_interval(figures: Sequence[float]) -> Interval:
    """Where the median lies with 95 % confidence; of few figures, between the outermost."""
    ordered, count = sorted(figures), len(figures)
    outside, below = 0, 0.0
    while outside < (count - 1) // 2:
        below += math.comb(count, outside) / 2**count
        if below > MISSED:
            break
        outside += 1
    outside = max(outside - 1, 0)
    return Interval(ordered[outside], ordered[count - 1 - outside])


def table(comparisons: Iterable[Comparison]) -> str:
    head = ["row", "old", "new", "ratio", "95 %", "function calls", "verdict"]
    return report.table(head, map(_cells, comparisons))


def _cells(it: Comparison) -> list[str]:
    old = "–" if it.old is None else f"{it.old.median:,.2f}"
    new = "–" if it.new is None else f"{it.new.median:,.2f} {it.new.unit}"
    ratio = "–" if it.ratio is None else f"{it.ratio:.2f}"
    between = "–" if it.interval is None else f"{it.interval.low:.2f} to {it.interval.high:.2f}"
    return [it.name, old, new, ratio, between, _function_calls(it), it.verdict]


def _function_calls(it: Comparison) -> str:
    shown = [
        "–" if row is None or row.function_calls is None else f"{row.function_calls:,.0f}"
        for row in (it.old, it.new)
    ]
    return shown[0] if shown[0] == shown[1] else " → ".join(shown)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks/compare.py", description=__doc__.split("\n")[0]
    )
    parser.add_argument("old", metavar="OLD")
    parser.add_argument("new", metavar="NEW")
    options = parser.parse_args(argv)
    return show(compare(read_rows(options.old), read_rows(options.new)))


def show(found: Sequence[Comparison]) -> int:
    print(table(found))
    return 1 if any(each.verdict == "worse" for each in found) else 0


if __name__ == "__main__":
    sys.exit(main())
