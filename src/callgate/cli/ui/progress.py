"""Tells a person how far a long look at the record is."""

from __future__ import annotations

import time

from callgate.cli.ui.terminal import say

_PROGRESS_EVERY_S = 2.0


class Progress:
    """Says how far the work is, if it takes long."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _PROGRESS_EVERY_S

    def __call__(self, count: int) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _PROGRESS_EVERY_S
            say(f"callgate: {count:,} calls judged ...")
