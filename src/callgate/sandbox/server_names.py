"""The server name in the first bytes of a TLS connection, to compare it with the approved host.

    read(data)  ->  Incomplete     more bytes are needed
                ->  None           not TLS, or without a server name
                ->  "host"         in lower case

A ClientHello that cannot be read completely is refused (`ValueError`): programs could disagree
about the name in it. Pure.
"""

from __future__ import annotations

TLS = b"\x16"
"""The first byte of a TLS connection."""
_HANDSHAKE, _CLIENT_HELLO = TLS[0], 0x01
_SERVER_NAME, _HOST_NAME = 0, 0
_LONGEST = 64 * 1024
_PROBLEM = "the start of the TLS connection cannot be read"


class Incomplete(Exception):
    """The bytes end before the end of the ClientHello."""


def read(data: bytes) -> str | None:
    """Return the server name. Raises `Incomplete`, and `ValueError` for malformed bytes."""
    if not data:
        raise Incomplete
    if data[0] != _HANDSHAKE:
        return None
    message = _message(data)
    if message[0] != _CLIENT_HELLO:
        raise ValueError(_PROBLEM)
    body = _Bytes(message[4:])
    body.take(2 + 32)
    body.vector(1)
    body.vector(2)
    body.vector(1)
    if not body.left:
        return None
    extensions = _Bytes(body.vector(2))
    names: list[str] = []
    while extensions.left:
        kind = extensions.number(2)
        content = extensions.vector(2)
        if kind == _SERVER_NAME:
            names.append(_host_name(_Bytes(_Bytes(content).vector(2))))
    if len(names) > 1 or body.left:
        raise ValueError(_PROBLEM)
    return names[0] if names else None


def _message(data: bytes) -> bytes:
    """Return the first handshake message, which may span several records."""
    records, at = bytearray(), 0
    while len(records) < 4 or len(records) < 4 + int.from_bytes(records[1:4]):
        if at > _LONGEST:
            raise ValueError(_PROBLEM)
        head = data[at : at + 5]
        if len(head) < 5:
            raise Incomplete
        length = int.from_bytes(head[3:5])
        if head[0] != _HANDSHAKE or not length:
            raise ValueError(_PROBLEM)
        content = data[at + 5 : at + 5 + length]
        if len(content) < length:
            raise Incomplete
        records += content
        at += 5 + length
    return bytes(records[: 4 + int.from_bytes(records[1:4])])


def _host_name(names: _Bytes) -> str:
    kind, name = names.number(1), names.vector(2)
    if kind != _HOST_NAME or names.left or not name:
        raise ValueError(_PROBLEM)
    try:
        return name.decode("ascii").lower().removesuffix(".")
    except UnicodeDecodeError:
        raise ValueError(_PROBLEM) from None


class _Bytes:
    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def left(self) -> int:
        return len(self._data)

    def take(self, count: int) -> bytes:
        if count > len(self._data):
            raise ValueError(_PROBLEM)
        taken, self._data = self._data[:count], self._data[count:]
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size))

    def vector(self, size: int) -> bytes:
        """Return the bytes after their length."""
        return self.take(self.number(size))
