"""The client's side of one connection: requests out, answers and events in.

What a newer server may send (other types, other keys) is passed over; what answers nothing
that was asked is told as `Passed` and never taken for the answer to something else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, get_args

import msgspec
from msgspec import UNSET

from callgate.protocol.ndjson import Framer, line
from callgate.protocol.socket_v1 import frames
from callgate.protocol.socket_v1.frames import ANSWERS, Reply, Request


class Passed(msgspec.Struct, frozen=True):
    """A line that was passed over."""

    why: Literal["too_long", "unreadable", "unknown_type", "not_asked"]
    frame: Reply | None = None
    """The one that nobody asked for."""


_decode = msgspec.json.Decoder().decode
_is_request_id = re.compile(frames.REQUEST_ID).match
_WITHOUT_REQUEST = (Passed, frames.Event, frames.Closing)
_REPLIES: dict[object, type[Reply]] = {
    reply.__struct_config__.tag: reply for reply in get_args(Reply)
}


class ClientWire:
    __slots__ = ("_framer", "_in_flight")

    def __init__(self) -> None:
        self._framer = Framer()
        self._in_flight: dict[str, type] = {}
        """By request id: the frame that will answer it."""

    @property
    def in_flight(self) -> Mapping[str, type]:
        return self._in_flight

    def encode(self, request: Request) -> bytes:
        """The request's line. `ValueError` if its id is wrong or in flight; or `Unsendable`."""
        id = request.request_id
        if id is UNSET:
            return line(request)
        if not _is_request_id(id):  # the server could not say to which request it objects
            raise ValueError("a request id has 1 to 128 printable ASCII characters")
        if isinstance(request, frames.CancelToolCall):
            return line(request)
        if id in self._in_flight:
            raise ValueError(f"request {id!r} is in flight")
        data = line(request)
        self._in_flight[id] = ANSWERS[type(request)]
        return data

    def receive(self, data: bytes) -> list[Reply | Passed]:
        """What the bytes complete: for each line that is not blank exactly one of these."""
        return [self._take(each) for each in self._framer.feed(data)]

    def _take(self, received: bytes | None) -> Reply | Passed:
        reply = Passed("too_long") if received is None else _read(received)
        if isinstance(reply, _WITHOUT_REQUEST) or reply.request_id is UNSET:
            return reply
        id = reply.request_id
        answer = self._in_flight.get(id)
        if isinstance(reply, frames.ToolEvent):
            return reply if answer is frames.ToolResult else Passed("not_asked", reply)
        if answer is None or type(reply) not in (answer, frames.Error):
            return Passed("not_asked", reply)
        del self._in_flight[id]
        return reply


def _read(received: bytes) -> Reply | Passed:
    # Converted one type at a time: a client that makes one call pays for no other.
    try:
        value = _decode(received)
        kind = value["type"]
        if kind not in _REPLIES:
            return Passed("unknown_type")
        return msgspec.convert(value, _REPLIES[kind])
    except (ValueError, TypeError, KeyError, RecursionError):
        return Passed("unreadable")
