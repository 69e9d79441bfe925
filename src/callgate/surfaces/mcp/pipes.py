"""The two descriptors of a client, whatever they are: pipes and sockets are waited for by the
loop, files and devices are read in a thread.

Nothing is read while nobody takes what was read, and nothing is written while the client does
not read: neither side can fill our memory.
"""

from __future__ import annotations

import asyncio
import os
import stat

_BLOCK = 64 * 1024
_AT_ONCE = 1024 * 1024
"""Bytes that may wait to be taken or to be written."""


class ClientGone(Exception):
    """Nobody reads what we write."""


class Pipes:
    """The descriptors are its own from now on."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd, self._write_fd = read_fd, write_fd
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._transports: list[asyncio.BaseTransport] = []

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        if _can_be_waited_for(self._read_fd):
            self._reader = asyncio.StreamReader(limit=_AT_ONCE // 2)
            protocol = asyncio.StreamReaderProtocol(self._reader)
            source = open(self._read_fd, "rb", 0)  # noqa: SIM115 - the transport closes it
            reading, _ = await loop.connect_read_pipe(lambda: protocol, source)
            self._transports.append(reading)
        if _can_be_waited_for(self._write_fd):
            flow = asyncio.StreamReaderProtocol(asyncio.StreamReader())
            sink = open(self._write_fd, "wb", 0)  # noqa: SIM115
            writing, _ = await loop.connect_write_pipe(lambda: flow, sink)
            writing.set_write_buffer_limits(high=_AT_ONCE)
            self._writer = asyncio.StreamWriter(writing, flow, None, loop)
            self._transports.append(writing)

    async def read(self) -> bytes:
        """What came; nothing at the end."""
        try:
            if self._reader is not None:
                return await self._reader.read(_BLOCK)
            return await asyncio.to_thread(os.read, self._read_fd, _BLOCK)
        except OSError:
            return b""

    async def write(self, data: bytes) -> None:
        """Once the client has room for it. Raises `ClientGone`."""
        try:
            if self._writer is None:
                await asyncio.to_thread(_write, self._write_fd, data)
                return
            if self._writer.transport.is_closing():
                raise ClientGone
            self._writer.write(data)
            await self._writer.drain()
        except OSError:
            raise ClientGone from None

    def close(self) -> None:
        """What has not been written by now is dropped. Twice equals once."""
        for transport in self._transports:
            if transport.is_closing():
                continue
            # Others may have the same pipe, and not expect it like this.
            os.set_blocking(transport.get_extra_info("pipe").fileno(), True)
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()
            else:
                transport.close()


def _can_be_waited_for(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
