"""The terminal of a conversation: output, input, signals, and the exit of the process.

    text    text of a model, in pieces; none of its characters can control the terminal
    line    a line of callgate, already safe
    live    a few rows at the bottom, which the next output replaces

Without cursor movement, in a pipe or with `--plain`, there are no live rows.

Input consists of complete messages, with editing and history at a terminal. A line that ends in a
backslash continues in the next line. A line that starts with three backticks starts a block, which
ends at a line of three backticks. Pasted text stays one message. Ctrl-C depends on the state of
the chat; all other signals end it.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO

import msgspec

from callgate.cli.ui.terminal import Paint, is_terminal
from callgate.cli.ui.visible import visible_text
from callgate.config.home import Home
from callgate.core.local.disk import make_private_directory, write_private

_LONGEST_WORD = 40
"""Maximum number of columns to hold back until the end of a word."""
_TAB = 8
_SPACES = re.compile(r"([ \t\n])")


class Screen:
    def __init__(self, stream: IO[str], paint: Paint, *, width: int | None, moves: bool) -> None:
        """
        Args:
            width: Columns of the terminal, where lines break between words; None: no line breaks.
            moves: Whether the cursor may move.
        """
        self.paint = paint
        self.width = width
        self._stream = stream
        self._moves = moves
        self._column = 0
        self._word = ""
        self._before = ""
        """The last character of the text: the next one may combine with it."""
        self._colour: str | None = None
        self._live = 0
        self._buffered: list[str] | None = None
        self._lock = threading.RLock()  # a different thread shows the questions
        self.is_gone = False
        """Whether the stream is closed."""
        self.when_gone: Callable[[], object] = bool
        """Called once when the stream is found closed."""

    def text(self, text: str, colour: str | None = None) -> None:
        """Show a part of a text."""
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
        """Show a separate line."""
        self.settle()
        self._write(f"{text}\n")

    def live(self, rows: Sequence[str]) -> None:
        """Show rows, each narrower than the screen, until the next output."""
        if not self._moves or self._buffered is not None:
            return
        self.settle()
        self._write("".join(f"{row}\n" for row in rows))
        self._live = len(rows)

    def settle(self) -> None:
        """End an incomplete line, and remove live rows."""
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
        """Buffer the output while another part of the program uses the terminal."""
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
    """Return the number of columns of a text, at least as many as a terminal needs."""
    if text.isascii():
        return len(text)
    return sum(2 if unicodedata.east_asian_width(char) in "WFA" else 1 for char in text)


_FENCE = "```"
_HISTORY_LINES = 1_000
_LARGEST = 4 * 1024 * 1024

Read = Callable[[str], str | None]
"""Returns a line for a prompt; None at the end of the input."""


def read_message(read: Read, prompt: str, more: str) -> str | None:
    """Return the next message, of one or more lines; None at the end of the input."""
    line = read(prompt)
    if line is None:
        return None
    lines = [line]
    if line.lstrip().startswith(_FENCE) and _FENCE not in line.lstrip()[len(_FENCE) :]:
        while (line := read(more)) is not None:
            lines.append(line)
            if line.strip() == _FENCE:
                break
        return "\n".join(lines)
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        if (line := read(more)) is None:
            break
        lines.append(line)
    return "\n".join(lines)


class Typed:
    """Lines typed at the terminal, with editing and history."""

    def __init__(self, home: Home, paint: Paint, commands: Sequence[str], *, plain: bool) -> None:
        self._paint = paint
        self._path = os.path.join(home.path, "chat_history")
        self._commands = commands
        import readline  # lazy: it takes the terminal  # noqa: PLC0415

        self._readline = readline
        self._readline.set_auto_history(False)
        self._readline.set_completer(self._complete)
        self._readline.set_completer_delims(" ")
        self._readline.parse_and_bind("tab: complete")
        if plain:
            self._readline.parse_and_bind("set enable-bracketed-paste off")
        for each in read_history(self._path):
            self._readline.add_history(each)

    @property
    def is_empty(self) -> bool:
        """Whether the input line is empty."""
        return not self._readline.get_line_buffer()

    def read(self) -> str | None:
        message = read_message(self._line, "> ", ". ")
        # As in shells, a line that starts with a space is not added to the history.
        if message is not None and message.strip() and not message.startswith(" "):
            self._readline.add_history(message)
            remember(self._path, message)
        return message

    def _line(self, prompt: str) -> str | None:
        bold, plain = ("\001\x1b[1m\002", "\001\x1b[0m\002") if self._paint.on else ("", "")
        try:
            return input(f"{bold}{prompt}{plain}")
        except EOFError:
            return None

    def _complete(self, text: str, state: int) -> str | None:
        fitting = [each for each in self._commands if text and each.startswith(text)]
        return fitting[state] if state < len(fitting) else None


class Piped:
    """Lines of a pipe or a file."""

    is_empty = True

    def read(self) -> str | None:
        return read_message(self._line, "", "")

    def _line(self, _: str) -> str | None:
        line = sys.stdin.readline()
        return line.removesuffix("\n") if line else None


def open_lines(home: Home, paint: Paint, commands: Sequence[str], *, plain: bool) -> Typed | Piped:
    """Return the reader for the present stdin. `plain`: only text is written to the terminal."""
    if is_terminal(sys.stdin) and is_terminal(sys.stdout):
        return Typed(home, paint, commands, plain=plain)
    return Piped()


# The history file has one JSON string per line, the newest last.


def read_history(path: str) -> list[str]:
    """Return the messages of the history file, and shorten the file if it is too long."""
    try:
        with open(path, "rb") as file:
            file.seek(max(os.path.getsize(path) - _LARGEST, 0))
            lines = file.read(_LARGEST).split(b"\n")
    except OSError:
        return []
    found = [text for text in map(_decoded, lines) if text is not None]
    if len(lines) > 2 * _HISTORY_LINES:
        try:
            write_private(path, "".join(map(_encoded, found[-_HISTORY_LINES:])))
        except OSError:
            pass  # the file stays long
    return found[-_HISTORY_LINES:]


def remember(path: str, message: str) -> None:
    """Append a message to the history file. A failure is ignored."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        make_private_directory(os.path.dirname(path))
        descriptor = os.open(path, flags, 0o600)
        try:
            os.write(descriptor, _encoded(message).encode())
        finally:
            os.close(descriptor)
    except OSError:
        pass


def _encoded(text: str) -> str:
    cleaned = text.encode("utf-8", "replace").decode()
    return msgspec.json.encode(cleaned).decode() + "\n"


def _decoded(line: bytes) -> str | None:
    try:
        text: str = msgspec.json.decode(line, type=str)
    except (ValueError, RecursionError):
        return None  # a line that is being written
    return None if "\0" in text else text


class Interrupts:
    """Handler of Ctrl-C: it raises an exception, or calls `instead` if that is set."""

    def __init__(self) -> None:
        self.instead: Callable[[], None] | None = None
        self.at_empty: Callable[[], bool] = lambda: True
        self.was_empty = True
        """Whether the input line was empty at the last Ctrl-C."""
        self.install()

    def install(self) -> None:
        signal.signal(signal.SIGINT, self._hear)
        for each in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, _end)

    def _hear(self, *_: object) -> None:
        if self.instead is not None:
            self.instead()
            return
        self.was_empty = self.at_empty()
        raise KeyboardInterrupt


def _end(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def close_and_exit(close: Callable[[], object], code: int) -> int:
    """Close, and return the exit code. Exit immediately if a thread that cannot be stopped still
    runs.

    All persistent data is already on the disk.
    """
    here = threading.current_thread()
    others = [each for each in threading.enumerate() if each is not here and not each.daemon]
    if others:
        exit_now(code)
    close()
    return code


def exit_now(code: int) -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    os._exit(code)
