"""What tools write to their log, to the client that called them.

A tool's log lines carry the id of its call (`ToolContext.logger`): each goes to the client of
that call and to nobody else, if it wants lines of that level.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import get_args

from mcp_types import LOG_LEVEL_META_KEY, LoggingLevel
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from callgate.surfaces.mcp.client_sessions import ClientSession
from callgate.surfaces.mcp.notifications import Line
from callgate.surfaces.mcp.pending_requests import Context

LEVELS: tuple[LoggingLevel, ...] = get_args(LoggingLevel)
"""From the least important on."""
_LONGEST = 8_000
_TOOLS = "callgate.tool"

Hear = Callable[[str, Line], None]
"""Takes the id of a call, and what it said."""


def wanted(ctx: Context, client_session: ClientSession) -> LoggingLevel | None:
    """From which level on a request wants to hear of log lines; None: of none."""
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return client_session.level
    level = (ctx.meta or {}).get(LOG_LEVEL_META_KEY)
    return level if level in LEVELS else None


def reaches(level: LoggingLevel, least: LoggingLevel | None) -> bool:
    return least is not None and LEVELS.index(level) >= LEVELS.index(least)


class ToolLog(logging.Filter):
    """Hears what tools log, for as long as it is attached. What nobody else would have heard of
    without it, nobody else hears of."""

    def __init__(self, hear: Hear) -> None:
        super().__init__()
        self._hear = hear
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._logger = logging.getLogger(_TOOLS)
        self._before = self._logger.level, self._logger.getEffectiveLevel()

    def attach(self) -> None:
        self._logger.addFilter(self)
        self._logger.setLevel(logging.DEBUG)

    def detach(self) -> None:
        self._logger.removeFilter(self)
        self._logger.setLevel(self._before[0])

    def filter(self, record: logging.LogRecord) -> bool:
        call = getattr(record, "tool_use_id", None)
        if isinstance(call, str):
            line = Line(_level(record.levelno), record.name, _text(record))
            if threading.get_ident() == self._thread:
                self._hear(call, line)
            else:
                self._loop.call_soon_threadsafe(self._hear, call, line)
        return record.levelno >= self._before[1]


def _text(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()[:_LONGEST]
    except Exception:  # a tool's own words do not fit their values
        return str(record.msg)[:_LONGEST]


def _level(number: int) -> LoggingLevel:
    if number >= logging.CRITICAL:
        return "critical"
    if number >= logging.ERROR:
        return "error"
    if number >= logging.WARNING:
        return "warning"
    return "info" if number >= logging.INFO else "debug"
