"""What was said on the streams of one client, for when it lost one and comes back.

A bound holds for all of them together: the oldest is forgotten first, and a client that asks for
what was forgotten begins anew.
"""

from __future__ import annotations

import itertools
from collections import deque

from mcp.server.streamable_http import EventCallback, EventMessage, EventStore
from mcp_types import JSONRPCMessage

_MOST = 256
_MOST_BYTES = 1024 * 1024


class Replays(EventStore):
    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._messages: deque[tuple[int, str, JSONRPCMessage | None, int]] = deque()
        """Number, stream, message, size."""
        self._bytes = 0

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        size = 0 if message is None else len(message.model_dump_json(by_alias=True))
        number = next(self._numbers)
        self._messages.append((number, stream_id, message, size))
        self._bytes += size
        while self._messages and (len(self._messages) > _MOST or self._bytes > _MOST_BYTES):
            self._bytes -= self._messages.popleft()[3]
        return str(number)

    async def replay_events_after(
        self, last_event_id: str, send_callback: EventCallback
    ) -> str | None:
        """Send what came after an event on its stream; None where it is not known any more."""
        if not last_event_id.isascii() or not last_event_id.isdecimal():
            return None
        last = int(last_event_id[:20])
        streams = [stream for number, stream, _, _ in self._messages if number == last]
        if not streams:
            return None
        for number, stream, message, _ in list(self._messages):
            if stream == streams[0] and number > last and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return streams[0]
