"""One WebSocket, as the server's library drives it, with a way out for frames made elsewhere.

    put -> the system takes it, or it waits: up to `MOST_WAITING` frames or `MOST_BYTES`, then the
           client is cut

Reading, closing and the limits on what comes in are the library's; it gets a flood in fair turns.
Only what goes out to many does not take the long way through it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, cast

from uvicorn._types import ASGIReceiveEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from callgate.core.turns import Pieces
from callgate.surfaces.http.unauthenticated import CONNECTION
from callgate.surfaces.unfinished import Unfinished

MOST_WAITING = 1_000
"""Frames that wait for a client that does not read."""
MOST_BYTES = 64 * 1024 * 1024
"""Of those frames together, unless it is one alone."""
OPEN_S = 20.0
"""How long it may take until it is open; the library is silent about some that never will be."""
GIVE_UP_S = 2.0
"""How long a client may take to hear that it is over."""
WEBSOCKET = "callgate.websocket"
"""Where in the scope's extensions the stream finds its connection."""


class WebSocketProtocol(WebSocketsSansIOProtocol):
    def __init__(self, *given: Any, unfinished: Unfinished, **named: Any) -> None:
        super().__init__(*given, **named)
        self._unfinished = unfinished
        self._pieces = Pieces(self._take, self._read_on)
        self._begun = 0
        """Bytes of a message that has not ended, and of what came with it."""
        self._waiting: deque[tuple[bytes, int]] = deque()
        """Bytes, and how many frames they are."""
        self._count = 0
        self._bytes = 0
        self._paused = False
        self._drained = asyncio.Event()
        self._drained.set()
        self._heard_at = self.loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._overdue = self.loop.call_later(OPEN_S, self._ensure_open)

    def _ensure_open(self) -> None:
        if not self.handshake_complete:
            self.transport.abort()

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        scope = cast("dict[str, Any] | None", getattr(self, "scope", None))
        if scope is not None:
            scope["extensions"][WEBSOCKET] = self

    def take_large(self, most: int) -> None:
        """From now on take messages of up to so many bytes: it has shown who it is."""
        self.conn.max_message_size = most

    def ping(self) -> None:
        """Have the other end answer, so that `silent_s` is small while it lives."""
        if self.is_open:
            self.conn.send_ping(b"")
            self.transport.write(b"".join(self.conn.data_to_send()))

    @property
    def silent_s(self) -> float:
        """How long ago anything came."""
        return self.loop.time() - self._heard_at

    @property
    def is_open(self) -> bool:
        return self.handshake_complete and not self.close_sent and not self.transport.is_closing()

    def put(self, data: bytes, count: int = 1) -> None:
        """Send whole frames, now or when the client reads on."""
        if self.close_sent or self.transport.is_closing():
            return
        if not self._paused and not self._waiting:
            self.transport.write(data)
            return
        self._waiting.append((data, count))
        self._count += count
        self._bytes += len(data)
        self._drained.clear()
        too_much = self._bytes > MOST_BYTES and len(self._waiting) > 1
        if too_much or self._count > MOST_WAITING:
            self.end(1008, "client_too_slow")

    async def drained(self) -> None:
        """Wait until nothing waits for the client; returns also if it has gone."""
        await self._drained.wait()

    def end(self, code: int, reason: str) -> None:
        """Close, and say why. Idempotent."""
        if not self.is_open:
            return
        self._forget()
        self.conn.send_close(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self._pieces.drop()
        self.read_paused = False
        self._read_on()
        self.close_timer = self.loop.call_later(GIVE_UP_S, self.transport.abort)

    def _forget(self) -> None:
        self._waiting.clear()
        self._count = self._bytes = 0
        self._drained.set()

    # The transport's side.

    def pause_writing(self) -> None:
        super().pause_writing()
        self._paused = True
        self._drained.clear()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._paused = False
        while self._waiting and not self._paused and not self.close_sent:
            data, count = self._waiting.popleft()
            self._count -= count
            self._bytes -= len(data)
            self.transport.write(data)
        if not self._waiting and not self._paused:
            self._drained.set()

    def data_received(self, data: bytes) -> None:
        self._heard_at = self.loop.time()
        self._pieces.feed(data)
        if self._pieces.waits and not self.transport.is_closing():
            self.transport.pause_reading()

    def _read_on(self) -> None:
        if not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    async def receive(self) -> ASGIReceiveEvent:
        """As the library does it, but what came already is taken before more is read."""
        message = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            if not self._pieces.waits:
                self._read_on()
        return message

    def _take(self, data: bytes) -> None:
        super().data_received(data)
        has_begun = bool(self.frames or self.conn.reader.buffer)
        self._begun = self._begun + len(data) if has_begun else 0
        self._unfinished.hold(self, self._begun)

    def overflow(self) -> None:
        self._drop()
        self.end(1013, "overloaded")

    def _drop(self) -> None:
        """What a message began with: here and in the library, now and not as garbage."""
        self.frames.clear()
        self.conn.reader.buffer.clear()

    def connection_lost(self, exc: Exception | None) -> None:
        self._overdue.cancel()
        self.app_state[CONNECTION].admit()
        super().connection_lost(exc)
        self._pieces.drop()
        self._forget()
        self._drop()
        self._unfinished.hold(self, 0)

    def shutdown(self) -> None:
        if self.is_open:
            self.end(1001, "stopping")
        else:
            super().shutdown()
