"""Measure how safe agents are behind callgate and behind others, and print the tables.

    python -m safety.run [--half HALF]... [--suite NAME]... [--only CONTESTANT]... [--held-out]
                         [--json] [--out FILE] [--write]

Tables go to stdout (with `--json` the JSON instead), the JSON also into FILE. With `--write` the
tables of docs/safety.md are made anew. docs/safety.md says how to read them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from callgate import __version__
from safety import report
from safety.contestants.ports import Contestant
from safety.contestants.rows import DOJO_ROWS
from safety.dojo import suites
from safety.report import Row
from safety.values import Episode
from safety.work import Piece, run_all

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/safety.md"
OUT = ROOT / ".build/safety/safety.json"
HALVES = ("dojo", "held-out", "shell")


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    if (why := suites.missing()) is not None:
        raise SystemExit(f"{why}; `make safety` sets everything up.")
    started = time.monotonic()
    chosen = options.half or [half for half in HALVES if half != "held-out" or options.held_out]
    tables: dict[str, str] = {}
    data: dict[str, Any] = {
        "callgate": __version__,
        "python": platform.python_version(),
        "agentdojo": suites.VERSION,
    }
    for half in chosen:
        rows = measure(half, _contestants(half, options.only), _suites(half, options.suite))
        data[half] = report.as_data(rows)
        tables |= _tables(half, rows)
        if not options.json:
            for name in tables:
                if name.startswith(half):
                    print(f"{name}\n\n{tables[name]}", flush=True)
    data["seconds"] = round(time.monotonic() - started)
    text = json.dumps(data, indent=1, ensure_ascii=False)
    if options.json:
        print(text)
    os.makedirs(options.out.parent, exist_ok=True)
    options.out.write_text(text, encoding="utf-8")
    if options.write:
        report.write_between(PAGE, tables)
    return 0


def measure(half: str, contestants: Sequence[Contestant], names: Sequence[str]) -> list[Row]:
    """Every contestant with every suite; who cannot take part is a row that says why."""
    present = [each for each in contestants if each.missing() is None]
    pieces = [Piece(half, each, name) for each in present for name in names]
    found: dict[str, list[Episode]] = {each.name: [] for each in present}
    for piece, episodes in run_all(pieces):
        found[piece.contestant.name] += episodes
        print(f"{half}: {piece.contestant.name}, {piece.suite}", file=sys.stderr, flush=True)
    return [
        Row(each.name, each.title, tuple(found.get(each.name, ())), each.missing())
        for each in contestants
    ]


def _tables(half: str, rows: Sequence[Row]) -> dict[str, str]:
    suites_found = list(dict.fromkeys(episode.suite for row in rows for episode in row.episodes))
    return {half: report.table(rows), f"{half} by suite": report.by_suite(rows, suites_found)}


def _contestants(half: str, only: Sequence[str] | None) -> list[Contestant]:
    rows = DOJO_ROWS
    return [each for each in rows if not only or each.name in only]


def _suites(half: str, only: Sequence[str] | None) -> list[str]:
    return [name for name in suites.SUITES if not only or name in only]


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make safety", description="The safety figure.")
    parser.add_argument("--half", action="append", choices=HALVES)
    parser.add_argument("--suite", action="append", help="only this suite (repeatable)")
    parser.add_argument("--only", action="append", help="only this contestant (repeatable)")
    parser.add_argument("--held-out", action="store_true", help="the held-out injections too")
    parser.add_argument("--json", action="store_true", help="JSON instead of tables")
    parser.add_argument("--out", type=Path, default=OUT, help="where the JSON is written")
    parser.add_argument("--write", action="store_true", help="write the tables into the page")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
