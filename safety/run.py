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
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from callgate import __version__
from safety import report
from safety.contestants.ports import Contestant
from safety.contestants.rows import DOJO_ROWS, SHELL_ROWS
from safety.dojo import suites
from safety.report import Results, Row
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
    results = _read(options.out) if options.update else Results()
    everything = [half for half in HALVES if half != "held-out" or options.held_out]
    for half in options.half or everything:
        started = time.monotonic()
        for found in measure(half, options.only, options.suite):
            results = _with_rows(results, half, found, time.monotonic() - started)
            _write(options.out, results)
    tables = {
        name: table
        for half, rows in results.halves.items()
        for name, table in _tables(half, rows).items()
    }
    if options.json:
        print(_as_json(results).decode())
    else:
        print("\n".join(f"{name}\n\n{table}" for name, table in tables.items()))
    if options.write:
        report.write_between(PAGE, tables)
    return 0


def measure(
    half: str, only: Sequence[str] | None, wanted: Sequence[str] | None
) -> Iterator[list[Row]]:
    """Every contestant with every suite: first the rows of those who cannot take part, which say
    why, then a row with each suite that is done."""
    chosen = [each for each in contestants(half) if not only or each.name in only]
    names = [name for name in suite_names(half) if not wanted or name in wanted]
    yield [Row(each.name, each.title, {}, why) for each in chosen if (why := each.missing())]
    present = [each for each in chosen if each.missing() is None]
    for piece, episodes in run_all([Piece(half, each, name) for each in present for name in names]):
        print(f"{half}: {piece.contestant.name}, {piece.suite}", file=sys.stderr, flush=True)
        result = {piece.suite: report.summarize(episodes)}
        yield [Row(piece.contestant.name, piece.contestant.title, result)]


def contestants(half: str) -> Sequence[Contestant]:
    return SHELL_ROWS if half == "shell" else DOJO_ROWS


def suite_names(half: str) -> Sequence[str]:
    return SHELL_SUITES if half == "shell" else suites.SUITES


def _tables(half: str, rows: Sequence[Row]) -> dict[str, str]:
    return {half: report.table(rows), f"{half} by suite": report.by_suite(rows)}


def _with_rows(results: Results, half: str, found: Sequence[Row], took_s: float) -> Results:
    names = [each.name for each in contestants(half)]
    rows = report.in_order(report.merged(results.halves.get(half, ()), found), names)
    return Results(
        callgate=__version__,
        python=platform.python_version(),
        agentdojo=suites.VERSION,
        seconds={**results.seconds, half: round(took_s)},
        halves={**results.halves, half: rows},
    )


def _write(file: Path, results: Results) -> None:
    os.makedirs(file.parent, exist_ok=True)
    file.write_bytes(_as_json(results))


def _as_json(results: Results) -> bytes:
    return msgspec.json.format(msgspec.json.encode(results), indent=1)


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
