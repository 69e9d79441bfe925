"""Who waits for word of a change, and the word to them.

A hint carries nothing: it may be late, double or without cause, and whoever gets it looks for
itself. Each change of a session has a number that grows; one number wakes nobody twice, so
the news of one's own commit, coming back from the disk, does not wake again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Self

from callgate.core.stores import POLL_S


class Waiter:
    """One who waits, in a `with`."""

    def __init__(self, hints: Hints, sessions: frozenset[str]) -> None:
        self._hints = hints
        self._sessions = sessions
        self._event = asyncio.Event()

    def __enter__(self) -> Self:
        self._hints.add(self, self._sessions)
        return self

    def __exit__(self, *exc: object) -> None:
        self._hints.remove(self, self._sessions)

    def tell(self) -> None:
        self._event.set()

    async def wait(self, limit_s: float = POLL_S) -> bool:
        """Wait for a change since the last wait; False if there was no word of one."""
        try:
            async with asyncio.timeout(limit_s):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return True


class Hints:
    """The waiters of one store; used in the thread of its event loop only."""

    def __init__(self, on_change: Callable[[bool], None] = lambda waited_for: None) -> None:
        self._on_change = on_change
        """Told when the first one begins to wait, and when the last one has gone."""
        self._by_session: dict[str | None, list[Waiter]] = {}
        self._last_seen: dict[str, int] = {}
        """The last number told of each session, while anyone waits."""

    def wake(self, *sessions: str) -> Waiter:
        return Waiter(self, frozenset(sessions))

    def add(self, waiter: Waiter, sessions: frozenset[str]) -> None:
        first = not self._by_session
        for session in sessions or (None,):
            self._by_session.setdefault(session, []).append(waiter)
        if first:
            self._on_change(True)

    def remove(self, waiter: Waiter, sessions: frozenset[str]) -> None:
        for session in sessions or (None,):
            waiters = self._by_session[session]
            waiters.remove(waiter)
            if not waiters:
                del self._by_session[session]
        if not self._by_session:
            self._last_seen.clear()
            self._on_change(False)

    def fire(self, changed: Mapping[str, int]) -> None:
        """Tell of sessions that changed, each with the number of the change."""
        if not self._by_session:
            return
        for session, number in changed.items():
            if number > self._last_seen.get(session, 0):
                self._last_seen[session] = number
                for waiter in self._by_session.get(session, ()):
                    waiter.tell()
                for waiter in self._by_session.get(None, ()):
                    waiter.tell()

    def fire_all(self) -> None:
        """Anything may have changed."""
        for waiters in self._by_session.values():
            for waiter in waiters:
                waiter.tell()
