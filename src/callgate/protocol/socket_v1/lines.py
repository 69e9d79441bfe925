"""One frame as one line."""

from __future__ import annotations

import msgspec

from callgate.protocol.ndjson import MAX_LINE
from callgate.protocol.socket_v1.frames import Reply, Request

# Line ends to some readers (Node's readline, Python's splitlines), though not to JSON.
_MISTAKEN = (
    ("\u2028".encode(), rb"\u2028"),
    ("\u2029".encode(), rb"\u2029"),
    ("\u0085".encode(), rb"\u0085"),
)
_encode = msgspec.json.Encoder().encode


class Unsendable(ValueError):
    """The frame has no JSON spelling, or one longer than a line may be."""


def line(frame: Request | Reply) -> bytes:
    """The frame's bytes, newline included. Raises `Unsendable`."""
    try:
        data = _encode(frame)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Unsendable(f"not JSON: {type(error).__name__}") from error
    if not data.isascii():
        for written, escaped in _MISTAKEN:
            data = data.replace(written, escaped)
    if len(data) > MAX_LINE:
        raise Unsendable(f"{len(data)} bytes; at most {MAX_LINE} fit into one frame")
    return data + b"\n"
