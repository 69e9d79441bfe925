"""The tables and the JSON: what was counted of each contestant with each suite, as plain values.

Results of several runs are put together by contestant and suite, so that a part of a run can be
repeated and the tables made of everything that is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from safety.values import Episode, Score, score
from safety.verdicts import VerdictRow

_HEAD = (
    "gate",
    "attacks that reach their goal",
    "tasks done",
    "tasks done under attack",
    "questions a task",
    "questions the attacker caused",
    "effects without a person",
)


class SuiteResult(msgspec.Struct, frozen=True):
    """What was counted of one contestant with one suite."""

    score: Score
    reached: tuple[str, ...] = ()
    """The attacks that got through: task and injected goal."""
    not_done: tuple[str, ...] = ()
    asked: Mapping[str, tuple[str, ...]] = {}
    """The questions of benign tasks."""


class Row(msgspec.Struct, frozen=True):
    """One contestant in one half."""

    name: str
    title: str
    suites: Mapping[str, SuiteResult] = {}
    missing: str | None = None
    """Why it did not take part."""

    @property
    def total(self) -> Score:
        return added([result.score for result in self.suites.values()])


AnyRow = TypeVar("AnyRow", Row, VerdictRow)


class Results(msgspec.Struct, frozen=True):
    """The JSON file."""

    callgate: str = ""
    python: str = ""
    agentdojo: str = ""
    seconds: Mapping[str, int] = {}
    """How long each half took when it was last run."""
    halves: Mapping[str, tuple[Row, ...]] = {}
    verdicts: Mapping[str, tuple[VerdictRow, ...]] = {}
    """The halves that count verdicts."""


def summarize(episodes: Sequence[Episode]) -> SuiteResult:
    """Count one contestant's runs of one suite. Pure."""
    benign = [each for each in episodes if each.attack is None]
    return SuiteResult(
        score=score(list(episodes)),
        reached=tuple(
            f"{each.task}/{each.attack}"
            for each in episodes
            if each.attack is not None and each.done
        ),
        not_done=tuple(each.task for each in benign if not each.done),
        asked={each.task: each.questions for each in benign if each.questions},
    )


def added(scores: Sequence[Score]) -> Score:
    """The sum of scores. Pure."""
    names = Score.__struct_fields__
    return Score(**{name: sum(getattr(each, name) for each in scores) for name in names})


def merged(old: Sequence[AnyRow], new: Sequence[AnyRow]) -> tuple[AnyRow, ...]:
    """What is known after a run of a part: its results, and for the rest the earlier ones. Pure."""
    rows = {row.name: row for row in old}
    for row in new:
        before = rows.get(row.name)
        kept = {} if before is None else before.suites
        rows[row.name] = msgspec.structs.replace(row, suites={**kept, **row.suites})
    return tuple(rows.values())


def in_order(rows: Sequence[AnyRow], names: Sequence[str]) -> tuple[AnyRow, ...]:
    """The rows of the contestants that there are, in the order of the table. Pure."""
    by_name = {row.name: row for row in rows}
    return tuple(by_name[name] for name in names if name in by_name)


def table(rows: Sequence[Row]) -> str:
    """One table, a contestant a line. Pure."""
    lines = [_line(_HEAD), _line(["---"] * len(_HEAD))]
    lines += [_line([row.title, *_cells(row)]) for row in rows]
    return "\n".join(lines) + "\n"


def by_suite(rows: Sequence[Row]) -> str:
    """Attacks reached, tasks done and questions a task, a suite a column. Pure."""
    suites = list(dict.fromkeys(suite for row in rows for suite in row.suites))
    lines = [_line(["gate", *suites]), _line(["---"] * (len(suites) + 1))]
    for row in rows:
        if row.missing is None:
            cells = [
                _short(row.suites[suite].score) if suite in row.suites else "" for suite in suites
            ]
            lines.append(_line([row.title, *cells]))
    return "\n".join(lines) + "\n"


def write_between(page: Path, tables: Mapping[str, str]) -> None:
    """Put each table between its markers, `<!-- NAME -->` and `<!-- end NAME -->`."""
    text = page.read_text(encoding="utf-8")
    for name, content in tables.items():
        start, end = f"<!-- {name} -->", f"<!-- end {name} -->"
        head, opened, rest = text.partition(start)
        _, closed, tail = rest.partition(end)
        if not opened or not closed:
            raise SystemExit(f"{page} has no place for the table {name!r}: {start} ... {end}")
        text = f"{head}{start}\n\n{content}\n{end}{tail}"
    page.write_text(text, encoding="utf-8")


def _cells(row: Row) -> list[str]:
    if row.missing is not None:
        return [f"not run: {row.missing}", "", "", "", "", ""]
    found = row.total
    share = f" ({found.attacks_reached / found.attacks:.1%})" if found.attacks else ""
    return [
        f"{found.attacks_reached} of {found.attacks}{share}",
        f"{found.tasks_done} of {found.tasks}" if found.tasks else "",
        f"{found.done_under_attack} of {found.under_attack}" if found.under_attack else "",
        f"{found.questions_a_task:.2f}" if found.tasks else "",
        str(found.attacker_questions),
        "" if found.autonomy is None else f"{found.autonomy:.0%}",
    ]


def _short(found: Score) -> str:
    reached = f"{found.attacks_reached} of {found.attacks}"
    if not found.tasks:
        return reached
    return f"{reached}; {found.tasks_done} of {found.tasks}; {found.questions_a_task:.2f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
