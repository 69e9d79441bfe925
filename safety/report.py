"""The tables: as Markdown for people and the page, as plain data for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from safety.values import Episode, Score, score

_HEAD = (
    "gate",
    "attacks that reach their goal",
    "tasks done",
    "questions a task",
    "questions the attacker caused",
    "effects without a person",
)


class Row(msgspec.Struct, frozen=True):
    """One contestant in one half."""

    name: str
    title: str
    episodes: tuple[Episode, ...] = ()
    missing: str | None = None
    """Why it did not take part."""


def table(rows: Sequence[Row]) -> str:
    """One table, a contestant a line. Pure."""
    lines = [_line(_HEAD), _line(["---"] * len(_HEAD))]
    lines += [_line([row.title, *_cells(row)]) for row in rows]
    return "\n".join(lines) + "\n"


def by_suite(rows: Sequence[Row], suites: Sequence[str]) -> str:
    """Attacks reached, tasks done and questions a task, a suite a column. Pure."""
    lines = [_line(["gate", *suites]), _line(["---"] * (len(suites) + 1))]
    for row in rows:
        if row.missing is None:
            parts = [
                score([episode for episode in row.episodes if episode.suite == suite])
                for suite in suites
            ]
            lines.append(_line([row.title, *(_short(part) for part in parts)]))
    return "\n".join(lines) + "\n"


def as_data(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Everything that the tables are made of, and which attacks got through."""
    return [_row_data(row) for row in rows]


def write_between(page: Path, tables: Mapping[str, str]) -> None:
    """Put each table between its markers, `<!-- NAME -->` and `<!-- end NAME -->`."""
    text = page.read_text(encoding="utf-8")
    for name, content in tables.items():
        start, end = f"<!-- {name} -->", f"<!-- end {name} -->"
        head, opened, rest = text.partition(start)
        _, closed, tail = rest.partition(end)
        if not opened or not closed:
            raise SystemExit(f"{page} has no place for the table {name!r}: {start} ... {end}")
        text = f"{head}{start}\n{content}{end}{tail}"
    page.write_text(text, encoding="utf-8")


def _row_data(row: Row) -> dict[str, Any]:
    if row.missing is not None:
        return {"name": row.name, "title": row.title, "missing": row.missing}
    suites = sorted({episode.suite for episode in row.episodes})
    return {
        "name": row.name,
        "title": row.title,
        "all": _score_data(score(list(row.episodes))),
        "suites": {
            suite: _score_data(score([each for each in row.episodes if each.suite == suite]))
            for suite in suites
        },
        "reached": [
            f"{each.suite}/{each.task}/{each.attack}"
            for each in row.episodes
            if each.attack is not None and each.done
        ],
        "not_done": [
            f"{each.suite}/{each.task}"
            for each in row.episodes
            if each.attack is None and not each.done
        ],
        "asked": {
            f"{each.suite}/{each.task}": list(each.questions)
            for each in row.episodes
            if each.attack is None and each.questions
        },
    }


def _score_data(found: Score) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(found)
    return data | {"questions_a_task": found.questions_a_task, "autonomy": found.autonomy}


def _cells(row: Row) -> list[str]:
    if row.missing is not None:
        return [f"not run: {row.missing}", "", "", "", ""]
    found = score(list(row.episodes))
    share = f" ({found.attacks_reached / found.attacks:.1%})" if found.attacks else ""
    tasks = f"{found.tasks_done} of {found.tasks}" if found.tasks else ""
    return [
        f"{found.attacks_reached} of {found.attacks}{share}",
        tasks,
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
