"""A store that counts what is read through it: a command that shows little reads little."""

from __future__ import annotations

from collections import Counter
from typing import Any

from callgate.core.stores import EventPage, SessionPage


class CountingStore:
    def __init__(self, store: Any) -> None:
        self._store = store
        self.rows: Counter[str] = Counter()
        """Rows by the name of the read that gave them."""
        self.largest = 0
        """Rows that one read gave."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name in ("commit", "wake", "owner", "may_hold"):
            return found

        async def read(*args: Any, **named: Any) -> Any:
            result = await found(*args, **named)
            count = _count(result)
            self.rows[name] += count
            self.largest = max(self.largest, count)
            return result

        return read


def _count(result: Any) -> int:
    match result:
        case EventPage():
            return len(result.events)
        case SessionPage():
            return len(result.sessions)
        case list() | tuple():
            return len(result)
    return 1
