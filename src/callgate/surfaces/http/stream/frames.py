"""The frames of the stream: what a client may say, and what is said to it.

A frame to a client is written once, with the few bytes that WebSocket puts before it, for all who
get the same: frames from a server carry no mask, so they are alike on every connection.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from callgate.core import events
from callgate.core.events import Event
from callgate.protocol import strict_json
from callgate.surfaces.http.encoding import encode

MAX_IN = 1024 * 1024
"""Bytes of a message to us."""
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
        """The types to show; None for all."""
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
    """What a client said is no frame."""


def read(text: str) -> Incoming:
    try:
        given = strict_json.loads(text, max_bytes=MAX_IN)
        read: Incoming = msgspec.convert(given, Incoming)
        return read
    except strict_json.StrictJsonError as error:
        raise Unreadable(f"This is no JSON that we take: {error}") from None
    except msgspec.ValidationError as error:
        raise Unreadable(f"This is no frame: {error}") from None


def frame(type: str, **fields: Any) -> bytes:
    """A frame as it goes out."""
    return packed(encode({"type": type, **fields}))


def packed(payload: bytes) -> bytes:
    """A whole text message of a server."""
    size = len(payload)
    if size < 126:
        return b"\x81" + bytes((size,)) + payload
    if size < 65_536:
        return b"\x81\x7e" + struct.pack("!H", size) + payload
    return b"\x81\x7f" + struct.pack("!Q", size) + payload


def event_head(id: str) -> bytes:
    """The beginning of each event frame of a subscription ..."""
    return b'{"type":"event","id":' + encode(id)


def event_tail(event: Event, seq: int | None, cursor: str | None) -> bytes:
    """... and the rest of it, which is the same for all."""
    position = encode({"seq": seq, "session": event.session_id, "cursor": cursor})
    return b"," + position[1:-1] + b',"event":' + encode(event) + b"}"


def wants(types: Collection[str] | None, event: Event) -> bool:
    return types is None or event.type in types
