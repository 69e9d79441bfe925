"""What a host wants to be reminded of, by session. However much it says, memory is bounded."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

MOST_SESSIONS = 10_000
MOST_BYTES = 64 * 1024 * 1024
"""Of all sessions of one host together, as JSON."""


class _StoredState(NamedTuple):
    state: dict[str, Any]
    size: int


class States:
    """The oldest are evicted first. A session without a state starts with the initial one."""

    def __init__(self) -> None:
        self._by_session: dict[str, _StoredState] = {}
        self._size = 0

    def __contains__(self, session: str) -> bool:
        return session in self._by_session

    def get(self, session: str, otherwise: dict[str, Any]) -> dict[str, Any]:
        entry = self._by_session.get(session)
        return otherwise if entry is None else entry.state

    def keep(self, session: str, state: dict[str, Any]) -> None:
        self.forget(session)
        entry = _StoredState(state, len(msgspec.json.encode(state)))
        self._by_session[session] = entry
        self._size += entry.size
        while len(self._by_session) > MOST_SESSIONS or self._size > MOST_BYTES:
            self.forget(next(iter(self._by_session)))

    def forget(self, session: str) -> None:
        entry = self._by_session.pop(session, None)
        if entry is not None:
            self._size -= entry.size
