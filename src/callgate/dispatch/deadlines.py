"""The time limits of all calls that wait for something, under one timer of the loop.

Most calls end long before their limit. So a limit is only noted; the timer is set for the
first of them, and when it rings, for the first of those that are still there.
"""

from __future__ import annotations

import asyncio
import math
from time import perf_counter
from typing import Protocol


class Limited(Protocol):
    @property
    def ends_at(self) -> float:
        """By `perf_counter`; it does not change."""

    def expire(self) -> None: ...


class Deadlines:
    def __init__(self) -> None:
        self._noted: dict[Limited, None] = {}
        self._rings_at = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def note(self, limited: Limited) -> None:
        """Let it expire when its time has come, unless it is struck before."""
        self._noted[limited] = None
        if limited.ends_at < self._rings_at:
            self._set(limited.ends_at)

    def strike(self, limited: Limited) -> None:
        self._noted.pop(limited, None)

    def close(self) -> None:
        """Forget the limits."""
        self._noted.clear()
        self._rings_at = math.inf
        if self._timer is not None:
            self._timer.cancel()

    def _set(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = at
        self._timer = asyncio.get_running_loop().call_later(at - perf_counter(), self._ring)

    def _ring(self) -> None:
        self._rings_at, self._timer = math.inf, None
        now = perf_counter()
        for limited in [each for each in self._noted if each.ends_at <= now]:
            self.strike(limited)
            limited.expire()
        if self._noted and self._timer is None:
            self._set(min(each.ends_at for each in self._noted))
