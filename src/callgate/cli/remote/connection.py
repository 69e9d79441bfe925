"""A blocking connection to an instance, and the signals that interrupt waiting for it.

JSON objects out, JSON objects in, a line each; what they mean is not looked at here. Light to
import, as a command makes one connection and ends; `client.link` is for programs that live on, on
their event loop, with any number of requests in flight.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` itself is four times as large
import os
import select
from _socket import AF_UNIX, SOCK_STREAM, socket

from callgate.config.instance_records import is_own_peer
from callgate.protocol.json_texts import dumps, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_LINE = 8 * 1024 * 1024
_PIECE = 256 * 1024
_STOP_SIGNALS = tuple(getattr(_signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP"))


class ConnectionLost(Exception):
    """No instance listens, or the connection broke."""


class UnexpectedPeer(ConnectionLost):
    """The peer is not an instance of this user, or does not speak our protocol."""


class FrameTooLong(ValueError):
    """A frame exceeds the length of a line."""


class InstanceConnection:
    def __init__(self, path: str, patience_s: float) -> None:
        """Connect. Nothing is sent for longer than `patience_s` to a peer that does not read."""
        self._socket = socket(AF_UNIX, SOCK_STREAM)
        self._received = bytearray()
        self._searched = 0
        """Bytes of what was received in which no line ends."""
        self._frames: list[dict[str, Any]] = []
        try:
            self._socket.settimeout(patience_s)
            self._connect(path, patience_s)
            if not is_own_peer(self._socket):
                raise UnexpectedPeer("it belongs to another user")
        except (OSError, ValueError) as error:
            self._socket.close()
            from callgate.client.reaching import why_not  # lazy: not where all is well  # noqa: PLC0415

            raise ConnectionLost(why_not(error)) from error
        except ConnectionLost:
            self._socket.close()
            raise

    def _connect(self, path: str, patience_s: float) -> None:
        try:
            self._socket.connect(path)
        except BlockingIOError:
            from callgate.client import reaching  # lazy: not where all is well  # noqa: PLC0415

            reaching.connect_again(self._socket, path, patience_s)

    def __enter__(self) -> InstanceConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, *frames: dict[str, Any]) -> None:
        """Send frames. `ConnectionLost` means that the last one did not arrive as a whole."""
        lines = [dumps(frame, compact=True).encode() + b"\n" for frame in frames]
        if any(len(line) > MAX_LINE for line in lines):
            raise FrameTooLong
        try:
            self._socket.sendall(b"".join(lines))
        except OSError as error:
            raise ConnectionLost(error.strerror or str(error)) from error

    def next(self) -> dict[str, Any] | None:
        """Take the next frame that has arrived; None if none is complete."""
        arrived = self.arrived()
        return arrived.pop(0) if arrived else None

    def arrived(self) -> list[dict[str, Any]]:
        """The frames that wait to be taken."""
        while (end := self._received.find(b"\n", self._searched)) >= 0:
            line = bytes(self._received[:end]).strip(b" \t\r")
            del self._received[: end + 1]
            self._searched = 0
            if line:
                self._frames.append(_read(line))
        self._searched = len(self._received)
        if self._searched > MAX_LINE:
            raise UnexpectedPeer("a line without end")
        return self._frames

    def wait(self, limit_s: float, also: int | None = None) -> bool:
        """Take what arrives within a time; False where nothing did.

        A byte at the descriptor `also` ends the waiting, too.
        """
        waiting = select.poll()
        waiting.register(self._socket.fileno(), select.POLLIN)
        if also is not None:
            waiting.register(also, select.POLLIN)
        ready = [number for number, _ in waiting.poll(limit_s * 1000)]
        if self._socket.fileno() in ready:
            self.take()
        return bool(ready)

    def take(self) -> None:
        """Take what is there."""
        try:
            piece = self._socket.recv(_PIECE)
        except OSError as error:
            raise ConnectionLost(error.strerror or str(error)) from error
        if not piece:
            raise ConnectionLost("it hung up")
        self._received += piece


class StopSignals:
    """Ctrl-C, SIGTERM and SIGHUP, from the entry of the `with` to its end.

    Nothing happens in the middle of something else: a byte arrives at `descriptor`, and whoever
    waits there takes the signal.
    """

    def __init__(self) -> None:
        self._waiting: list[int] = []
        self.first: int | None = None
        """The first that was taken."""
        self.count = 0
        """How many were taken."""

    def __enter__(self) -> StopSignals:
        self.descriptor, self._wakeup = os.pipe()
        for each in (self.descriptor, self._wakeup):
            os.set_blocking(each, False)
        self._woke = _signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        self._before = [(each, _signal.signal(each, self._hear)) for each in _STOP_SIGNALS]
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before:
            _signal.signal(each, handler if handler is not None else _signal.SIG_DFL)
        _signal.set_wakeup_fd(self._woke)
        os.close(self.descriptor)
        os.close(self._wakeup)

    def take(self) -> int | None:
        """The signal that came next; None if none did."""
        try:
            os.read(self.descriptor, 64)
        except BlockingIOError:
            pass
        if not self._waiting:
            return None
        number = self._waiting.pop(0)
        self.count += 1
        if self.first is None:
            self.first = number
        return number

    def _hear(self, number: int, _: Any) -> None:
        self._waiting.append(number)


def _read(line: bytes) -> dict[str, Any]:
    try:
        value = loads(line.decode())
    except (ValueError, RecursionError):
        raise UnexpectedPeer("what it says is not JSON") from None
    if not isinstance(value, dict):
        raise UnexpectedPeer("what it says is not a frame")
    return value
