"""One bound for what all connections have begun to say and not ended.

Each message has a greatest length of its own, but of many connections that begin one at the same
time memory would be full. Where all together hold too much, the one that holds most is refused,
and of several such the one that has gone on least lately: a small request is never in the way.
"""

from __future__ import annotations

from typing import Protocol

MOST = 64 * 1024 * 1024
"""Bytes."""
REFUSAL = "Too much is unfinished on all connections together; send it again later."


class Holder(Protocol):
    """A connection, or a request on one."""

    def overflow(self) -> None:
        """Drop what was begun, and say so to the peer."""
        ...


class Unfinished:
    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._sizes: dict[Holder, int] = {}
        """The ones that went on last are last."""
        self._total = 0

    def hold(self, holder: Holder, size: int) -> None:
        """Note how much somebody holds by now; 0 once all of it is finished or dropped."""
        if size == 0 and holder not in self._sizes:
            return
        self._total += size - self._sizes.pop(holder, 0)
        if size:
            self._sizes[holder] = size
        while self._total > self._most:
            largest = max(self._sizes, key=self._sizes.__getitem__)
            self._total -= self._sizes.pop(largest)
            largest.overflow()
