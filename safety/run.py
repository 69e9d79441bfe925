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
from typing import cast

import msgspec

from callgate import __version__
from safety import report, verdicts
from safety.adaptive.runs import SUITES as ADAPTIVE_SUITES
from safety.coding.gates import CODING_ROWS
from safety.coding.runs import SUITES as CODING_SUITES
from safety.contestants.rows import ADAPTIVE_ROWS, DOJO_ROWS, ORDER_ROWS, SEARCH_ROWS, SHELL_ROWS
from safety.dojo import suites
from safety.report import Results, Row
from safety.shell.runs import SUITES as SHELL_SUITES
from safety.values import Episode
from safety.verdicts import Layout, Verdict, VerdictRow
from safety.work import Piece, Taking, run_all

AnyRow = Row | VerdictRow
ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/safety.md"
OUT = ROOT / ".build/safety.json"
_ALLOWED = ("allowed", "asked", "refused")
HALVES = ("dojo", "held-out", "order", "shell", "adaptive", "search", "coding")
LAYOUTS = {
    "order": (Layout("order", suites.SUITES, "group"),),
    "search": (
        Layout("search", suites.SUITES, "group"),
        Layout("search by harm", suites.SUITES, "kind"),
    ),
    "adaptive": (
        Layout("adaptive", ("apps",), "group"),
        Layout("adaptive by harm", ("apps",), "kind"),
        Layout("adaptive fresh", ("fresh",), "group"),
    ),
    "coding": (
        Layout("coding ordinary", ("ordinary",), "group", "asked", _ALLOWED),
        Layout(
            "coding dangerous",
            ("dangerous",),
            "kind",
            "through",
            ("allowed", "contained", "asked", "refused"),
            ("through", "contained", "asked", "denied"),
        ),
    ),
}
"""The tables of the halves that have verdicts in place of episodes."""


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
    tables = _tables(results)
    if options.json:
        print(_as_json(results).decode())
    else:
        print("\n".join(f"{name}\n\n{table}" for name, table in tables.items()))
    if options.write:
        report.write_between(PAGE, tables)
    return 0


def measure(
    half: str, only: Sequence[str] | None, wanted: Sequence[str] | None
) -> Iterator[list[AnyRow]]:
    """Every contestant with every suite: first the rows of those who cannot take part, which say
    why, then a row with each suite that is done."""
    chosen = [each for each in contestants(half) if not only or each.name in only]
    names = [name for name in suite_names(half) if not wanted or name in wanted]
    row = VerdictRow if half in LAYOUTS else Row
    yield [row(each.name, each.title, {}, why) for each in chosen if (why := each.missing())]
    present = [each for each in chosen if each.missing() is None]
    for piece, found in run_all([Piece(half, each, name) for each in present for name in names]):
        print(f"{half}: {piece.contestant.name}, {piece.suite}", file=sys.stderr, flush=True)
        yield [_row(piece, found)]


def contestants(half: str) -> Sequence[Taking]:
    rows: dict[str, Sequence[Taking]] = {
        "coding": CODING_ROWS,
        "adaptive": ADAPTIVE_ROWS,
        "order": ORDER_ROWS,
        "search": SEARCH_ROWS,
        "shell": SHELL_ROWS,
    }
    return rows.get(half, DOJO_ROWS)


def suite_names(half: str) -> Sequence[str]:
    own = {"shell": SHELL_SUITES, "adaptive": ADAPTIVE_SUITES, "coding": CODING_SUITES}
    return own.get(half, suites.SUITES)


def _row(piece: Piece, found: Sequence[Episode] | Sequence[Verdict]) -> AnyRow:
    """One contestant with one suite."""
    name, title = piece.contestant.name, piece.contestant.title
    if piece.half in LAYOUTS:
        return VerdictRow(name, title, {piece.suite: cast(tuple[Verdict, ...], tuple(found))})
    return Row(name, title, {piece.suite: report.summarize(cast(list[Episode], list(found)))})


def _tables(results: Results) -> dict[str, str]:
    tables = {}
    for half, rows in results.halves.items():
        tables[half] = report.table(rows)
        tables[f"{half} by suite"] = report.by_suite(rows)
    for half, found in results.verdicts.items():
        for layout in LAYOUTS[half]:
            tables[layout.name] = verdicts.table(found, layout)
    return tables


def _with_rows(results: Results, half: str, found: Sequence[AnyRow], took_s: float) -> Results:
    names = [each.name for each in contestants(half)]
    new = Results(
        callgate=__version__,
        python=platform.python_version(),
        agentdojo=suites.VERSION,
        seconds={**results.seconds, half: round(took_s)},
        halves=results.halves,
        verdicts=results.verdicts,
    )
    if half in LAYOUTS:
        known = results.verdicts.get(half, ())
        rows = report.in_order(report.merged(known, cast(Sequence[VerdictRow], found)), names)
        return msgspec.structs.replace(new, verdicts={**results.verdicts, half: rows})
    before = results.halves.get(half, ())
    counted = report.in_order(report.merged(before, cast(Sequence[Row], found)), names)
    return msgspec.structs.replace(new, halves={**results.halves, half: counted})


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
