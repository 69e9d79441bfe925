"""Measure how safe agents are behind callgate and behind others, and print the tables.

    python -m safety.run [--half HALF]... [--suite NAME]... [--only CONTESTANT]... [--held-out]
                         [--json] [--out FILE] [--update] [--write]

Tables go to stdout (with `--json` the JSON instead), the JSON also into FILE. With `--update`
FILE keeps what it has of other contestants and suites, so that a part can be measured again. With
`--write` the tables of docs/safety.md are made anew. docs/safety.md says how to read them.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from callgate import __version__
from safety import report
from safety.contestants.ports import Contestant
from safety.contestants.rows import DOJO_ROWS, SHELL_ROWS
from safety.dojo import suites
from safety.report import Results, Row, SuiteResult
from safety.shell.runs import SUITES as SHELL_SUITES
from safety.work import Piece, run_all

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/safety.md"
OUT = ROOT / ".build/safety.json"
HALVES = ("dojo", "held-out", "shell")


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    if (why := suites.missing()) is not None:
        raise SystemExit(f"{why}; `make safety` sets everything up.")
    known = _read(options.out) if options.update else Results()
    halves, seconds = dict(known.halves), dict(known.seconds)
    everything = [half for half in HALVES if half != "held-out" or options.held_out]
    for half in options.half or everything:
        started = time.monotonic()
        found = measure(half, options.only, options.suite)
        names = [each.name for each in contestants(half)]
        halves[half] = report.in_order(report.merged(halves.get(half, ()), found), names)
        seconds[half] = round(time.monotonic() - started)
    results = Results(__version__, platform.python_version(), suites.VERSION, seconds, halves)
    text = msgspec.json.format(msgspec.json.encode(results), indent=1)
    os.makedirs(options.out.parent, exist_ok=True)
    options.out.write_bytes(text)
    tables = {
        name: table for half, rows in halves.items() for name, table in _tables(half, rows).items()
    }
    if options.json:
        print(text.decode())
    else:
        print("\n".join(f"{name}\n\n{table}" for name, table in tables.items()))
    if options.write:
        report.write_between(PAGE, tables)
    return 0


def measure(half: str, only: Sequence[str] | None, wanted: Sequence[str] | None) -> list[Row]:
    """Every contestant with every suite; who cannot take part is a row that says why."""
    chosen = [each for each in contestants(half) if not only or each.name in only]
    names = [name for name in suite_names(half) if not wanted or name in wanted]
    present = [each for each in chosen if each.missing() is None]
    pieces = [Piece(half, each, name) for each in present for name in names]
    found: dict[str, dict[str, SuiteResult]] = {each.name: {} for each in chosen}
    for piece, episodes in run_all(pieces):
        found[piece.contestant.name][piece.suite] = report.summarize(episodes)
        print(f"{half}: {piece.contestant.name}, {piece.suite}", file=sys.stderr, flush=True)
    return [Row(each.name, each.title, found[each.name], each.missing()) for each in chosen]


def contestants(half: str) -> Sequence[Contestant]:
    return SHELL_ROWS if half == "shell" else DOJO_ROWS


def suite_names(half: str) -> Sequence[str]:
    return SHELL_SUITES if half == "shell" else suites.SUITES


def _tables(half: str, rows: Sequence[Row]) -> dict[str, str]:
    return {half: report.table(rows), f"{half} by suite": report.by_suite(rows)}


def _read(file: Path) -> Results:
    return msgspec.json.decode(file.read_bytes(), type=Results) if file.exists() else Results()


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make safety", description="The safety figure.")
    parser.add_argument("--half", action="append", choices=HALVES)
    parser.add_argument("--suite", action="append", help="only this suite (repeatable)")
    parser.add_argument("--only", action="append", help="only this contestant (repeatable)")
    parser.add_argument("--held-out", action="store_true", help="the held-out injections too")
    parser.add_argument("--json", action="store_true", help="JSON instead of tables")
    parser.add_argument("--out", type=Path, default=OUT, help="where the JSON is written")
    parser.add_argument("--update", action="store_true", help="keep what the file has of others")
    parser.add_argument("--write", action="store_true", help="write the tables into the page")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
