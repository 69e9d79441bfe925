"""When an instance was used last."""

from __future__ import annotations

import time
from collections.abc import Callable

from callgate.core.events import Event


class Usage:
    def __init__(self, limit_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = limit_s
        self._now = now
        self._last = now()

    def note(self, event: Event | None = None) -> None:
        """It is used now: this happened, or somebody is there."""
        self._last = self._now()

    @property
    def is_over(self) -> bool:
        """Whether it was not used for as long as the limit."""
        return self._now() - self._last >= self._limit_s
