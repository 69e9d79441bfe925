"""Escaping of untrusted text for a terminal, so that it can neither control it nor hide content.

    visible        one line; every control, invisible or direction-changing character escaped
    visible_text   many lines, for a log or a result: line ends and tabs remain
    clip           one line, cut in the middle to a width
    shorten        one line, cut at its end to a width, after a word if possible
    excerpt        many lines, wrapped to a width and cut in the middle to a height
    wrapped        many lines, wrapped to a width
    width_of       the columns of a line

Text of models, tools, files and settings reaches a terminal only through this module. Characters
that move the cursor, change a colour, turn the direction of writing or are invisible become
`\\x1b`, `\\u202e` and the like. Widths are never underestimated, so that a row never overflows.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

from callgate.core.texts import escape, is_seen

_MOST_MARKS = 4
"""Maximum combining marks on one letter; more would cover the rows above."""
_ROOM = _MOST_MARKS + 1

_GAP = "..."


class Row(NamedTuple):
    text: str
    start: int
    end: int
    """`start` and `end`: the range of the source in this row."""
    first: bool
    """Whether the row begins a line of the source; False for rows of a wrapped line."""


class Excerpt(NamedTuple):
    head: list[Row]
    tail: list[Row]
    lines: int
    """Number of omitted lines between head and tail; 0 if the head has all lines."""
    characters: int

    @property
    def cut(self) -> str | None:
        """The length of the omitted part, in words; None if nothing is omitted."""
        if not self.lines:
            return None
        words = "1 line" if self.lines == 1 else f"{self.lines:,} lines"
        return f"{words} not shown ({self.characters:,} characters)"


def visible(text: str) -> str:
    """Escape a text to one line; line breaks become escapes."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(piece for piece, _ in pieces(text))


def visible_text(text: str) -> str:
    """Escape a text of several lines; line ends and tabs remain."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        part if part in ("\n", "\t") else visible(part) for part in re.split("([\n\t])", text)
    )


def clip(text: str, width: int) -> str:
    """Escape a line, and cut it in the middle to fit into `width` columns."""
    reach = width * _ROOM
    if len(text) <= 2 * reach:
        before = after = list(pieces(text))
        if sum(columns for _, columns in before) <= width:
            return "".join(piece for piece, _ in before)
    else:
        before, after = list(pieces(text[:reach])), list(pieces(text[-reach:]))
    room = max(width - len(_GAP), 0)
    head = _fitting(before, room - room // 2)
    tail = _fitting(after[::-1], room // 2)
    return "".join([*head, _GAP, *reversed(tail)])


def shorten(text: str, width: int) -> str:
    """Escape a line, and cut it at its end to fit into `width` columns."""
    if width_of(text) <= width:
        return visible(text)
    shown = "".join(_fitting(list(pieces(text)), width - len(_GAP)))
    head, space, _ = shown.rpartition(" ")
    is_long = space and width_of(head) >= width // 2
    return f"{head.rstrip()} {_GAP}" if is_long else f"{shown}{_GAP}"


def excerpt(text: str, *, width: int, rows: int) -> Excerpt:
    """Wrap a text into rows of at most `width` columns, and cut it to at most `rows` rows."""
    reach = width * (rows + 1) * _ROOM
    if len(text) <= 2 * reach:
        before = after = list(wrapped(text, width, 0))
        if len(before) <= rows:
            return Excerpt(before, [], 0, 0)
    else:  # only the visible parts of a huge text
        before = list(wrapped(text[:reach], width, 0))
        after = list(wrapped(text[-reach:], width, len(text) - reach))
    head, tail = before[: (rows + 1) // 2], after[len(after) - rows // 2 :]
    gap = text[head[-1].end : tail[0].start if tail else len(text)]
    gap = gap.removeprefix("\n").removesuffix("\n")
    return Excerpt(head, tail, gap.count("\n") + 1, len(gap))


def width_of(text: str) -> int:
    """Return the columns of `visible(text)`."""
    if text.isascii() and text.isprintable():
        return len(text)
    return sum(columns for _, columns in pieces(text))


def _fitting(pieces: list[tuple[str, int]], width: int) -> list[str]:
    shown = []
    for piece, columns in pieces:
        width -= columns
        if width < 0:
            break
        shown.append(piece)
    return shown


def pieces(text: str) -> Iterator[tuple[str, int]]:
    """Yield each character in its escaped form, and its columns."""
    marks = _MOST_MARKS  # at the start there is no letter for a combining mark
    for char in text:
        if char.isascii():
            safe, columns = char.isprintable(), 1
        elif not is_seen(char):
            safe, columns = False, 0
        elif unicodedata.category(char) in ("Mn", "Me"):
            marks += 1
            safe, columns = marks <= _MOST_MARKS, 0
            if safe:
                yield char, 0
                continue
        else:
            safe, columns = True, 2 if unicodedata.east_asian_width(char) in "WFA" else 1
        shown = char if safe else escape(char)
        marks = 0 if safe and char != " " else _MOST_MARKS
        yield shown, columns if safe else len(shown)


def wrapped(text: str, width: int, offset: int = 0) -> Iterator[Row]:
    """Yield all rows of a text, wrapped to at most `width` columns."""
    for line in text.split("\n"):
        yield from _wrapped_line(line, width, offset)
        offset += len(line) + 1


def _wrapped_line(line: str, width: int, offset: int) -> Iterator[Row]:
    shown: list[str] = []
    used, start, at, first = 0, offset, offset, True
    for piece, columns in pieces(line):
        if shown and used + columns > width:
            yield Row("".join(shown), start, at, first)
            shown, used, start, first = [], 0, at, False
        shown.append(piece)
        used += columns
        at += 1
    yield Row("".join(shown), start, at, first)
