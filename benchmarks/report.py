"""What was measured, as Markdown tables for people and as plain values for programs."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.contest import Measured, Outcome
from benchmarks.contestants import Contestant
from benchmarks.start import Start

Calls = Mapping[str, Mapping[str, Outcome]]
"""Case to contestant to figures."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first column is text, the others are numbers."""
    lines = [head, ["---", *("---:" for _ in head[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def fastest_peer(found: Mapping[str, Outcome], contestants: Iterable[Contestant]) -> str | None:
    peers = {
        each.name: found[each.name].median_us  # type: ignore[union-attr]
        for each in contestants
        if each.is_peer and isinstance(found.get(each.name), Measured)
    }
    return min(peers, key=peers.__getitem__, default=None)


def calls_table(calls: Calls, contestants: Sequence[Contestant]) -> str:
    head = ["one call in process", "version"]
    for case in calls:
        head += [f"`{case}`, µs", "±", "to fastest peer", "function calls"]
    rows = []
    for contestant in contestants:
        row = [contestant.title, contestant.version or "not installed"]
        for found in calls.values():
            row += _cells(contestant, found, fastest_peer(found, contestants))
        rows.append(row)
    return table(head, rows)


def _cells(
    contestant: Contestant, found: Mapping[str, Outcome], fastest: str | None
) -> Sequence[str]:
    figures = found.get(contestant.name)
    if not isinstance(figures, Measured):
        return ["–", "–", "–", "–"]
    best = found[fastest] if fastest is not None else None
    ratio = f"{figures.ratio_to(best):.2f}" if isinstance(best, Measured) else "–"
    return [
        f"{figures.median_us:,.1f}",
        f"{figures.spread_us:,.1f}",
        ratio,
        f"{figures.function_calls:,.0f}",
    ]


def everyday_table(found: Mapping[str, Mapping[str, Outcome]], peer: str) -> str:
    rows = []
    for case, outcomes in found.items():
        ours, theirs = outcomes.get("gate"), outcomes.get(peer)
        row = [case, "–", "–", "–", "–"]
        if isinstance(ours, Measured):
            row[1], row[4] = f"{ours.median_us:,.1f}", f"{ours.function_calls:,.0f}"
        if isinstance(theirs, Measured):
            row[2] = f"{theirs.median_us:,.1f}"
        if isinstance(ours, Measured) and isinstance(theirs, Measured):
            row[3] = f"{ours.ratio_to(theirs):.2f}"
        rows.append(row)
    head = ["a call of `Gate.call`", "callgate, µs", f"{peer}, µs", "ratio", "function calls"]
    return table(head, rows)


def singles_table(found: Mapping[str, Outcome], contestants: Sequence[Contestant]) -> str:
    rows = []
    for contestant in contestants:
        figures = found.get(contestant.name)
        if isinstance(figures, Measured):
            waits = [f"{each:,.0f}" for each in figures.waits_us]
            rows.append([contestant.title, f"{figures.median_us:,.0f}", *waits])
        else:
            rows.append([contestant.title, "–", "–", "–", "–"])
    head = ["`add`, one call every 50 ms", "CPU, µs", "waited, p50, µs", "p95", "p99"]
    return table(head, rows)


def idle_table(found: Mapping[str, Outcome], contestants: Sequence[Contestant]) -> str:
    plain = found[contestants[0].name]
    rows = []
    for contestant in contestants:
        figures = found[contestant.name]
        if isinstance(figures, Measured) and isinstance(plain, Measured):
            rows.append(
                [
                    contestant.title,
                    f"{figures.median_us:.1f}",
                    f"{figures.spread_us:.1f}",
                    f"{figures.ratio_to(plain):.2f}",
                    f"{figures.function_calls:.0f}",
                ]
            )
        else:
            rows.append([contestant.title, "–", "–", "–", "–"])
    return table(["callgate `add` with", "µs", "±", "to nothing idle", "function calls"], rows)


def start_table(found: Mapping[str, Start]) -> str:
    floor = next(iter(found.values()))
    rows = [
        [
            f"`{name}`",
            f"{start.median_ms:.0f}",
            f"{start.ratio_to(floor):.1f}",
            f"{start.median_cpu_ms:.0f}",
            str(start.modules),
        ]
        for name, start in found.items()
    ]
    return table(["cold start", "wall, ms", "to the floor", "CPU, ms", "modules imported"], rows)


def memory_table(found: Mapping[str, int]) -> str:
    rows = [[what, f"{size:,}"] for what, size in found.items()]
    return table(["resident memory", "bytes"], rows)


def machine() -> dict[str, Any]:
    """What the figures depend on, as far as it can be told from inside."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line for line in file if line.startswith("model name")]
        return names[0].partition(":")[2].strip()
    except (OSError, IndexError):
        return platform.processor() or "unknown"


def outcome_values(found: Mapping[str, Outcome]) -> dict[str, Any]:
    return {
        name: {
            "median_us": round(it.median_us, 3),
            "min_us": round(min(it.rounds_us), 3),
            "spread_us": round(it.spread_us, 3),
            "rounds": len(it.rounds_us),
            "function_calls": it.function_calls,
        }
        if isinstance(it, Measured)
        else {"failed": it.why}
        for name, it in found.items()
    }


def start_values(found: Mapping[str, Start]) -> dict[str, Any]:
    return {
        name: {
            "wall_ms": round(start.median_ms, 2),
            "cpu_ms": round(start.median_cpu_ms, 2),
            "modules": start.modules,
        }
        for name, start in found.items()
    }
