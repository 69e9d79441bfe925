"""Questions on a terminal: layout and dialog.

The layout is built from the arguments that will run, for the height of the screen:

    callgate: may this run?
      tool       shell (execute)
      from       command line, session 01JCK3, process 4711 (/usr/bin/python3), in /home/me/project
      why        Calls with effect execute need approval by default.
      workspace  /home/me/project
      sandbox    workspace
      arguments
      | command = "make test"

Every text goes through `visible` and follows a label or a bar, so that untrusted text cannot
imitate callgate's. `question_text` cuts long parts in the middle, and marks the cut with its
length. `question_rows` returns the whole question.

A text that does not fit must be paged through before a yes:

    show ---all on the screen---------------------------> choices ---a letter---> answer
      '-----cut, with a mark---> choices ---f, or a yes---> pages ---> choices

A yes counts only if the screen showed the whole question at its present size, or if the person
opened every page. A no always counts. After a change of the screen's size the question is drawn
again before a yes counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple, Protocol

from callgate.cli.ui.tables import word_rows
from callgate.cli.ui.terminal import Paint
from callgate.cli.ui.tty import MARK, BegunBefore, Tty
from callgate.cli.ui.visible import Row, clip, excerpt, visible, wrapped
from callgate.core.effects import SideEffects
from callgate.dispatch.permission.confirmations import (
    Confirmation,
    arguments_text,
    preview_heading,
    requester_text,
)

NARROWEST = 16
"""Minimum columns for a question."""
_BAR, _WRAPPED, _CUT = "  | ", "  \\ ", "  ~ "
_LABEL = 13
_LABELS_BESIDE = 40
"""Minimum columns for labels on the same row as their values."""
_FIELD_ROWS = 2
_LEAST_ROWS = 3
_TITLE = "callgate: may this run?"


class Shown(NamedTuple):
    text: str
    cut: bool
    """Whether a part is left out, which must be opened before an approval."""


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
    """Return the question without the choices, in rows of less than `width` columns.

    A question that does not fit into `rows` is cut to that number, or to a minimum.
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
    """Yield all rows of the question; `width` is at least `NARROWEST`."""
    yield _title(width, paint)
    yield from _field_rows(question, width, None)
    for section in _sections(question, paint):
        yield from _wrapped_heading(section.heading, width)
        yield from _barred(_rows(section, width), section)


def choices_text(choices: Mapping[str, str], width: int, question: str = "Allow?") -> str:
    """Return the rows of the possible answers, which precede the prompt mark."""
    room = max(width, NARROWEST) - 1 - len(" > ")
    lines, line = [], question
    for choice in (word for label in choices.values() for word in _words(label, room)):
        if line and len(line) + len(choice) > room:
            lines.append(line)
            line = ""
        line += choice
    return "\n".join([*lines, line])


def _words(choice: str, room: int) -> Iterator[str]:
    """Yield a choice with a gap before it; in a narrow window, its words."""
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
    # callgate's own preview of a command only repeats the command.
    repeats = question.preview_is_ours and isinstance(question.arguments.get("command"), str)
    if question.preview is not None and not repeats:
        is_diff = question.side_effects is SideEffects.WRITE and question.preview_is_ours
        colours = paint if is_diff else Paint(False)
        found.append(_Section(preview_heading(question), question.preview, colours))
    return found


def _shares(sections: list[_Section], width: int, room: int) -> list[int]:
    """Return the rows of each section: half for the preview, unless one needs less."""
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
    """Return the rows of the fields; `most` limits the rows of each, by a cut in the middle."""
    beside = width >= _LABELS_BESIDE
    inner = width - 1 - (_LABEL if beside else len(_BAR))
    lines = []
    for label, value in _fields(question):
        short = visible(value) if most is None else clip(value, most * inner - 2)
        rows = word_rows(short, inner)
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


_OPEN, _QUIT, _NO = "f", "q", "n"
_YES_NO = {"y": "[y]es", _NO: "[n]o"}
_PAGE_WORDS = {"more": "", "back": _QUIT, "quit": _QUIT, "no": _NO}
_BRACKETS = {ord("["): None, ord("]"): None}
_LOWEST = 3
_TOO_SMALL = "callgate: the window is too small; enlarge it to approve the call\n"


class Document(Protocol):
    """Text of a question, for a screen of any size."""

    def text(self, width: int, rows: int) -> Shown: ...

    def rows(self, width: int) -> Iterable[str]: ...


class Dialog:
    """One question to one person, within `tty.asking()`."""

    def __init__(self, tty: Tty, document: Document) -> None:
        self._tty = tty
        self._document = document
        self._opened = False

    async def choose(
        self, choices: Mapping[str, str], allowing: Collection[str], question: str = "Allow?"
    ) -> str | None:
        """Return the chosen letter or other typed text; None at the end of the input.

        Args:
            choices: the label of each letter.
            allowing: letters that count only after the whole question was shown.
        """
        while True:
            size = self._tty.size()
            shown = self._show(choices, question, size)
            try:
                line = await self._tty.ask(shown.text + MARK)
            except BegunBefore:
                continue
            word = None if line is None else _letter(line.strip().lower(), choices)
            if word == _OPEN or (word in allowing and shown.cut and not self._opened):
                if await self.open() == _NO:
                    return _NO
            elif word not in allowing or self._opened or self._tty.size() == size:
                return word

    def _show(self, choices: Mapping[str, str], question: str, size: tuple[int, int]) -> Shown:
        """Return the question with its choices, and whether it was cut."""
        width, height = size
        offered = choices_text(choices, width, question)
        shown = self._document.text(width, height - 1 - offered.count("\n"))
        if shown.cut and not self._opened:
            offered = choices_text({_OPEN: "show [f]ull text first", **choices}, width, question)
            shown = self._document.text(width, height - 1 - offered.count("\n"))
        return Shown(shown.text + offered, shown.cut)

    async def open(self) -> str | None:
        """Show all pages; return `n` if the person denied at one of them."""
        while True:
            size = self._tty.size()
            if size[0] < NARROWEST or size[1] < _LOWEST:
                self._tty.write(_TOO_SMALL)
                return None
            word = await self._pages(*size)
            if word != "":
                return word
            if self._tty.size() == size:
                self._opened = True
                return None

    async def _pages(self, width: int, height: int) -> str:
        """Return an empty text after the last page or a change of the window's size."""
        first = 1
        for page in _paged(self._document.rows(width), max(height - 2, 1)):
            last = first + len(page) - 1
            prompt = clip(f"-- rows {first:,} to {last:,}: [Enter] more  [q]uit  [n]o", width - 4)
            word = await self._turn("".join(f"{row}\n" for row in page), prompt)
            if word or self._tty.size() != (width, height):
                return word
            first = last + 1
        return ""

    async def _turn(self, page: str, prompt: str) -> str:
        """Show a page, and return the answer that was typed after it was complete."""
        while True:
            try:
                line = await self._tty.ask(page + prompt + MARK)
            except BegunBefore:
                continue
            word = _NO if line is None else line.strip().lower()
            word = _PAGE_WORDS.get(word, word)
            if word in ("", _QUIT, _NO):
                return word


async def agreed(tty: Tty, document: Document, question: str) -> bool:
    """Ask for confirmation of anything except a call, under the same rules."""
    async with tty.asking():
        word = await Dialog(tty, document).choose(_YES_NO, {"y"}, question)
    return word == "y"


class Rows(ABC):
    """Document that computes its rows from the width of the terminal."""

    @abstractmethod
    def rows(self, width: int) -> Iterator[str]: ...

    def text(self, width: int, rows: int) -> Shown:
        found = list(islice(self.rows(max(width, 2)), max(rows, 0) + 1))
        cut = len(found) > rows
        if cut:
            found = [*found[: max(rows - 1, 0)], clip("[more: press f]", max(width - 1, 8))]
        return Shown("".join(f"{row}\n" for row in found), cut)


class Lines(Rows):
    """Document of lines that are already safe for a terminal."""

    def __init__(self, lines: Collection[str]) -> None:
        self._lines = lines

    def rows(self, width: int) -> Iterator[str]:
        for line in self._lines:
            for row in wrapped(line, width - 1):
                yield row.text


def _paged(rows: Iterable[str], size: int) -> Iterator[list[str]]:
    following = iter(rows)
    while page := list(islice(following, size)):
        yield page


def _letter(word: str, choices: Mapping[str, str]) -> str:
    """Return the letter of a word: `yes`, from the label `[y]es once`, means `y`."""
    labels = {**choices, _OPEN: "[f]ull"}
    spelt = {label.translate(_BRACKETS).split()[0]: letter for letter, label in labels.items()}
    return spelt.get(word, word)
