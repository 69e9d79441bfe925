"""The terminal: colours where they are wanted, its width, and a line for the person at it."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import IO

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class Paint:
    """Wraps text into a colour, or leaves it as it is."""

    def __init__(self, on: bool) -> None:
        self.on = on

    def __call__(self, colour: str, text: str) -> str:
        return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if self.on and text else text


def wants_colour(is_terminal: bool, environ: Mapping[str, str]) -> bool:
    """NO_COLOR beats FORCE_COLOR beats a dumb terminal beats what the stream is."""
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return environ["FORCE_COLOR"] != "0"
    return is_terminal and environ.get("TERM") != "dumb"


def paint_for(stream: IO[str]) -> Paint:
    return Paint(wants_colour(is_terminal(stream), os.environ))


def is_terminal(stream: IO[str]) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # it was closed
        return False


def has_terminal() -> bool:
    """Whether this process has a terminal, wherever its streams lead."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def columns(default: int = 80) -> int:
    """The width of stdout, where it is a terminal."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or default
    except (OSError, ValueError):
        return default


def safe(text: str) -> str:
    """`visible_text`; its module is loaded only where some character needs it."""
    if text.isascii() and text.translate(_LINES).isprintable():
        return text
    from callgate.cli.ui.visible import visible_text  # lazy: most texts are plain  # noqa: PLC0415

    return visible_text(text)


def say(text: str) -> None:
    """Something for the person, on stderr. Whoever wrote it, it cannot act on the terminal."""
    try:
        sys.stdout.flush()  # where both go to one file, they stand in their order
    except OSError:  # a full disk, or nobody reads: this is said all the same, and
        pass  # the flush at the end of the command fails again
    print(safe(text), file=sys.stderr, flush=True)


def answered_by_words(answered_by: Mapping[str, str | None]) -> str:
    """Who made a call, and by which policy, for a person."""
    where = answered_by["instance"]
    runtime = "embedded runtime" if where is None else f"instance at {where}"
    return f"{runtime}, policy {answered_by['policy']}"


_LINES = {ord("\n"): None, ord("\t"): None}
"""What stays as it is although it is not printable."""
