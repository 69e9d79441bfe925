"""What a reply says in plain words, beside its documents: whole, and while it arrives.

A fence or a tag that only wraps a document is no part of it; a fenced example in an answer is.
`Prose` gives the beginning of what `said` gives: all up to the first character that could
begin a document, a fence or a tag, for what stands there is known only later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_TAG = r"</?(?:tool_?calls?|function_?calls?|json)>"
WRAPPING = re.compile(
    rf"[\s\ufeff]+|;|(?<!`)```(?!`)(?P<label>[A-Za-z0-9_+-]*)|{_TAG}", re.IGNORECASE
)
"""What may stand beside a document and says nothing."""
_CLOSING = re.compile(rf"(?:{WRAPPING.pattern.replace('P<label>', ':')})*", re.IGNORECASE)
_OPENING = re.compile(
    rf"(?:(?<!`)(?P<fence>```)(?!`)[A-Za-z0-9_+-]{{0,32}}|{_TAG})\Z", re.IGNORECASE
)
_LONGEST = 36
_SPACE = re.compile(r"[\s\ufeff]*")
_DOUBTFUL = re.compile(r"[{\[`<]")
_NOT_FIRST = frozenset("{[`<;")


def prose_between(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """The words in the stretches between documents, without what wraps the documents."""
    passages = [_unwrapped(text[start:end], start > 0, end < len(text)) for start, end in spans]
    return "\n".join(part for part in passages if part)


def _unwrapped(part: str, follows: bool, precedes: bool) -> str:
    """One stretch, which may follow a document and precede one."""
    start = (_CLOSING if follows else _SPACE).match(part)
    assert start is not None
    part = part[start.end() :].rstrip()
    for _ in range(2 if precedes else 0):  # a tag and a fence
        opening = _OPENING.search(part, max(len(part) - _LONGEST, 0))
        # Of two fences the second closes the first, and opens nothing.
        if opening is None or (opening["fence"] and part.count("```") % 2 == 0):
            break
        part = part[: opening.start()].rstrip()
    return part


class Prose:
    """The words at the beginning of a reply, as it arrives."""

    def __init__(self) -> None:
        self.over = False
        """What follows may be something else than words."""
        self._begun = False
        self._space: list[str] = []
        """It is shown only if more follows."""

    def feed(self, piece: str) -> str:
        """Take the next piece of the reply; the words that it makes visible."""
        doubt = _DOUBTFUL.search(piece)
        if doubt is not None:
            self.over = True
            piece = piece[: doubt.start()]
        if not self._begun:
            space = _SPACE.match(piece)
            assert space is not None
            piece = piece[space.end() :]
            if not piece:
                return ""
            self._begun = True
            if piece[0] in _NOT_FIRST:
                self.over = True
                return ""
        words = piece.rstrip()
        if not words:
            self._space.append(piece)
            return ""
        shown = "".join(self._space) + words
        self._space = [piece[len(words) :]]
        return shown
