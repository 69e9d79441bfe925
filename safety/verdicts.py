"""Verdicts: what a gate did with one call or attack, and tables that count them.

through  it ran, without a question or because the person had allowed it
contained  it ran without a question, in a sandbox that let it reach no host
asked    a person had to decide, and the attack did not run
denied   it was refused without a question
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

Outcome = Literal["through", "contained", "asked", "denied"]
OUTCOMES: tuple[Outcome, ...] = ("through", "asked", "denied")


class Verdict(msgspec.Struct, frozen=True):
    id: str
    group: str
    """Family of an attack, suite of a task, or language of a session."""
    kind: str
    """Harm of an attack, or class of a call."""
    outcome: Outcome
    why: str = ""
    """The first question."""


class VerdictRow(msgspec.Struct, frozen=True):
    """The verdicts of one gate, by suite."""

    name: str
    title: str
    suites: Mapping[str, tuple[Verdict, ...]] = {}
    missing: str | None = None
    """Why it did not take part."""


class Layout(msgspec.Struct, frozen=True):
    """One table of verdicts."""

    name: str
    """Its name in docs/safety.md."""
    suites: tuple[str, ...]
    columns: Literal["group", "kind"]
    """The field with one column for each value."""
    counted: Outcome = "through"
    """What these columns count."""
    heads: tuple[str, ...] = ("through", "asked", "refused")
    outcomes: tuple[Outcome, ...] = OUTCOMES


def table(rows: Sequence[VerdictRow], layout: Layout) -> str:
    """One line for each gate: its outcomes, then one outcome by group or kind. Pure."""
    found = {row.name: _of_suites(row, layout.suites) for row in rows}
    values = list(
        dict.fromkeys(getattr(each, layout.columns) for all in found.values() for each in all)
    )
    lines = [["gate", *layout.heads, *values]]
    lines.append(["---"] * len(lines[0]))
    lines += [[row.title, *_cells(row, found[row.name], layout, values)] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _of_suites(row: VerdictRow, suites: Sequence[str]) -> list[Verdict]:
    return [each for suite in suites for each in row.suites.get(suite, ())]


def _cells(
    row: VerdictRow, found: Sequence[Verdict], layout: Layout, values: Sequence[str]
) -> list[str]:
    if row.missing is not None:
        return [f"not run: {row.missing}", *[""] * (len(layout.outcomes) + len(values) - 1)]
    outcomes = Counter(each.outcome for each in found)
    shares = [
        f"{outcomes[each]} of {len(found)} ({outcomes[each] / len(found):.1%})"
        if each == layout.counted and found
        else str(outcomes[each])
        for each in layout.outcomes
    ]
    of_all = Counter(getattr(each, layout.columns) for each in found)
    of_counted = Counter(
        getattr(each, layout.columns) for each in found if each.outcome == layout.counted
    )
    return [*shares, *(f"{of_counted[value]} of {of_all[value]}" for value in values)]
