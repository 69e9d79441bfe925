"""How a question looks: built from the arguments that will run, and never higher than the screen.

    callgate: may this run?
      tool       shell (execute)
      from       command line, session 01JCK3, process 4711 (/usr/bin/python3), in /home/me/project
      why        Calls with effect execute are asked about by default.
      workspace  /home/me/project
      sandbox    workspace
      arguments
      | command = "make test"

Every piece goes through `visible` and stands behind a label or a bar, so no text can pass for
ours. What does not fit is cut in the middle, and a mark of our own says how much: `question_text`.
`question_rows` is all of it, for whoever opens that mark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from callgate.cli.ui.terminal import Paint
from callgate.cli.ui.visible import Row, clip, excerpt, visible, wrapped
from callgate.core.effects import SideEffects
from callgate.dispatch.permission.confirmations import Confirmation
from callgate.dispatch.permission.presentation import (
    arguments_text,
    preview_heading,
    requester_text,
)

NARROWEST = 16
"""Columns below which no question can be shown."""
_BAR, _WRAPPED, _CUT = "  | ", "  \\ ", "  ~ "
_LABEL = 13
_LABELS_BESIDE = 40
"""Columns from which on a label stands beside its value, not above it."""
_FIELD_ROWS = 2
_LEAST_ROWS = 3
_TITLE = "callgate: may this run?"


class Shown(NamedTuple):
    text: str
    cut: bool
    """Something is left out that has to be opened before the call is allowed."""


class QuestionDocument:
    """A question for a screen of any size."""

    def __init__(self, question: Confirmation, paint: Paint) -> None:
        self._question = question
        self._paint = paint

    def text(self, width: int, rows: int) -> Shown:
        return question_text(self._question, width, rows, self._paint)

    def rows(self, width: int) -> Iterator[str]:
        return question_rows(self._question, width, self._paint)


class _Section(NamedTuple):
    heading: str
    body: str
    paint: Paint


def question_text(question: Confirmation, width: int, rows: int, paint: Paint) -> Shown:
    """The question without the choices, in rows of less than `width` columns.

    Whole if it fits into `rows`; else cut to that number, or to a few rows where that is less.
    """
    if width < NARROWEST:
        return Shown("callgate asks:\ntoo narrow\n", True)
    all_rows = list(islice(question_rows(question, width, paint), max(rows, 0) + 1))
    if len(all_rows) <= rows:
        return Shown("\n".join([*all_rows, ""]), False)
    sections = _sections(question, paint)
    fields = _field_rows(question, width, _FIELD_ROWS)
    room = max(rows - 1 - len(fields) - len(sections), _LEAST_ROWS * len(sections))
    lines = [_title(width, paint), *fields]
    for section, share in zip(sections, _shares(sections, width, room), strict=True):
        lines += _cut_section(section, width, share, paint)
    return Shown("\n".join([*lines, ""]), True)


def question_rows(question: Confirmation, width: int, paint: Paint) -> Iterator[str]:
    """All of the question, row by row; `width` is at least `NARROWEST`."""
    yield _title(width, paint)
    yield from _field_rows(question, width, None)
    for section in _sections(question, paint):
        yield from _wrapped_heading(section.heading, width)
        yield from _barred(_rows(section, width), section)


def choices_text(choices: Mapping[str, str], width: int, question: str = "Allow?") -> str:
    """The last rows: what can be answered. A mark follows, and the cursor stays behind it."""
    room = max(width, NARROWEST) - 1 - len(" > ")
    lines, line = [], question
    for choice in (word for label in choices.values() for word in _words(label, room)):
        if line and len(line) + len(choice) > room:
            lines.append(line)
            line = ""
        line += choice
    return "\n".join([*lines, line])


def _words(choice: str, room: int) -> Iterator[str]:
    """A choice behind a gap; in a narrow window, in pieces."""
    if len(choice) + 2 <= room:
        yield f"  {choice}"
        return
    first, *others = choice.split()
    yield f"  {first}"
    yield from (f" {word}" for word in others)


def _inner(width: int) -> int:
    return width - 1 - len(_BAR)


def _title(width: int, paint: Paint) -> str:
    return paint("bold", _TITLE if width > len(_TITLE) else "callgate asks:")


def _wrapped_heading(heading: str, width: int) -> Iterator[str]:
    for row in wrapped(heading, width - 3):
        yield f"  {row.text}"


def _sections(question: Confirmation, paint: Paint) -> list[_Section]:
    body = arguments_text(question.arguments)
    found = [_Section("arguments" if body else "no arguments", body, Paint(False))]
    # Ours for a command is the command once more.
    repeats = question.preview_is_ours and isinstance(question.arguments.get("command"), str)
    if question.preview is not None and not repeats:
        is_diff = question.side_effects is SideEffects.WRITE and question.preview_is_ours
        colours = paint if is_diff else Paint(False)
        found.append(_Section(preview_heading(question), question.preview, colours))
    return found


def _shares(sections: list[_Section], width: int, room: int) -> list[int]:
    """The rows of each section: half for the preview, unless one of the two needs less."""
    needed = [sum(1 for _ in islice(_rows(each, width), room)) for each in sections]
    if len(sections) == 1:
        return [room]
    second = min(needed[1], max(room // 2, room - needed[0]))
    return [room - second, second]


def _rows(section: _Section, width: int) -> Iterator[Row]:
    return wrapped(section.body, _inner(width)) if section.body else iter(())


def _cut_section(section: _Section, width: int, rows: int, paint: Paint) -> Iterator[str]:
    yield clip(f"  {section.heading}", width - 1)
    if not section.body:
        return
    found = excerpt(section.body, width=_inner(width), rows=max(rows, 1))
    if found.cut is not None:
        found = excerpt(section.body, width=_inner(width), rows=max(rows - 1, 1))
    yield from _barred(found.head, section)
    if found.cut is not None:
        mark = f"[{found.cut}: f opens]"
        mark = mark if len(mark) + len(_CUT) < width else "[cut: f]"
        yield paint("yellow", _CUT + mark)
    yield from _barred(found.tail, section)


def _fields(question: Confirmation) -> Iterator[tuple[str, str]]:
    destructive = ", destructive" if question.destructive else ""
    yield "tool", f"{question.tool} ({question.side_effects}{destructive})"
    yield "from", requester_text(question)
    yield "why", question.why
    for line in question.provenance_lines:
        yield "value", line
    yield "workspace", question.workspace
    if question.sandbox is not None:
        yield "sandbox", question.sandbox
    if question.projected_modifications:
        yield "changes", ", ".join(question.projected_modifications)


def _field_rows(question: Confirmation, width: int, most: int | None) -> list[str]:
    """Each field in as many rows as it needs, or in `most` of them, cut in the middle."""
    beside = width >= _LABELS_BESIDE
    inner = width - 1 - (_LABEL if beside else len(_BAR))
    lines = []
    for label, value in _fields(question):
        short = visible(value) if most is None else clip(value, most * inner - 2)
        rows = [row.text for row in wrapped(short, inner)]
        if beside:
            lines += [f"  {label:<{_LABEL - 2}}{rows[0]}"]
            lines += [f"{'':<{_LABEL}}{row}" for row in rows[1:]]
        else:
            lines += [f"  {label}", *(f"    {row}" for row in rows)]
    return lines


def _barred(rows: Iterable[Row], section: _Section) -> Iterator[str]:
    for row in rows:
        bar = _BAR if row.first else _WRAPPED
        yield bar + (_coloured(row, section) if section.paint.on else row.text)


def _coloured(row: Row, section: _Section) -> str:
    begin = section.body.rfind("\n", 0, row.start) + 1
    colour = {"+": "green", "-": "red", "@": "cyan"}.get(section.body[begin : begin + 1])
    return row.text if colour is None else section.paint(colour, row.text)
