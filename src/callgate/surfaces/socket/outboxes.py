"""What goes out to one peer: written together at the end of the loop's round, within bounds.

answers, results   -> always sent; a peer that leaves too much unread is cut
events             -> dropped and counted while a peer does not read
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from callgate.protocol.ndjson import Unsendable
from callgate.protocol.socket_v1 import frames
from callgate.protocol.socket_v1.requests import Fault
from callgate.protocol.socket_v1.server import ServerWire
from callgate.redaction.frame_log import FrameLog

_HIGH = 256 * 1024
"""Bytes that wait for a peer before events for it are dropped ..."""
_TOO_HIGH = 8 * 1024 * 1024
"""... and before it is cut."""

_log = logging.getLogger("callgate.socket")


class Outbox:
    def __init__(self, wire: ServerWire, written: Callable[[], None]) -> None:
        """`written` is called when everything has been handed to the system, or waits for it."""
        self._wire = wire
        self._written = written
        self._transport: asyncio.Transport | None = None
        self._lines: list[bytes] = []
        self._size = 0
        self._missed = 0
        self.collects = False
        """Whether somebody flushes once all is sent."""
        self.frames = FrameLog("callgate.socket")
        self.paused = False
        """The system takes no more for now."""

    def open(self, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(high=_HIGH)
        self._transport = transport

    @property
    def is_high(self) -> bool:
        """So much waits that nobody should be made to wait for more of it."""
        return self.paused or self._size > _HIGH

    def send(self, reply: frames.Reply | Fault, *, at_once: bool = False) -> None:
        """`at_once`: nothing else is under way that it could go out with."""
        if self._transport is None or self._transport.is_closing():
            return
        line = self._wire.encode(reply)
        self._lines.append(line)
        self._size += len(line)
        if self._size > _TOO_HIGH:
            self.flush()
        elif self.collects:
            return
        elif at_once:
            self.flush()
        elif len(self._lines) == 1:
            asyncio.get_running_loop().call_soon(self.flush)

    def collect(self) -> None:
        """Have what is sent from now on wait for the next `flush`."""
        self.collects = True

    def tell(self, event: frames.ToolEvent) -> None:
        """Send an event of a call, if it can be sent and the peer reads."""
        if self.paused:
            self._missed += 1
            return
        try:
            self.send(event)
        except Unsendable as error:
            self._missed += 1
            _log.warning("an event of a call was not sent: %s", error)

    def show(self, subscription_id: str, event: frames.Happened) -> None:
        """The same for an event that was subscribed to; it says how many were missed."""
        if self.paused:
            self._missed += 1
            return
        missed = self._missed
        shown = frames.Event(subscription_id=subscription_id, event=event, missed=missed)
        try:
            self.send(shown)
        except Unsendable as error:
            self._missed += 1
            _log.warning("an event was not sent: %s", error)
        else:
            self._missed = 0

    def flush(self) -> None:
        self.collects = False
        lines, self._lines, self._size = self._lines, [], 0
        if not lines or self._transport is None or self._transport.is_closing():
            return
        data = b"".join(lines) if len(lines) > 1 else lines[0]
        self.frames.sent(data)
        self._transport.write(data)
        if self.paused and self._transport.get_write_buffer_size() > _TOO_HIGH:
            _log.warning("a peer that does not read was cut")
            self.end("slow_reader", "What was sent was not read.")
        else:
            self._written()

    def end(self, reason: str, message: str | None = None) -> None:
        """Say why, and close the connection."""
        self.flush()
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(self._wire.encode(frames.Closing(reason=reason, message=message)))
        if reason == "slow_reader":
            self._transport.abort()
        else:
            self._transport.close()
