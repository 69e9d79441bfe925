"""Measured rows as JSON lines, which a later measurement is compared with (`compare.py`)."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterable, Mapping
from statistics import median, quantiles
from typing import Any

import msgspec

from benchmarks import report
from benchmarks.contest import Measured, Outcome
from benchmarks.start import Start


class Row(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One line of a table."""

    name: str
    unit: str
    rounds: list[float]
    """One figure a round."""
    function_calls: float | None = None
    run: str = ""
    """Rows of the same run were measured in turn, round by round."""
    commit: str = ""
    python: str = ""
    machine: Mapping[str, Any] = {}

    @property
    def median(self) -> float:
        return median(self.rounds)

    @property
    def spread(self) -> float:
        """The distance between the quartiles."""
        if len(self.rounds) < 2:
            return 0.0
        low, _, high = quantiles(self.rounds, n=4)
        return high - low


def rows_of_calls(prefix: str, found: Mapping[str, Outcome]) -> list[Row]:
    return [
        Row(
            name=f"{prefix}/{name}",
            unit="µs",
            rounds=each.rounds_us,
            function_calls=each.function_calls,
        )
        for name, each in found.items()
        if isinstance(each, Measured)
    ]


def rows_of_memory(found: Mapping[str, list[float]]) -> list[Row]:
    return [Row(name=f"memory/{what}", unit="B", rounds=sizes) for what, sizes in found.items()]


def rows_of_starts(found: Mapping[str, Start]) -> list[Row]:
    """CPU: others at work on the machine weigh on it less than on wall time."""
    return [
        Row(name=f"start/{name}", unit="ms", rounds=each.cpu_ms) for name, each in found.items()
    ]


def new_run() -> str:
    return secrets.token_hex(8)


def with_facts(rows: Iterable[Row], tree: str, run: str) -> list[Row]:
    """The same rows, with what was measured and where."""
    machine = {**report.machine(), "load": [round(load, 2) for load in os.getloadavg()]}
    python = machine.pop("python")
    commit = commit_of(tree)
    return [
        msgspec.structs.replace(row, run=run, commit=commit, python=python, machine=machine)
        for row in rows
    ]


def commit_of(tree: str) -> str:
    """The commit of a tree, with a plus sign behind it if files differ from it."""

    def git(*words: str) -> str:
        ended = subprocess.run(
            ["git", "-C", tree, *words], capture_output=True, text=True, check=False
        )
        return ended.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")


def write_rows(path: str, rows: Iterable[Row]) -> None:
    with open(path, "wb") as file:
        for row in rows:
            shown = {
                **msgspec.to_builtins(row),
                "rounds": [round(each, 3) for each in row.rounds],
                "median": round(row.median, 3),
                "spread": round(row.spread, 3),
            }
            file.write(msgspec.json.encode(shown) + b"\n")


def read_rows(path: str) -> list[Row]:
    rows = []
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                rows.append(msgspec.json.decode(line, type=Row))
            except msgspec.MsgspecError as error:
                raise SystemExit(f"{path}, line {number}: {error}") from None
    return rows
