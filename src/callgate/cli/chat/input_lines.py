r"""What the user types: whole messages, edited and remembered where there is a terminal.

A line that ends in `\` goes on in the next; a line that begins with three backticks goes on
until a line of three backticks. What is pasted stays one message.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

import msgspec

from callgate.cli.ui.terminal import Paint, is_terminal
from callgate.config.home import Home
from callgate.core.directories import make_private_directory, write_private

_FENCE = "```"
_HISTORY_LINES = 1_000
_LARGEST = 4 * 1024 * 1024

Read = Callable[[str], str | None]
"""A line for a prompt; None at the end of all input."""


def read_message(read: Read, prompt: str, more: str) -> str | None:
    """The next message, of one line or several; None at the end of all input."""
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
    """Lines of the person at the terminal, with editing and history."""

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
        """Whether nothing is typed at this moment."""
        return not self._readline.get_line_buffer()

    def read(self) -> str | None:
        message = read_message(self._line, "> ", ". ")
        # As in shells: what begins with a space is not remembered.
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
    """`plain`: nothing is written to the terminal but text."""
    if is_terminal(sys.stdin) and is_terminal(sys.stdout):
        return Typed(home, paint, commands, plain=plain)
    return Piped()


# The history: one JSON text a line, the newest last.


def read_history(path: str) -> list[str]:
    """What was typed before; the file is shortened where it has become long."""
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
            pass  # it only stays long
    return found[-_HISTORY_LINES:]


def remember(path: str, message: str) -> None:
    """Add what was typed. It is no reason to stop where that cannot be kept."""
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
        return None  # the end of one that was being written
    return None if "\0" in text else text
