"""Values as the text that is kept, and back.

A store keeps what was said at the moment of the commit: nothing in it is shared with the
caller, whichever engine holds it. A lone surrogate, which no file can hold, is replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from callgate.core.events import Event
from callgate.core.ops import Append, FinishCall, Op, PutBlob, StartCall

S = TypeVar("S", bound=msgspec.Struct)

_encoder = msgspec.json.Encoder()
_decoders: dict[type, msgspec.json.Decoder[Any]] = {}
_events = msgspec.json.Decoder(Event)

_HOLD_ONLY_EVENTS = frozenset({Append, StartCall, FinishCall, PutBlob})
"""Ops that hold nothing changeable but their events."""


def encode(value: msgspec.Struct) -> str:
    """As JSON. `TypeError` for something that is no data, such as an open file."""
    try:
        return _encoder.encode(value).decode()
    except UnicodeEncodeError:
        return _encoder.encode(_writable(msgspec.to_builtins(value))).decode()


def decode(text: str | bytes, kind: type[S]) -> S:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    return decoder.decode(text)  # type: ignore[no-any-return]


def decode_event(text: str) -> Event:
    return _events.decode(text)


def encode_ops(ops: Sequence[Op[Any]]) -> tuple[Sequence[Op[Any]], dict[str, str]]:
    """The ops as values of our own, and the text of each event that they append, by id."""
    owned: list[Op[Any]] = []
    texts: dict[str, str] = {}
    for op in ops:
        events = op.recorded
        if events:
            texts.update(zip([event.id for event in events], encode_events(events), strict=True))
        owned.append(op if type(op) in _HOLD_ONLY_EVENTS else decode(encode(op), type(op)))
    return owned, texts


def encode_events(events: Sequence[Event]) -> list[str]:
    """Each as `encode` would; many are encoded at once."""
    try:
        lines = _encoder.encode_lines(events).decode().split("\n")
    except UnicodeEncodeError:
        lines = []
    if len(lines) == len(events) + 1:  # JSON of a caller's own may have had lines
        lines.pop()
        return lines
    return [encode(event) for event in events]


def _writable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {_writable(key): _writable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_writable(item) for item in value]
    return value
