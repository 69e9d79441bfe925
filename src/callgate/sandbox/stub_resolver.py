"""A resolver for one command: each name gets a placeholder address that maps back to the name.

    query over TCP --> A: 198.18.0.0/15, an address for each name   anything else: no records

The addresses are reserved for benchmarks, so no host has one. The resolver looks up nothing,
because a query would reveal the name to a server. Queries are parsed strictly; a malformed one ends
the connection.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct

from callgate.sandbox import allowed_hosts

NETWORK = ipaddress.IPv4Network("198.18.0.0/15")
MOST_NAMES = 4_096
_HEAD = struct.Struct("!6H")
_QUESTION = struct.Struct("!2H")
_RECORD = struct.Struct("!3HIH4s")
_ADDRESS, _INTERNET = 1, 1
_RESPONSE, _KEPT_FLAGS, _AVAILABLE = 0x8000, 0x0100, 0x0080
_SERVER_FAILURE, _NO_NAME = 2, 3
_TO_NAME = 0xC00C
_LONGEST_LABEL = 63
_TTL_S = 60
_IDLE_S = 60.0


class StubResolver:
    def __init__(self) -> None:
        self._addresses: dict[str, str] = {}
        self._names: dict[str, str] = {}

    def name_of(self, address: str) -> str | None:
        """Return the name of a placeholder address; None if it has none. Any other address is
        returned unchanged."""
        is_ours = ipaddress.ip_address(address) in NETWORK
        return self._names.get(address) if is_ours else address

    async def serve(self, connection: socket.socket) -> None:
        """Answer queries until the peer closes the connection, or is idle for a while."""
        reader, writer = await asyncio.open_connection(sock=connection)
        try:
            while True:
                async with asyncio.timeout(_IDLE_S):
                    length = int.from_bytes(await reader.readexactly(2))
                    query = await reader.readexactly(length)
                answer = self.answer(query)
                writer.write(len(answer).to_bytes(2) + answer)
                await writer.drain()
        except (OSError, EOFError, ValueError):
            pass
        finally:
            writer.transport.abort()

    def answer(self, query: bytes) -> bytes:
        """Return the answer to one query. Raises `ValueError` for a malformed one."""
        try:
            id, flags, questions, *_ = _HEAD.unpack_from(query)
            name, end = _name(query, _HEAD.size)
            kind, network = _QUESTION.unpack_from(query, end)
        except (struct.error, IndexError, UnicodeDecodeError):
            raise ValueError("not a query") from None
        if questions != 1 or flags & _RESPONSE:
            raise ValueError("not a query with one question")
        question = query[_HEAD.size : end + _QUESTION.size]
        records, code = b"", 0
        try:
            host = allowed_hosts.normal_host(name)
        except ValueError:
            code = _NO_NAME
        else:
            if kind == _ADDRESS and network == _INTERNET:
                address = self._address(host)
                if address is None:
                    code = _SERVER_FAILURE
                else:
                    content = ipaddress.IPv4Address(address).packed
                    records = _RECORD.pack(_TO_NAME, kind, network, _TTL_S, 4, content)
        head_flags = _RESPONSE | flags & _KEPT_FLAGS | _AVAILABLE | code
        head = _HEAD.pack(id, head_flags, 1, 1 if records else 0, 0, 0)
        return head + question + records

    def _address(self, host: str) -> str | None:
        """Return the address of a name; None if too many names have one."""
        known = self._addresses.get(host)
        if known is None and len(self._names) < MOST_NAMES:
            known = self._addresses[host] = str(NETWORK[len(self._names) + 1])
            self._names[known] = host
        return known


def _name(query: bytes, at: int) -> tuple[str, int]:
    """Return the name of the question, without compression, and the index after it."""
    labels = []
    while length := query[at]:
        if length > _LONGEST_LABEL:
            raise ValueError("a label of a query is too long")
        labels.append(query[at + 1 : at + 1 + length].decode("ascii"))
        at += 1 + length
    return ".".join(labels), at + 1
