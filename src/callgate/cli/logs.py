"""What the runtime logs, for whoever runs the command line: `CALLGATE_LOG`, on stderr.

Without it a command shows only errors, in one line each. An instance (`serve`, `acp`, `mcp
serve`) shows warnings too, and whatever is shown has its traceback, without secrets. Nobody can
fill a log: a line that repeats is counted.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TextIO

from callgate.cli.errors import CliError
from callgate.cli.ui.terminal import safe
from callgate.redaction.frame_log import TRACE

_LEVELS = {
    "trace": TRACE,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_MOST = 5
"""Lines alike, of one logger and one message, that are written within a while ..."""
_WHILE_S = 60.0
"""... after which it is said how many more there were."""
_MOST_KINDS = 500


class Repeats:
    """Which lines are written, and how many of each kind are not."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._counts: dict[tuple[str, int, str], tuple[float, int]] = {}
        """By kind: when the first came, and how many did."""

    def admits(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.INFO:  # somebody looks for a fault, and wants all of it
            return True
        kind = record.name, record.levelno, str(record.msg)
        since, count = self._counts.get(kind, (self._now(), 0))
        if count or len(self._counts) < _MOST_KINDS:
            self._counts[kind] = since, count + 1
        return count < _MOST

    def due(self, *, all: bool = False) -> Iterator[logging.LogRecord]:
        """For each kind whose while is over, how many lines of it were left out, if any."""
        over = self._now() - _WHILE_S
        for kind, (since, count) in list(self._counts.items()):
            if since <= over or all:
                del self._counts[kind]
                if count > _MOST:
                    yield _left_out(kind, count - _MOST)


class LimitedLog(logging.StreamHandler[TextIO]):
    """A log on a stream, within limits."""

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
    """Messages may repeat what a tool or a model wrote, so no character of them may act."""

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
    logging.getLogger().handlers = [output]  # what libraries have to say, in the same way
