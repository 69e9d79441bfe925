"""What recording a call takes, stage by stage, in place: microseconds and function calls.

    python benchmarks/records.py [--calls N] [--json]

A gate makes the two calls of `cases.py` with everything on. Around each function below stands a
clock, which itself takes a few tenths of a microsecond. The median is what a call meets; the best
is what is left where nothing else is in the caches. A stage that is indented is part of the one
above it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from benchmarks import ours, report
from benchmarks.cases import CASES
from callgate.audit import log
from callgate.core.schemas import ArgumentSchema
from callgate.dispatch import call_records
from callgate.dispatch.journal import Journal
from callgate.events.bus import Bus
from callgate.events.log import SessionLog
from callgate.redaction.data import ArgumentSummary

STAGES: tuple[tuple[str, Any, str], ...] = (
    ("check of the arguments", ArgumentSchema, "check"),
    ("start of the call", Journal, "called"),
    ("end of the call", Journal, "completed"),
    ("  event to the store's log", SessionLog, "append"),
    ("  event to readers", Bus, "emit"),
    ("  audit record", call_records, "audit_line"),
    ("    summary without secrets", ArgumentSummary, "of"),
    ("  audit line", log.AuditLog, "append"),
    ("    its JSON", log, "encode_into"),
    ("    write", log.AuditLog, "_write"),
)
WARM_UP = 200
COUNTED = 20


class Cost(NamedTuple):
    median: float
    best: float
    """In microseconds."""
    calls: int
    """Functions called in one of our calls, where none of them looks at clocks or files anew."""


async def measure(case: str, count: int) -> dict[str, Cost]:
    took: dict[str, list[int]] = {title: [] for title, _, _ in STAGES}
    counts: list[dict[str, int]] = []
    inside: list[str] = []

    def profile(frame: Any, event: str, argument: Any) -> None:
        if event in ("call", "c_call") and frame.f_code.co_filename != __file__:
            for title in inside:
                counts[-1][title] += 1

    async with AsyncExitStack() as stack:
        for title, owner, name in STAGES:
            original = getattr(owner, name)
            setattr(owner, name, _clocked(original, took[title], inside, title))
            stack.callback(setattr, owner, name, original)
        prepared = await ours.gate(CASES[case], stack)
        for _ in range(WARM_UP):
            await prepared.call()
        for each in took.values():
            each.clear()
        for _ in range(count):
            await prepared.call()
        times = {
            title: (statistics.median(each) / 1e3, min(each) / 1e3) for title, each in took.items()
        }
        for _ in range(COUNTED):
            counts.append(dict.fromkeys(took, 0))
            sys.setprofile(profile)
            await prepared.call()
            sys.setprofile(None)
    return {title: Cost(*times[title], min(each[title] for each in counts)) for title in took}


def _clocked(
    function: Callable[..., Any], into: list[int], inside: list[str], title: str
) -> Callable[..., Any]:
    now = time.perf_counter_ns

    def clocked(*args: Any, **named: Any) -> Any:
        inside.append(title)
        began = now()
        try:
            return function(*args, **named)
        finally:
            into.append(now() - began)
            inside.pop()

    return clocked


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--calls", type=int, default=3_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = {case: asyncio.run(measure(case, options.calls)) for case in CASES}
    if not options.json:
        for case, costs in found.items():
            rows = [
                [
                    title.replace("  ", "· "),
                    f"{cost.median:.1f}",
                    f"{cost.best:.1f}",
                    f"{cost.calls:.0f}",
                ]
                for title, cost in costs.items()
            ]
            print(report.table([case, "median µs", "best µs", "function calls"], rows) + "\n")
    print(
        json.dumps(
            {
                case: {title.strip(): cost for title, cost in costs.items()}
                for case, costs in found.items()
            }
        )
    )


if __name__ == "__main__":
    main()
