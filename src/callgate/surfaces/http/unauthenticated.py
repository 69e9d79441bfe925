"""Connections that have shown no token yet: few, not for long, and never in the owner's way.

    connects -> waits, so long for each request -> shows a token -> counts here no more
                   |
                   +-- too many: the oldest is dropped, those of other users first

Whoever has shown a token is never dropped for somebody who has not.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from itertools import chain

from callgate.surfaces.http.peer_users import user_of

CONNECTION = "callgate.connection"
"""Where in the state of a scope the guard finds the connection of a request."""


class Unauthenticated:
    """All of them, the oldest first."""

    def __init__(
        self,
        most: int,
        seconds: float,
        user_of: Callable[[asyncio.BaseTransport], int | None] = user_of,
    ) -> None:
        self._most = most
        self._seconds = seconds
        self._user_of = user_of
        self._same_user: dict[PendingConnection, None] = {}
        self._foreign: dict[PendingConnection, None] = {}
        """Of other users, and of those who are not known."""

    def __len__(self) -> int:
        return len(self._same_user) + len(self._foreign)

    def add(self, transport: asyncio.Transport) -> PendingConnection:
        group = self._same_user if self._user_of(transport) == os.getuid() else self._foreign
        pending = PendingConnection(transport, group, self._seconds)
        if len(self) > self._most:
            self.drop_oldest()
        return pending

    def drop_oldest(self) -> bool:
        """Make room; whether there was one to drop."""
        for pending in chain(self._foreign, self._same_user):
            pending.drop()
            return True
        return False


class PendingConnection:
    """One of them, until it leaves or shows a token. Every method is idempotent."""

    def __init__(
        self,
        transport: asyncio.Transport,
        group: dict[PendingConnection, None],
        seconds: float,
    ) -> None:
        self._transport = transport
        self._group = group
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None
        group[self] = None
        self.renew()

    def renew(self) -> None:
        """A request was answered: the next one has its own time."""
        if self._timer is not None:
            self._timer.cancel()
        if self in self._group:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._seconds, self.drop)

    def admit(self) -> None:
        """It has shown a token, or is gone."""
        self._group.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()

    def drop(self) -> None:
        self.admit()
        self._transport.abort()
