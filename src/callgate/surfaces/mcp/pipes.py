"""The two descriptors of a client, as somebody who reads and writes by turns wants them.

Nothing is read while nobody takes what was read, and nothing is written while the client does
not read: neither side can fill our memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from callgate.redaction.frame_log import FrameLog
from callgate.surfaces.descriptors import Descriptors

_AT_ONCE = 1024 * 1024
"""Bytes that may wait to be taken."""


class ClientGone(Exception):
    """Nobody reads what we write."""


class Pipes:
    """The descriptors are its own from now on."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._descriptors = Descriptors(read_fd, write_fd)
        self._received: deque[bytes] = deque()
        self._size = 0
        self._readable = asyncio.Event()
        """Something came, or nothing will."""
        self._ended = False
        self._room = asyncio.Event()
        self._room.set()
        self._closed = False
        self._caught_up: Callable[[], None] | None = None
        self._frames = FrameLog("callgate.mcp.serve")

    async def open(self) -> None:
        await self._descriptors.open(self, self._end)

    async def read(self) -> bytes:
        """What came; nothing at the end."""
        while not self._received:
            if self._ended:
                return b""
            self._readable.clear()
            await self._readable.wait()
        data = self._received.popleft()
        self._size -= len(data)
        if self._caught_up is not None and self._size <= _AT_ONCE:
            caught_up, self._caught_up = self._caught_up, None
            caught_up()
        return data

    async def write(self, data: bytes) -> None:
        """Once the client has room for it. Raises `ClientGone`."""
        if not self._closed:
            self._frames.sent(data)
            self._descriptors.write(data)
            await self._room.wait()
        if self._closed:
            raise ClientGone

    def close(self) -> None:
        """What has not been written by now is dropped. Idempotent."""
        self._descriptors.close()

    def _end(self) -> None:
        self._ended = True
        self._readable.set()

    # What the descriptors want of a peer.

    def feed(self, data: bytes) -> None:
        self._frames.received(data)
        self._received.append(data)
        self._size += len(data)
        self._readable.set()

    def is_behind(self, caught_up: Callable[[], None]) -> bool:
        if self._size <= _AT_ONCE:
            return False
        self._caught_up = caught_up
        return True

    def pause(self) -> None:
        self._room.clear()

    def resume(self) -> None:
        self._room.set()

    def lost(self) -> None:
        self._closed = True
        self._room.set()
