"""The signals that tell a command to stop, as numbers that wait to be taken.

Ctrl-C, SIGTERM and SIGHUP, from the entry of the `with` to its end. Nothing happens in the
middle of something else: a byte arrives at `descriptor`, and whoever waits there looks.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` itself is four times as large
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SIGNALS = tuple(getattr(_signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP"))


class StopSignals:
    def __init__(self) -> None:
        self._waiting: list[int] = []
        self.first: int | None = None
        """The first that was taken."""
        self.count = 0
        """How many were taken."""

    def __enter__(self) -> StopSignals:
        self.descriptor, self._wakeup = os.pipe()
        for each in (self.descriptor, self._wakeup):
            os.set_blocking(each, False)
        self._woke = _signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        self._before = [(each, _signal.signal(each, self._hear)) for each in _SIGNALS]
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before:
            _signal.signal(each, handler if handler is not None else _signal.SIG_DFL)
        _signal.set_wakeup_fd(self._woke)
        os.close(self.descriptor)
        os.close(self._wakeup)

    def take(self) -> int | None:
        """The signal that came next; None if none did."""
        try:
            os.read(self.descriptor, 64)
        except BlockingIOError:
            pass
        if not self._waiting:
            return None
        number = self._waiting.pop(0)
        self.count += 1
        if self.first is None:
            self.first = number
        return number

    def _hear(self, number: int, _: Any) -> None:
        self._waiting.append(number)
