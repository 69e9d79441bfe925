"""The two descriptors of a connection, of any kind: pipes, sockets, one socket, or files.

The loop waits for pipes and sockets without blocking. Descriptors that a loop cannot wait for
(files, devices) are read in a thread, and written synchronously. Nothing is read while the peer is
behind with processing, and a flood is fed to it in fair turns.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import threading
from collections.abc import Callable
from typing import Protocol

from callgate.core.turns import Pieces

_BLOCK = 256 * 1024


class Peer(Protocol):
    """The object that processes the bytes of the other end."""

    def feed(self, data: bytes) -> None: ...

    def is_behind(self, caught_up: Callable[[], None]) -> bool:
        """Whether the peer is overloaded; then it calls `caught_up` when it accepts more."""
        ...

    def pause(self) -> None:
        """Write nothing before `resume`."""

    def resume(self) -> None: ...

    def lost(self) -> None:
        """The output is closed."""


class Descriptors:
    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd, self._write_fd = read_fd, write_fd
        self._transports: list[asyncio.BaseTransport] = []
        self._output: asyncio.WriteTransport | None = None
        self._lost: Callable[[], None] = lambda: None

    async def open(self, peer: Peer, ended: Callable[[], None]) -> None:
        """Start to feed the peer. `ended` is called at the end of the input."""
        self._lost = peer.lost
        loop = asyncio.get_running_loop()
        if self._is_one_socket():
            both = socket.socket(fileno=self._read_fd)
            duplex, _ = await loop.connect_accepted_socket(lambda: _Both(peer, ended), both)
            self._transports, self._output = [duplex], duplex
            return
        if _can_be_waited_for(self._write_fd):
            output = open(self._write_fd, "wb", 0)  # noqa: SIM115 - the transport closes it
            writing, _ = await loop.connect_write_pipe(lambda: Output(peer), output)
            self._transports, self._output = [writing], writing
        if _can_be_waited_for(self._read_fd):
            input = open(self._read_fd, "rb", 0)  # noqa: SIM115
            reading, _ = await loop.connect_read_pipe(lambda: _Input(peer, ended), input)
            self._transports.append(reading)
        else:
            go_on = threading.Event()
            feeding = _Feeding(peer, go_on.set, ended)
            reader = threading.Thread(
                target=_read, args=(self._read_fd, loop, feeding, go_on), daemon=True
            )
            reader.start()

    def write(self, data: bytes) -> None:
        if self._output is not None:
            self._output.write(data)
            return
        unwritten = memoryview(data)
        try:
            while unwritten:
                unwritten = unwritten[os.write(self._write_fd, unwritten) :]
        except OSError:
            self._lost()

    def close(self) -> None:
        """Close both descriptors. Unwritten data is dropped."""
        for transport in self._transports:
            if transport.is_closing():
                continue
            # Other processes may share the pipe, and do not expect it to be non-blocking.
            end = transport.get_extra_info("pipe") or transport.get_extra_info("socket")
            os.set_blocking(end.fileno(), True)
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()
            else:
                transport.close()

    def _is_one_socket(self) -> bool:
        ours, other = os.fstat(self._read_fd), os.fstat(self._write_fd)
        return stat.S_ISSOCK(ours.st_mode) and os.path.samestat(ours, other)


def _can_be_waited_for(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _read(
    fd: int, loop: asyncio.AbstractEventLoop, feeding: _Feeding, go_on: threading.Event
) -> None:
    def take(data: bytes) -> None:
        if feeding.feed(data):
            go_on.set()

    try:
        while data := os.read(fd, _BLOCK):
            go_on.clear()
            loop.call_soon_threadsafe(take, data)
            go_on.wait()
    except OSError:
        pass
    except RuntimeError:  # the loop is closed
        return
    try:
        loop.call_soon_threadsafe(feeding.end)
    except RuntimeError:
        pass


class _Feeding:
    """Passes data to the peer. The end of the input follows all of it."""

    def __init__(self, peer: Peer, go_on: Callable[[], None], ended: Callable[[], None]) -> None:
        """`go_on` is called when reading may continue after `feed` returned False."""
        self._peer, self._go_on, self._ended = peer, go_on, ended
        self._pieces = Pieces(peer.feed, self._on_done)
        self._has_ended = False

    def feed(self, data: bytes) -> bool:
        """Process data; return whether more may be read."""
        self._pieces.feed(data)
        return not self._pieces.waits and not self._peer.is_behind(self._go_on)

    def end(self) -> None:
        self._has_ended = True
        if not self._pieces.waits:
            self._ended()

    def _on_done(self) -> None:
        if self._has_ended:
            self._ended()
        elif not self._peer.is_behind(self._go_on):
            self._go_on()


class _Input(asyncio.Protocol):
    def __init__(self, peer: Peer, ended: Callable[[], None]) -> None:
        self._peer = peer
        self._feeding = _Feeding(peer, self._go_on, ended)
        self._transport: asyncio.ReadTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.ReadTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._feeding.feed(data) and self._transport is not None:
            self._transport.pause_reading()

    def _go_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        self._feeding.end()
        return True  # keep a socket open for writing

    def connection_lost(self, error: Exception | None) -> None:
        self._feeding.end()


class Output(asyncio.Protocol):
    """The output to a peer, which pauses the peer's writing while the other end does not read."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def pause_writing(self) -> None:
        self._peer.pause()

    def resume_writing(self) -> None:
        self._peer.resume()

    def connection_lost(self, error: Exception | None) -> None:
        self._peer.lost()


class _Both(_Input):
    def pause_writing(self) -> None:
        self._peer.pause()

    def resume_writing(self) -> None:
        self._peer.resume()

    def connection_lost(self, error: Exception | None) -> None:
        self._feeding.end()
        self._peer.lost()
