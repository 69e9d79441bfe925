"""Events as bytes: frames of the WebSocket stream, and server-sent events of one call.

A frame is serialized once, with its WebSocket header, for all clients that get the same bytes:
frames from a server have no mask, so they are equal on every connection.

A client that does not read the events of its call slows the call for a limited time (`core.tasks`).
After that, events beyond `MOST_BYTES` are dropped: a `tool.log` event marks each gap, and the
result has their number.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from collections.abc import AsyncIterator, Collection
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType, structs

from callgate.core import events
from callgate.core.calls import Diagnostic, ToolCall, ToolResult
from callgate.core.events import Event
from callgate.core.ids import ulid
from callgate.core.tasks import Backpressure, dropped_events
from callgate.core.turns import Pace
from callgate.features.web.responses import encode
from callgate.protocol import strict_json

MAX_IN = 1024 * 1024
"""Maximum bytes of a message from a client."""
CHAT = frozenset(
    {
        events.TURN_STARTED,
        events.TURN_COMPLETED,
        events.TURN_CANCELLED,
        events.NOTICE,
        events.CHAT,
        events.CHAT_DELTA,
        events.SPEECH,
        events.OPEN_URL,
        events.CALLED,
        *events.TERMINAL,
        events.CONFIRMATION_REQUESTED,
        events.CONFIRMATION_RESOLVED,
    }
)
"""The types of preset `chat`."""

Name = Annotated[str, Meta(min_length=1, max_length=128)]


class _In(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    pass


class Subscribe(_In, frozen=True, kw_only=True, tag="subscribe"):
    id: Name
    session: Name | None = None
    preset: Literal["chat", "full"] = "full"
    types: Annotated[list[Name], Meta(max_length=100)] | None = None
    since: Annotated[int, Meta(ge=0, lt=1 << 53)] | Name | None = None
    snapshot: bool = False
    confirmer: bool = False

    @property
    def wanted(self) -> frozenset[str] | None:
        """The types to send; None for all."""
        if self.types is not None:
            some = frozenset(self.types)
            return some & CHAT if self.preset == "chat" else some
        return CHAT if self.preset == "chat" else None


class Unsubscribe(_In, frozen=True, kw_only=True, tag="unsubscribe"):
    id: Name


class Cancel(_In, frozen=True, kw_only=True, tag="cancel"):
    session: Name
    turn_id: Name | None = None
    id: Name | UnsetType = UNSET


class Pong(_In, frozen=True, kw_only=True, tag="pong"):
    pass


Incoming = Subscribe | Unsubscribe | Cancel | Pong


class Unreadable(ValueError):
    """A client's message is not a frame."""


def read(text: str) -> Incoming:
    try:
        given = strict_json.loads(text, max_bytes=MAX_IN)
        read: Incoming = msgspec.convert(given, Incoming)
        return read
    except strict_json.StrictJsonError as error:
        raise Unreadable(f"The message is not valid JSON: {error}") from None
    except msgspec.ValidationError as error:
        raise Unreadable(f"The message is not a frame: {error}") from None


def frame(type: str, **fields: Any) -> bytes:
    """Return a frame in its serialized form."""
    return packed(encode({"type": type, **fields}))


def packed(payload: bytes) -> bytes:
    """Return a complete WebSocket text message of a server."""
    size = len(payload)
    if size < 126:
        return b"\x81" + bytes((size,)) + payload
    if size < 65_536:
        return b"\x81\x7e" + struct.pack("!H", size) + payload
    return b"\x81\x7f" + struct.pack("!Q", size) + payload


def event_head(id: str) -> bytes:
    """Return the beginning of a subscription's event frames."""
    return b'{"type":"event","id":' + encode(id)


def event_tail(event: Event, seq: int | None, cursor: str | None) -> bytes:
    """Return the rest of an event frame, which is the same for all subscriptions."""
    position = encode({"seq": seq, "session": event.session_id, "cursor": cursor})
    return b"," + position[1:-1] + b',"event":' + encode(event) + b"}"


def wants(types: Collection[str] | None, event: Event) -> bool:
    return types is None or event.type in types


_HIGH = 256 * 1024
"""Unread bytes at which the call is slowed."""
MOST_BYTES = 4 * 1024 * 1024
"""Unread bytes at which events are dropped."""


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
        """Note the end of the call. Idempotent."""
        self._mark_gap()
        self._ended = True
        self._changed.set()

    def counted(self, result: ToolResult) -> ToolResult:
        """Return the result of the call, with a note on dropped events."""
        if not self._dropped:
            return result
        note = Diagnostic(dropped_events(self._dropped))
        return structs.replace(result, diagnostics=(*result.diagnostics, note))

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the events as the client reads them, until the end of the call."""
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
