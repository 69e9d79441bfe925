"""Log of the frames of a wire, for debugging: at level trace, without secrets.

Only complete lines are shown, because half of a secret is not recognized; long lines are truncated.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec

TRACE = 5
"""Log level below debug."""
_LONGEST = 1024 * 1024
"""Maximum bytes of an examined line."""
_SHOWN = 4_000


class FrameLog:
    """The log of one connection. `name` is its logger's; it has no effect unless that traces."""

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
        *lines, remainder = data.split(b"\n")
        for line in lines:
            self._tell(way, bytes(unfinished) + line)
            unfinished.clear()
        if len(unfinished) <= _LONGEST:  # one that is longer is not shown anyway
            unfinished += remainder

    def _tell(self, way: str, line: bytes) -> None:
        if len(line) > _LONGEST:
            self._log.log(TRACE, "%s a line of more than %d bytes", way, _LONGEST)
        elif line.strip():
            from callgate.redaction.data import summarize  # lazy: a start need not wait for it  # noqa: PLC0415

            self._log.log(TRACE, "%s %s", way, summarize(_read(line), limit=_SHOWN))


def _read(line: bytes) -> Any:
    try:
        return msgspec.json.decode(line)
    except (ValueError, RecursionError):
        return line.decode("utf-8", "replace")
