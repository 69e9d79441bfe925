"""What is not kept, for another server whose clients watch sessions of ours: one line each.

A line holds the delta and the id of the kept event of its session that came before it, so that
the reader can put it in its place. Who reads too slowly loses deltas, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec

from callgate.core.events import CHAT_DELTA, UNKEPT, Event
from callgate.runtime import Runtime

MOST_WAITING = 10_000
"""Deltas that wait for a server that does not read."""
READY = b"{}\n"
"""The first line: from now on nothing is missed."""


class Delta(msgspec.Struct, frozen=True):
    event: Event
    before: str | None = None


class DeltaStream:
    def __init__(self, runtime: Runtime, sessions: frozenset[str] | None) -> None:
        self.sessions = sessions
        """Whose; None: all. May change while it is read."""
        self._before: dict[str, str] = {}
        """By session: the last kept event heard."""
        self._waiting: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._unlisten = runtime.listen(self._hear)

    def close(self) -> None:
        """Idempotent."""
        self._unlisten()
        self._waiting.put_nowait(None)

    async def lines(self) -> AsyncIterator[bytes]:
        yield READY
        while (line := await self._waiting.get()) is not None:
            lines = [line]
            while not self._waiting.empty() and (more := self._waiting.get_nowait()) is not None:
                lines.append(more)
            yield b"".join(lines)

    def _hear(self, event: Event) -> None:
        session = event.session_id
        if self.sessions is not None and session not in self.sessions:
            self._before.pop(session, None)
        elif event.type not in UNKEPT:
            self._before[session] = event.id
        elif event.type == CHAT_DELTA and self._waiting.qsize() < MOST_WAITING:
            delta = Delta(event, self._before.get(session))
            self._waiting.put_nowait(msgspec.json.encode(delta) + b"\n")
