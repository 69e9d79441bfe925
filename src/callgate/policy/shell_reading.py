"""The state of a reading of a shell text, which words and lists of commands share."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from callgate.policy.shell_values import MAX_DEPTH, Doubt


class TooMuch(Exception):
    """A limit was passed; the reading stops here."""


class Reading:
    """One pass over one text: where it is, and what it has found to doubt."""

    __slots__ = ("arithmetic", "depth", "doubts", "pos", "read_nested", "read_text", "text")

    def __init__(
        self,
        text: str,
        depth: int,
        doubts: dict[Doubt, None],
        read_nested: Callable[[Reading], None],
        read_text: Callable[[Reading, str], None],
    ) -> None:
        self.text = text
        self.pos = 0
        self.depth = depth
        self.doubts = doubts
        self.read_nested = read_nested
        """Reads the commands up to and including the next `)`."""
        self.read_text = read_text
        """Reads another text, such as the inside of backticks, as commands."""
        self.arithmetic = False
        """`((` or `[` was seen, so `#` and `<<` may be arithmetic and hide nothing."""

    def doubt(self, doubt: Doubt) -> None:
        self.doubts[doubt] = None

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise TooMuch

    def exit(self) -> None:
        self.depth -= 1


class Word(msgspec.Struct, frozen=True):
    text: str
    literal: bool
    quoted: bool
    """Any part of it is quoted: it is neither a keyword nor a number before a `>`."""
    emptied: tuple[str, ...]
