"""Line wrapping, and lists for people in the widest of four layouts that fits the terminal.

Lines wrap between words, never inside one:

    wrap      the rows of one paragraph
    word_rows all characters of a text, for a question: the joined rows equal the text
    reflow    a help text: paragraphs are refilled, indented lines retain their indent

A word that is wider than the terminal (a path, an id, an address) is not split by `wrap`, so that
it can be copied. Text without spaces (Chinese, Japanese, emoji) breaks between two characters.
Wrapping is pure.

    one row   read_file  read  Read a text file, or look at an image.

    wrapped   read_file  read  Read a text file, or
                               look at an image.

    below     read_file  read
                  Read a text file, or look at
                  an image.

    stacked   read_file
                effect  read
                about   Read a text file, or
                        look at an image.

A pipe or a file gets one complete line per entry. Names and ids that the next command needs are
never wrapped or cut. Control characters are escaped.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from callgate.cli.ui.terminal import LEAST_ROOM, Paint, paint_for, room
from callgate.cli.ui.visible import pieces, shorten, visible, width_of, wrapped


def wrap(text: str, width: int, most: int | None = None) -> list[str]:
    """Wrap a text into rows of at most `width` columns, and at most `most` rows.

    Control characters are escaped. A text that needs more rows ends in `...`.
    """
    if width_of(text) <= width:
        return [visible(text)]
    rows = [""]
    for gap, fragment in _fragments(text):
        joined = f"{rows[-1]}{gap}{fragment}"
        if not rows[-1]:
            rows[-1] = fragment
        elif width_of(joined) <= width:
            rows[-1] = joined
        else:
            rows.append(fragment)
    if most is None or len(rows) <= most:
        return rows
    return [*rows[: most - 1], shorten(" ".join(rows[most - 1 : most + 1]), width)]


def word_rows(text: str, width: int) -> list[str]:
    """Return rows of at most `width` columns that end after a space. A wider word is split."""
    rows = [""]
    for word in visible(text).replace(" ", " \n").split("\n"):
        if width_of(rows[-1] + word) <= width:
            rows[-1] += word
            continue
        rows += [row.text for row in wrapped(word, width)]
    return rows if rows[0] else rows[1:]


def reflow(text: str, width: int) -> str:
    """Wrap a text of several paragraphs to `width` columns."""
    if all(width_of(line) <= width for line in text.split("\n")):
        return text
    rows: list[str] = []
    for is_prose, lines in groupby(text.split("\n"), lambda line: line[:1] not in ("", " ")):
        if is_prose:
            rows += wrap(" ".join(lines), width)
            continue
        for line in lines:
            start = _text_start(line)
            first, *others = wrap(line[start:], max(width - start, 1))
            rows += [line[:start] + first, *(" " * start + row for row in others)]
    return "\n".join(rows)


def _text_start(line: str) -> int:
    """Return the start of an indented line's text, after its indent and a `NAME` column."""
    indent = len(line) - len(line.lstrip())
    name, gap, text = line[indent:].partition("  ")
    return len(line) - len(text.lstrip()) if gap and " " not in name else indent


def _fragments(text: str) -> Iterator[tuple[str, str]]:
    """Yield the unbreakable parts, words and wide characters, each with the space before it."""
    for word in visible(text).split():
        gap, fragment, was_wide = " ", "", False
        for piece, columns in pieces(word):
            is_wide = columns > len(piece)
            if fragment and columns and (is_wide or was_wide):
                yield gap, fragment
                gap, fragment = "", ""
            fragment += piece
            was_wide = is_wide or (was_wide and not columns)
        yield gap, fragment


_BETWEEN = "  "
_INDENT = "  "
_BELOW = "    "
_NARROWEST_TEXT = 32
"""Columns that the last column of a list needs next to the others."""


class Column(NamedTuple):
    label: str
    """Label before the value in the stacked layout."""
    least: int = 0
    """Minimum width, for a list whose rows are printed one by one."""
    usual: int = 0
    """Width of most values, for the choice of a layout if rows are printed one by one."""
    is_right: bool = False


class Cell(NamedTuple):
    text: str
    colour: str | None = None


Row = Sequence[Cell | str]


def print_rows(headings: Sequence[Column], rows: Sequence[Row], *, most: int | None = None) -> None:
    """Print a list. `most`: the rows that the last column of an entry may take at a terminal."""
    for line in list_lines(headings, rows, room(), paint_for(sys.stdout), most):
        print(line)


def print_field(
    label: str, value: str, *, most: int | None = None, label_colour: str | None = None
) -> None:
    """Print a value after a padded label; further rows are aligned with the first one."""
    available, paint = room(), paint_for(sys.stdout)
    first = _painted(label, Cell(label, label_colour), paint)
    if available is None:
        print(f"{first}{visible(value)}".rstrip())
        return
    for line in _hanging(" " * len(label), Cell(value), available, paint, most, first=first):
        print(line)


def print_lines(text: str) -> None:
    """Print lines with their own layout; the rows of a long line have its indent."""
    for line in text.split("\n"):
        content = line.lstrip(" ")
        print_field(" " * (len(line) - len(content)), content)


def list_lines(
    headings: Sequence[Column],
    rows: Sequence[Row],
    room: int | None,
    paint: Paint,
    most: int | None = None,
) -> Iterator[str]:
    """Yield the lines of a list. Pure."""
    cells = [[each if isinstance(each, Cell) else Cell(each) for each in row] for row in rows]
    widths = [
        max([heading.least, *(width_of(row[at].text) for row in cells)])
        for at, heading in enumerate(headings)
    ]
    head = sum(widths[:-1]) + len(_BETWEEN) * (len(widths) - 1)
    is_below = room is not None and head + min(widths[-1], _NARROWEST_TEXT) > room
    usual = (
        head
        - len(_BETWEEN)
        + sum(
            max(heading.usual - width, 0) for heading, width in zip(headings, widths, strict=True)
        )
    )
    for row in cells:
        *before, last = row
        start = "".join(
            _padded(cell, heading, width, paint) + _BETWEEN
            for cell, heading, width in zip(before, headings, widths, strict=False)
        )
        if room is None:
            yield f"{start}{_painted(visible(last.text), last, paint)}".rstrip()
        elif usual > room:
            yield from _stacked(headings, row, room, paint, most)
        elif is_below:
            yield start.rstrip()
            if last.text.strip():
                yield from _hanging(_BELOW, last, room, paint, most, first=_BELOW)
        else:
            yield from _hanging(" " * head, last, room, paint, most, first=start)


def _stacked(
    headings: Sequence[Column], row: Sequence[Cell], room: int, paint: Paint, most: int | None
) -> Iterator[str]:
    """Yield the first cell on its own row, then the others with their labels."""
    yield _painted(visible(row[0].text), row[0], paint)
    width = max(len(heading.label) for heading in headings[1:])
    for heading, cell in zip(headings[1:], row[1:], strict=True):
        start = f"{_INDENT}{heading.label:<{width}}{_BETWEEN}"
        limit = most if cell is row[-1] else None
        if cell.text.strip():
            yield from _hanging(" " * len(start), cell, room, paint, limit, first=start)


def _hanging(
    margin: str, cell: Cell, room: int, paint: Paint, most: int | None, *, first: str
) -> Iterator[str]:
    """Yield a text in rows: the first one after `first`, the others after the margin."""
    width = max(room - len(margin), LEAST_ROOM)
    for number, row in enumerate(wrap(cell.text.strip(), width, most)):
        yield f"{margin if number else first}{_painted(row, cell, paint)}".rstrip()


def _padded(cell: Cell, heading: Column, width: int, paint: Paint) -> str:
    gap = " " * (width - width_of(cell.text))
    text = visible(cell.text)
    return _painted(f"{gap}{text}" if heading.is_right else f"{text}{gap}", cell, paint)


def _painted(text: str, cell: Cell, paint: Paint) -> str:
    return text if cell.colour is None else paint(cell.colour, text)
