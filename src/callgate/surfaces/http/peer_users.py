"""Which user of this machine is at the other end of a TCP connection, as the kernel knows it.

The kernel is asked for the socket whose own address is our peer's (`sock_diag(7)`): one exact
lookup, where `/proc/net/tcp` would be read from its beginning for each connection.
"""

from __future__ import annotations

import asyncio
import socket
import struct

_SOCK_DIAG = 4
_BY_FAMILY = 20
_REQUEST = 1
_HEADER = struct.Struct("=IHHII")
_QUERY = struct.Struct("=BBBBI")
_ANY_STATE = 0xFFFF_FFFF
_NO_INTERFACE_NO_COOKIE = struct.pack("=III", 0, 0xFFFF_FFFF, 0xFFFF_FFFF)
_STATE_AT = _HEADER.size + 1
_UID_AT = _HEADER.size + 64
_LISTENS = 10
_LIMIT_S = 1.0


def user_of(transport: asyncio.BaseTransport) -> int | None:
    """The user id of a peer on this machine; None where the system cannot tell."""
    ours = transport.get_extra_info("socket")
    if ours is None or ours.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        return _ask(ours.family, ours.getpeername(), ours.getsockname())
    except (OSError, AttributeError, ValueError):  # gone, another machine, another system
        return None


def _ask(family: int, source: tuple[str, int], target: tuple[str, int]) -> int | None:
    query = (
        _QUERY.pack(family, socket.IPPROTO_TCP, 0, 0, _ANY_STATE)
        + struct.pack("!HH", source[1], target[1])
        + _padded(family, source[0])
        + _padded(family, target[0])
        + _NO_INTERFACE_NO_COOKIE
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(_LIMIT_S)
        kernel.send(_HEADER.pack(_HEADER.size + len(query), _BY_FAMILY, _REQUEST, 0, 0) + query)
        reply = kernel.recv(4096)
    _, kind, *_ = _HEADER.unpack_from(reply)
    # Where nobody is connected the kernel answers with who listens there.
    if kind != _BY_FAMILY or len(reply) < _UID_AT + 4 or reply[_STATE_AT] == _LISTENS:
        return None
    return int(struct.unpack_from("=I", reply, _UID_AT)[0])


def _padded(family: int, address: str) -> bytes:
    return socket.inet_pton(family, address.partition("%")[0]).ljust(16, b"\0")
