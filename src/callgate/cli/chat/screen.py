"""Where a conversation appears: text as it comes, whole lines, and rows that go away again.

    text    what a model says, piece by piece; no character of it can act on the terminal
    line    a line of ours, already safe
    live    a few rows at the bottom, gone with the next thing that is shown

Where the cursor must not move, in a pipe or with `--plain`, nothing is live.
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from callgate.cli.ui.terminal import Paint
from callgate.cli.ui.visible import visible_text

_LONGEST_WORD = 40
"""Columns that wait for the end of a word before they are shown."""
_TAB = 8
_SPACES = re.compile(r"([ \t\n])")


class Screen:
    def __init__(self, stream: IO[str], paint: Paint, *, width: int | None, moves: bool) -> None:
        """
        Args:
            width: of a terminal, where lines break between words; None: they are left alone.
            moves: whether the cursor may be moved.
        """
        self.paint = paint
        self.width = width
        self._stream = stream
        self._moves = moves
        self._column = 0
        self._word = ""
        self._before = ""
        """The last character of the text: what comes next may be a mark on it."""
        self._colour: str | None = None
        self._live = 0
        self._buffered: list[str] | None = None
        self._lock = threading.RLock()  # questions are asked in another thread than the chat's
        self.is_gone = False
        """Whether nobody reads any more."""
        self.when_gone: Callable[[], object] = bool
        """Called once, then."""

    def text(self, text: str, colour: str | None = None) -> None:
        """Show a piece of a text."""
        if not text:
            return
        if self._live or colour != self._colour:
            self.settle()
        self._colour = colour
        before, self._before = self._before, text[-1]
        shown = visible_text(before + text)[len(visible_text(before)) :]
        if self.width is None:
            self._write(self._painted(shown))
            self._column = 0 if shown.endswith("\n") else 1
            return
        for part in _SPACES.split(shown):
            if part in (" ", "\t", "\n"):
                self._put_word()
                self._space(part)
            else:
                self._word += part
                if _columns(self._word) > _LONGEST_WORD:
                    self._put_word()

    def line(self, text: str = "") -> None:
        """Show a line of its own."""
        self.settle()
        self._write(f"{text}\n")

    def live(self, rows: Sequence[str]) -> None:
        """Show rows, each narrower than the screen, until something else is shown."""
        if not self._moves or self._buffered is not None:
            return
        self.settle()
        self._write("".join(f"{row}\n" for row in rows))
        self._live = len(rows)

    def settle(self) -> None:
        """End the line that is begun, and take live rows away."""
        if self._live:
            self._write(f"\x1b[{self._live}A\x1b[J")
            self._live = 0
        self._put_word()
        if self._column:
            self._write("\n")
        self._column, self._before, self._colour = 0, "", None

    def clear(self) -> None:
        self.settle()
        if self._moves:
            self._write("\x1b[2J\x1b[H")

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Hold back what is to be shown, while somebody else has the terminal."""
        self.settle()
        with self._lock:
            self._buffered = []
        try:
            yield
        finally:
            with self._lock:
                buffered, self._buffered = self._buffered, None
                self._write("".join(buffered))

    def _put_word(self) -> None:
        word, self._word = self._word, ""
        if not word:
            return
        assert self.width is not None
        columns = _columns(word)
        if self._column and self._column + columns >= self.width:
            self._write("\n")
            self._column = 0
        self._write(self._painted(word))
        self._column = (self._column + columns) % self.width

    def _space(self, space: str) -> None:
        assert self.width is not None
        end = self._column + (_TAB - self._column % _TAB if space == "\t" else 1)
        if space == "\n" or end >= self.width:
            self._write("\n")
            self._column = 0
        else:
            self._write(space)
            self._column = end

    def _painted(self, text: str) -> str:
        return text if self._colour is None else self.paint(self._colour, text)

    def _write(self, text: str) -> None:
        with self._lock:
            if self._buffered is not None:
                self._buffered.append(text)
                return
            if not text or self.is_gone:
                return
            try:
                self._stream.write(text)
                self._stream.flush()
                return
            except BrokenPipeError:
                self.is_gone = True
        self.when_gone()


def _columns(text: str) -> int:
    """Never too few."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(char) in "WFA" else 1 for char in text)
