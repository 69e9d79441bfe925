"""The frames of a wire, for whoever looks for a fault: at level trace, without secrets.

Only whole lines are shown, because half of a secret would not be found; a long one is cut.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec

TRACE = 5
"""Below debug."""
_LONGEST = 1024 * 1024
"""Bytes of a line that is looked at."""
_SHOWN = 4_000


class FrameLog:
    """Of one connection. `name` is its logger's; nothing is done unless that traces."""

    def __init__(self, name: str) -> None:
        self._log = logging.getLogger(name)
        self._received = bytearray()
        self._sent = bytearray()

    def received(self, data: bytes) -> None:
        if self._log.isEnabledFor(TRACE):
            self._add("<-", self._received, data)

    def sent(self, data: bytes) -> None:
        if self._log.isEnabledFor(TRACE):
            self._add("->", self._sent, data)

    def _add(self, way: str, unfinished: bytearray, data: bytes) -> None:
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._tell(way, bytes(unfinished) + line)
            unfinished.clear()
        if len(unfinished) <= _LONGEST:  # one that is longer is not shown anyway
            unfinished += rest

    def _tell(self, way: str, line: bytes) -> None:
        if len(line) > _LONGEST:
            self._log.log(TRACE, "%s a line of more than %d bytes", way, _LONGEST)
        elif line.strip():
            from callgate.redaction.summaries import summarize  # lazy: a start need not wait for it  # noqa: PLC0415

            self._log.log(TRACE, "%s %s", way, summarize(_read(line), limit=_SHOWN))


def _read(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except (ValueError, RecursionError):
        return line.decode("utf-8", "replace")
