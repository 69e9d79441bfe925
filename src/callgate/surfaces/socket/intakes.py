"""What a peer sent, as requests: so few at a time that nobody else waits long for them.

bytes ---> requests, until a piece is through or much waits to go out ---> a pause of a round
"""

from __future__ import annotations

from collections.abc import Iterator

from callgate.protocol.socket_v1.frames import Request
from callgate.protocol.socket_v1.requests import Fault
from callgate.protocol.socket_v1.server import ServerWire

_PIECE = 1024
"""Bytes, and the rest of a line: a request of a few of them may have a long answer."""


def requests(wire: ServerWire, data: bytes) -> Iterator[Request | Fault | None]:
    """The requests that the bytes complete; None between two pieces."""
    if len(data) <= _PIECE:
        return iter(wire.receive(data))
    return _in_pieces(wire, data)


def _in_pieces(wire: ServerWire, data: bytes) -> Iterator[Request | Fault | None]:
    at = 0
    while at < len(data):
        end = data.find(b"\n", at + _PIECE) + 1 or len(data)
        yield from wire.receive(data[at:end])
        at = end
        if at < len(data):
            yield None
