"""Whether an instance still takes work. Surfaces ask here before they begin any.

    taking work ---SIGTERM---> draining: what runs goes on, nothing new begins ---> the end

One for all surfaces of an instance. There is no way back.
"""

from __future__ import annotations

from collections.abc import Callable


class Draining:
    def __init__(self) -> None:
        self.has_begun = False
        self._callbacks: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Idempotent."""
        if not self.has_begun:
            self.has_begun = True
            for callback in list(self._callbacks):
                callback()

    def on_begin(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call a function when it begins; returns the function that ends it."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback) if callback in self._callbacks else None
