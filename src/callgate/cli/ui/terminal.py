"""The terminal: colours, its width, and messages on stderr."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import IO

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
LEAST_ROOM = 16
"""Minimum columns for text."""


class Paint:
    """Colours for text; does nothing if it is off."""

    def __init__(self, on: bool) -> None:
        self.on = on

    def __call__(self, colour: str, text: str) -> str:
        return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if self.on and text else text


def wants_colour(is_terminal: bool, environ: Mapping[str, str]) -> bool:
    """Whether to use colours: NO_COLOR, then FORCE_COLOR, then the kind of terminal decides."""
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
    """Whether this process has a controlling terminal, even if its streams are redirected."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def columns(default: int = 80) -> int:
    """Return the width of stdout's terminal, or `default`."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or default
    except (OSError, ValueError):
        return default


def room() -> int | None:
    """Return the columns for text on stdout; None if it is not a terminal: do not wrap."""
    return max(columns() - 1, LEAST_ROOM) if is_terminal(sys.stdout) else None


def safe(text: str) -> str:
    """Return `visible_text`; its module is imported only if a character needs it."""
    if text.isascii() and text.translate(_LINES).isprintable():
        return text
    from callgate.cli.ui.visible import visible_text  # lazy: most texts are plain  # noqa: PLC0415

    return visible_text(text)


def say(text: str) -> None:
    """Print a message on stderr, without control characters."""
    try:
        sys.stdout.flush()  # preserves the order if both streams go to one file
    except OSError:  # a full disk or a closed pipe: print the message anyway
        pass  # the flush at the end of the command fails again
    print(safe(text), file=sys.stderr, flush=True)


def answered_by_words(answered_by: Mapping[str, str | None]) -> str:
    """Describe the runtime that made a call, and its policy."""
    where = answered_by["instance"]
    runtime = "embedded runtime" if where is None else f"instance at {where}"
    return f"{runtime}, policy {answered_by['policy']}"


_LINES = {ord("\n"): None, ord("\t"): None}
"""Characters that are not printable, and are not escaped."""
