"""What a client hears of a request while it is under way: steps of progress, and log lines.

A client that does not read holds nobody up and fills no memory: pieces of output that it has
not taken are joined, and beyond a bound the newest are dropped. A step says how much is missing
at its position.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from mcp_types import LoggingLevel

from callgate.core.events import OUTPUT_DELTA, PROGRESS, Event
from callgate.core.pacing.backpressure import dropped_events

MOST = 1_000
_LONGEST = 16 * 1024
"""Characters of output in one step."""
_NUDGE = 0.001
_COMPLETE = 100.0


class Step(NamedTuple):
    progress: float
    total: float | None
    message: str | None


class Line(NamedTuple):
    level: LoggingLevel
    logger: str | None
    text: str


class Meter:
    """Progress as MCP wants it: each value greater than the one before.

    A tool that says fractions is measured in percent; one that only says something, in steps.
    """

    def __init__(self) -> None:
        self._last: float | None = None
        self._in_percent = False

    def next(self, fraction: float | None) -> tuple[float, float | None]:
        if fraction is not None:
            self._in_percent = True
        last = self._last
        nudge = _NUDGE if self._in_percent else 1.0
        least = (0.0 if fraction is not None else nudge) if last is None else last + nudge
        value = least if fraction is None else max(fraction * _COMPLETE, least)
        self._last = value
        return value, _COMPLETE if self._in_percent and value <= _COMPLETE else None


class _Output:
    """Pieces of output that came one after the other and were not taken yet."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._room = _LONGEST

    def add(self, text: str) -> None:
        if self._room > 0:
            self._pieces.append(text[: self._room])
        self._room -= len(text)

    @property
    def text(self) -> str:
        dropped = f"\n[... {-self._room} characters were dropped]\n" if self._room < 0 else ""
        return "".join(self._pieces) + dropped


class Notifications:
    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._meter = Meter()
        self._waiting: deque[Event | Line | _Output] = deque()
        self._dropped = 0
        """Since the client has taken something."""

    def note(self, event: Event) -> None:
        if event.type == OUTPUT_DELTA:
            last = self._waiting[-1] if self._waiting else None
            if not isinstance(last, _Output):
                last = _Output()
                if not self._add(last):
                    return
            last.add(str(event.payload.get("text", "")))
        elif event.type == PROGRESS:
            self._add(event)

    def log(self, line: Line) -> None:
        self._add(line)

    def _add(self, notification: Event | Line | _Output) -> bool:
        """Whether there is room for it."""
        if len(self._waiting) >= MOST:
            self._dropped += 1
            return False
        self._waiting.append(notification)
        self._wake()
        return True

    def take(self) -> deque[Step | Line]:
        taken: deque[Step | Line] = deque()
        while self._waiting:
            each = self._waiting.popleft()
            if isinstance(each, Line):
                taken.append(each)
            elif isinstance(each, _Output):
                taken.append(Step(*self._meter.next(None), each.text))
            else:
                raw, fraction = each.payload.get("message"), each.payload.get("fraction")
                message = None if raw is None else str(raw)
                taken.append(Step(*self._meter.next(fraction), message))
        if self._dropped:
            taken.append(Step(*self._meter.next(None), dropped_events(self._dropped)))
            self._dropped = 0
        return taken
