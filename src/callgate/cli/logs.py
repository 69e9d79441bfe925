"""What the runtime logs, for whoever runs the command line: `CALLGATE_LOG`, on stderr.

Without it a command shows only errors, in one line each. An instance (`serve`, `acp`, `mcp
serve`) shows warnings too, and whatever is shown has its traceback, without secrets.
"""

from __future__ import annotations

import logging
import os
import sys

from callgate.cli.errors import CliError
from callgate.cli.log_limits import LimitedLog
from callgate.cli.ui.terminal import safe
from callgate.redaction.frame_log import TRACE

_LEVELS = {
    "trace": TRACE,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


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
