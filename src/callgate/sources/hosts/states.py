"""What a host wants to be reminded of, by session. However much it says, memory is bounded."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

MOST_SESSIONS = 10_000
MOST_BYTES = 64 * 1024 * 1024
"""Of all sessions of one host together, as JSON."""


class _Kept(NamedTuple):
    state: dict[str, Any]
    size: int


class States:
    """Those that were kept first go first. A session without one begins anew."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._size = 0

    def __contains__(self, session: str) -> bool:
        return session in self._kept

    def get(self, session: str, otherwise: dict[str, Any]) -> dict[str, Any]:
        kept = self._kept.get(session)
        return otherwise if kept is None else kept.state

    def keep(self, session: str, state: dict[str, Any]) -> None:
        self.forget(session)
        kept = _Kept(state, len(msgspec.json.encode(state)))
        self._kept[session] = kept
        self._size += kept.size
        while len(self._kept) > MOST_SESSIONS or self._size > MOST_BYTES:
            self.forget(next(iter(self._kept)))

    def forget(self, session: str) -> None:
        kept = self._kept.pop(session, None)
        if kept is not None:
            self._size -= kept.size
