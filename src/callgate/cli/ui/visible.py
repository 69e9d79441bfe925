"""Text that somebody else wrote, made safe to look at: nothing in it acts, nothing in it hides.

    visible        one line; every control, invisible or direction-changing character escaped
    visible_text   many lines, for a log or a result: line ends and tabs stay
    clip           one line, cut in the middle to a width
    excerpt        many lines, wrapped to a width and cut in the middle to a height
    wrapped        many lines, wrapped to a width, whole

Every text that a model, a tool, a file or a settings file brought goes through here before it
reaches a terminal. What would move the cursor, change a colour, turn the direction of writing
or show as nothing at all becomes `\\x1b`, `\\u202e` and the like. Columns are never counted
too low, so a row never runs over into the next.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

from callgate.core.text.characters import escape, is_seen

_MOST_MARKS = 4
"""Marks on one letter; a tower of them would cover the rows above."""
_ROOM = _MOST_MARKS + 1

_GAP = "..."


class Row(NamedTuple):
    text: str
    start: int
    end: int
    """The part of the source that it shows."""
    first: bool
    """Begins a line of the source; False where a long line was wrapped."""


class Excerpt(NamedTuple):
    head: list[Row]
    tail: list[Row]
    lines: int
    """How many are left out between the two; 0 where everything is in the head."""
    characters: int

    @property
    def cut(self) -> str | None:
        """How much is not shown, in words; None where all is."""
        if not self.lines:
            return None
        words = "1 line" if self.lines == 1 else f"{self.lines:,} lines"
        return f"{words} not shown ({self.characters:,} characters)"


def visible(text: str) -> str:
    """One line: also a line break becomes an escape."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(piece for piece, _ in _pieces(text))


def visible_text(text: str) -> str:
    """Many lines: line ends and tabs stay as they are."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        part if part in ("\n", "\t") else visible(part) for part in re.split("([\n\t])", text)
    )


def clip(text: str, width: int) -> str:
    """`visible`, and cut in the middle to fit into a number of columns."""
    reach = width * _ROOM
    if len(text) <= 2 * reach:
        before = after = list(_pieces(text))
        if sum(columns for _, columns in before) <= width:
            return "".join(piece for piece, _ in before)
    else:
        before, after = list(_pieces(text[:reach])), list(_pieces(text[-reach:]))
    room = max(width - len(_GAP), 0)
    head = _fitting(before, room - room // 2)
    tail = _fitting(after[::-1], room // 2)
    return "".join([*head, _GAP, *reversed(tail)])


def excerpt(text: str, *, width: int, rows: int) -> Excerpt:
    """The text in rows of at most `width` columns, and at most `rows` of them."""
    reach = width * (rows + 1) * _ROOM
    if len(text) <= 2 * reach:
        before = after = list(wrapped(text, width, 0))
        if len(before) <= rows:
            return Excerpt(before, [], 0, 0)
    else:  # only as much of a huge text as can come into sight
        before = list(wrapped(text[:reach], width, 0))
        after = list(wrapped(text[-reach:], width, len(text) - reach))
    head, tail = before[: (rows + 1) // 2], after[len(after) - rows // 2 :]
    gap = text[head[-1].end : tail[0].start if tail else len(text)]
    gap = gap.removeprefix("\n").removesuffix("\n")
    return Excerpt(head, tail, gap.count("\n") + 1, len(gap))


def _fitting(pieces: list[tuple[str, int]], width: int) -> list[str]:
    shown = []
    for piece, columns in pieces:
        width -= columns
        if width < 0:
            break
        shown.append(piece)
    return shown


def _pieces(text: str) -> Iterator[tuple[str, int]]:
    """Each character as it is shown, and its columns."""
    marks = _MOST_MARKS  # at the start there is no letter that a mark could belong to
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
    """All of it, in rows of at most `width` columns."""
    for line in text.split("\n"):
        yield from _wrapped_line(line, width, offset)
        offset += len(line) + 1


def _wrapped_line(line: str, width: int, offset: int) -> Iterator[Row]:
    shown: list[str] = []
    used, start, at, first = 0, offset, offset, True
    for piece, columns in _pieces(line):
        if shown and used + columns > width:
            yield Row("".join(shown), start, at, first)
            shown, used, start, first = [], 0, at, False
        shown.append(piece)
        used += columns
        at += 1
    yield Row("".join(shown), start, at, first)
