r"""Keys of a terminal as lines, so that each line is known to have begun after its question. Pure.

    feed(bytes) -> lines that ended; `pending` is whether one has begun

The terminal edits no lines for us: in its own buffer nobody can see whether a line was begun
before a question stood there. What is pasted (the terminal marks it) belongs to no line unless
`takes_paste`, so a text that holds `y` and a line break answers nothing. Ctrl-C and Ctrl-Z are
signals and do not arrive here.
"""

from __future__ import annotations

import codecs

PASTE_ON, PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"
"""Has the terminal mark what is pasted."""
_PASTE_BEGINS, _PASTE_ENDS = "200~", "201~"
_END_OF_FILE = "\x04"
_LONGEST_LINE = 4096


class Keys:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._line: list[str] = []
        self._sequence: str | None = None
        """What came of an escape sequence; None outside of one."""
        self._pasting = False
        self.takes_paste = False
        self.echo = ""
        """What to write to the terminal for what was fed, until somebody takes it."""

    @property
    def pending(self) -> bool:
        """A line was begun, or a paste has not ended."""
        half = bool(self._decoder.getstate()[0])  # of a character
        return half or bool(self._line) or self._sequence is not None or self._pasting

    def feed(self, data: bytes) -> list[str | None]:
        """The lines that ended; None stands for the end of all input (Ctrl-D)."""
        ended: list[str | None] = []
        for char in self._decoder.decode(data):
            if self._sequence is not None:
                self._continue_sequence(char)
            elif char == "\x1b":
                self._sequence = ""
            elif self._pasting:
                if self.takes_paste and char.isprintable():
                    self._insert(char)
            elif char in "\r\n":
                ended.append(self._take())
            elif char == _END_OF_FILE and not self._line:
                ended.append(None)
            else:
                self._edit(char)
        return ended

    def take_echo(self) -> str:
        echo, self.echo = self.echo, ""
        return echo

    def _take(self) -> str:
        line = "".join(self._line)
        self._line.clear()
        self.echo += "\n"
        return line

    def _continue_sequence(self, char: str) -> None:
        assert self._sequence is not None
        if self._sequence == "" and char not in "[O":  # Alt and a key
            self._sequence = None
            return
        self._sequence += char
        if len(self._sequence) == 1 or not "@" <= char <= "~":
            return
        name, self._sequence = self._sequence[1:], None
        if name in (_PASTE_BEGINS, _PASTE_ENDS):
            self._pasting = name == _PASTE_BEGINS

    def _edit(self, char: str) -> None:
        if char in "\x7f\b":
            self._delete(1)
        elif char in "\x15\x17":  # Ctrl-U, Ctrl-W
            self._delete(len(self._line))
        elif char.isprintable():
            self._insert(char)

    def _insert(self, char: str) -> None:
        if len(self._line) < _LONGEST_LINE:
            self._line.append(char)
            self.echo += char

    def _delete(self, count: int) -> None:
        removed = min(count, len(self._line))
        del self._line[len(self._line) - removed :]
        self.echo += "\b \b" * removed
