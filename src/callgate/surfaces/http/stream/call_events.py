"""Events of one call on their way to the client that made it, as server-sent events.

A client that does not read holds the call up for a while (`core.pacing.backpressure`). After that,
events beyond `MOST_BYTES` are dropped; a `tool.log` event marks each gap, and the result counts
them all.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator

from msgspec import structs

from callgate.core.calls import ToolCall
from callgate.core.events import Event
from callgate.core.ids import ulid
from callgate.core.pacing.backpressure import Backpressure, dropped_events
from callgate.core.results import Diagnostic, ToolResult
from callgate.core.turns import Pace
from callgate.surfaces.http.encoding import encode

_HIGH = 256 * 1024
"""Bytes that wait for the client before the call waits, too ..."""
MOST_BYTES = 4 * 1024 * 1024
"""... and before its events are dropped."""


class CallEvents:
    def __init__(self, call: ToolCall, backpressure: Backpressure) -> None:
        self._call = call
        self._backpressure = backpressure
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()
        self._ended = False
        self._dropped = 0
        self._unmarked = 0
        """Dropped events since the last mark."""

    def hear(self, event: Event) -> None:
        if event.payload.get("call_id") != self._call.id:
            return
        if self._bytes > MOST_BYTES:
            self._dropped += 1
            self._unmarked += 1
            return
        self._mark_gap()
        self._add(event)
        if self._bytes > _HIGH:
            self._backpressure.pause()

    def end(self) -> None:
        """The call has ended. Idempotent."""
        self._mark_gap()
        self._ended = True
        self._changed.set()

    def counted(self, result: ToolResult) -> ToolResult:
        """The result of the call, with a note on the events that were dropped."""
        if not self._dropped:
            return result
        note = Diagnostic(dropped_events(self._dropped))
        return structs.replace(result, diagnostics=(*result.diagnostics, note))

    async def pieces(self) -> AsyncIterator[bytes]:
        """The events as the client takes them, until the call has ended."""
        pace = Pace()
        while True:
            while self._waiting:
                piece = self._waiting.popleft()
                self._bytes -= len(piece)
                yield piece
                if self._waiting:
                    await pace.step()
            self._backpressure.resume()
            if self._ended:
                return
            self._changed.clear()
            await self._changed.wait()
            pace.begin()

    def _add(self, event: Event) -> None:
        piece = b"event: event\ndata: " + encode(event) + b"\n\n"
        self._waiting.append(piece)
        self._bytes += len(piece)
        self._changed.set()

    def _mark_gap(self) -> None:
        if self._unmarked:
            call = self._call
            payload = {"level": "warn", "message": dropped_events(self._unmarked)}
            ids = {"tool_use_id": call.shown_id, "call_id": call.id}
            self._unmarked = 0
            self._add(
                Event(
                    id=ulid(),
                    timestamp=time.time(),
                    session_id=call.session.id,
                    turn_id=call.turn_id,
                    type="tool.log",
                    actor="system",
                    payload={**payload, **ids},
                )
            )
