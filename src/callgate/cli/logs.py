"""Output on stderr while a command runs: the log, whose level is `CALLGATE_LOG`, and progress.

By default a command shows only errors, in one line each. An instance (`serve`, `acp`, `mcp
serve`) also shows warnings, and its lines have tracebacks without secrets. Repeated lines are
counted instead of written, so that they cannot fill a log.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from callgate.cli.errors import CliError
from callgate.cli.ui.terminal import is_terminal, safe, say
from callgate.redaction.frame_log import TRACE

_LEVELS = {
    "trace": TRACE,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_MOST = 5
"""Lines of one logger and one message that are written within `_WHILE_S`."""
_WHILE_S = 60.0
"""After this time a line has the number of the lines that were not written."""
_MOST_KINDS = 500


class Repeats:
    """Counts of repeated log lines, by kind: logger, level and message."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._counts: dict[tuple[str, int, str], tuple[float, int]] = {}
        """By kind: the time of the first line, and the number of lines."""

    def admits(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.INFO:  # debugging needs every line
            return True
        kind = record.name, record.levelno, str(record.msg)
        since, count = self._counts.get(kind, (self._now(), 0))
        if count or len(self._counts) < _MOST_KINDS:
            self._counts[kind] = since, count + 1
        return count < _MOST

    def due(self, *, all: bool = False) -> Iterator[logging.LogRecord]:
        """Yield a summary for each kind with omitted lines whose period is over."""
        over = self._now() - _WHILE_S
        for kind, (since, count) in list(self._counts.items()):
            if since <= over or all:
                del self._counts[kind]
                if count > _MOST:
                    yield _left_out(kind, count - _MOST)


class LimitedLog(logging.StreamHandler[TextIO]):
    """Log handler that limits repeated lines."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._repeats = Repeats()

    def emit(self, record: logging.LogRecord) -> None:
        for summary in self._repeats.due():
            super().emit(summary)
        if self._repeats.admits(record):
            super().emit(record)

    def close(self) -> None:
        try:
            for summary in self._repeats.due(all=True):
                super().emit(summary)
        finally:
            super().close()


def _left_out(kind: tuple[str, int, str], count: int) -> logging.LogRecord:
    name, level, message = kind
    return logging.LogRecord(name, level, "", 0, f"{count} more like this: {message}", None, None)


class _Lines(logging.Formatter):
    """Formatter that escapes control characters, because messages may contain untrusted text."""

    def __init__(self, full: bool) -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s")
        self._full = full

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if not self._full:
            return safe(text.split("\n")[0])
        from callgate.redaction.texts import redact  # lazy: most commands log nothing  # noqa: PLC0415

        return safe(redact(text))


def set_up(debug: bool, least: str = "error") -> None:
    """Send the log of callgate to stderr: `least`, or more if the environment asks for it."""
    wish = "debug" if debug else os.environ.get("CALLGATE_LOG", "").lower()
    chosen = wish or "error"
    if chosen not in _LEVELS:
        raise CliError(f"CALLGATE_LOG={chosen!r} is not one of {', '.join(_LEVELS)}")
    level = min(_LEVELS[chosen], _LEVELS[least])
    logging.addLevelName(TRACE, "TRACE")
    output = LimitedLog(sys.stderr)
    output.setFormatter(_Lines(full=bool(wish) or level < logging.ERROR))
    logger = logging.getLogger("callgate")
    logger.handlers = [output]
    logger.setLevel(level)
    logger.propagate = False
    logging.getLogger().handlers = [output]  # also for libraries


_AFTER_S = 1.0
_DRAW_EVERY_S = 0.25
_TURNS = "|/-\\"
_CLEAR = "\r\x1b[K"


class ProgressLine:
    """Progress line on stderr, drawn only on a terminal. Its methods are idempotent."""

    def __init__(self, *, wanted: bool) -> None:
        self._on = wanted and is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb"
        self._drawing: tuple[threading.Thread, threading.Event] | None = None

    def start(self, text: str | Callable[[], str]) -> None:
        """Start drawing. `text` may be a function that returns the present text."""
        self.stop()
        if self._on:
            over = threading.Event()
            thread = threading.Thread(target=_draw, args=(text, over), daemon=True)
            self._drawing = thread, over
            thread.start()

    def stop(self) -> None:
        """Stop drawing, and return after the line is erased."""
        if self._drawing is not None:
            thread, over = self._drawing
            self._drawing = None
            over.set()
            thread.join()


def _draw(text: str | Callable[[], str], over: threading.Event) -> None:
    began = time.monotonic()
    turn = 0
    if over.wait(_AFTER_S):
        return
    while True:
        elapsed = time.monotonic() - began
        mark = _TURNS[turn % len(_TURNS)]
        sys.stderr.write(
            f"{_CLEAR}{mark} {safe(text if isinstance(text, str) else text())} {elapsed:.0f} s\r"
        )
        sys.stderr.flush()
        turn += 1
        if over.wait(_DRAW_EVERY_S):
            break
    sys.stderr.write(_CLEAR)
    sys.stderr.flush()


_PROGRESS_EVERY_S = 2.0


class Progress:
    """Progress messages of long work."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _PROGRESS_EVERY_S

    def __call__(self, count: int) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _PROGRESS_EVERY_S
            say(f"callgate: {count:,} calls checked ...")
