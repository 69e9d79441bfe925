"""The signals of a chat: Ctrl-C means what the moment wants, the others end it."""

from __future__ import annotations

import signal
from collections.abc import Callable


class Interrupts:
    """Ctrl-C, as the moment wants it: an exception, or a function that is called."""

    def __init__(self) -> None:
        self.instead: Callable[[], None] | None = None
        self.at_empty: Callable[[], bool] = lambda: True
        self.was_empty = True
        """Whether nothing was typed when it came."""
        self.install()

    def install(self) -> None:
        signal.signal(signal.SIGINT, self._hear)
        for each in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, _end)

    def _hear(self, *_: object) -> None:
        if self.instead is not None:
            self.instead()
            return
        self.was_empty = self.at_empty()
        raise KeyboardInterrupt


def _end(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)
