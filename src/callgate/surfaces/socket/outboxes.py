"""What goes out to one peer: written together at the end of the loop's round, within bounds.

    answers, results   -> always sent; a peer that leaves too much unread is cut
    events             -> sent up to `_MOST_EVENTS` unread bytes, then dropped and counted

Backpressure comes first: while a peer does not read, the producers of its events wait. A dropped
event of a call is marked twice: by a `log` event at its position, and by the number that `end_call`
returns for the result. A dropped event of a subscription counts as `missed` of the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from callgate.core.pacing.backpressure import Backpressure, dropped_events
from callgate.protocol.ndjson import Unsendable
from callgate.protocol.socket_v1 import frames
from callgate.protocol.socket_v1.requests import Fault
from callgate.protocol.socket_v1.server import ServerWire
from callgate.redaction.frame_log import FrameLog

_HIGH = 256 * 1024
"""Bytes that wait for a peer before the producers of its events wait, too ..."""
_MOST_EVENTS = 4 * 1024 * 1024
"""... before its events are dropped ..."""
_TOO_HIGH = 12 * 1024 * 1024
"""... and before it is cut."""

_log = logging.getLogger("callgate.socket")


class _Drops:
    """Events of one call that were not sent."""

    __slots__ = ("total", "unmarked")

    def __init__(self) -> None:
        self.total = 0
        self.unmarked = 0
        """Of these, the ones after the last mark in the stream."""


class Outbox:
    def __init__(self, wire: ServerWire, written: Callable[[], None]) -> None:
        """`written` is called when everything has been handed to the system, or waits for it."""
        self._wire = wire
        self._written = written
        self._transport: asyncio.Transport | None = None
        self._lines: list[bytes] = []
        self._size = 0
        self._drops: dict[str, _Drops] = {}
        """By request in flight."""
        self._missed = 0
        """Events of the subscription that were not sent ..."""
        self._subscription_id = ""
        """... to this one."""
        self.backpressure = Backpressure()
        self.collects = False
        """Whether somebody flushes once all is sent."""
        self.frames = FrameLog("callgate.socket")
        self._paused = False
        """The system takes no more for now."""

    def open(self, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(high=_HIGH)
        self._transport = transport

    def pause(self) -> None:
        """The system takes no more for now."""
        self._paused = True
        self.backpressure.pause()

    def resume(self) -> None:
        self._paused = False
        self.backpressure.resume()
        if self._missed:
            missed, self._missed = self._missed, 0
            self.send(frames.Event(subscription_id=self._subscription_id, missed=missed))

    @property
    def is_high(self) -> bool:
        """So much waits that nobody should be made to wait for more of it."""
        return self._paused or self._size > _HIGH

    @property
    def _is_full(self) -> bool:
        """Whether so much waits that events are dropped."""
        if self._size <= _HIGH and not self._paused:
            return False
        waiting = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return waiting + self._size > _MOST_EVENTS

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
        if self._is_full:
            self._drop(event.request_id)
            return
        if self._drops:
            self._mark(event.request_id)
        try:
            self.send(event)
        except Unsendable as error:
            self._drop(event.request_id)
            _log.warning("an event of a call was not sent: %s", error)
        if self._size > _HIGH:
            self.backpressure.pause()

    def end_call(self, request_id: str) -> int:
        """Mark the last gap in the events of a call. Returns how many were not sent."""
        drops = self._drops.get(request_id)
        if drops is None:
            return 0
        self._mark(request_id)
        del self._drops[request_id]
        return drops.total

    def _drop(self, request_id: str) -> None:
        drops = self._drops.setdefault(request_id, _Drops())
        drops.total += 1
        drops.unmarked += 1

    def _mark(self, request_id: str) -> None:
        drops = self._drops.get(request_id)
        if drops is not None and drops.unmarked:
            mark = frames.Log(level="warn", message=dropped_events(drops.unmarked))
            drops.unmarked = 0
            self.send(frames.ToolEvent(request_id=request_id, event=mark))

    def show(self, subscription_id: str, event: frames.Happened) -> None:
        """The same for an event that was subscribed to; it says how many were missed."""
        self._subscription_id = subscription_id
        if self._is_full:
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

    def unsubscribed(self) -> None:
        """Nobody wants to know any more how many events were missed."""
        self._missed = 0

    def flush(self) -> None:
        self.collects = False
        lines, self._lines, self._size = self._lines, [], 0
        if not lines or self._transport is None or self._transport.is_closing():
            return
        data = b"".join(lines) if len(lines) > 1 else lines[0]
        self.frames.sent(data)
        self._transport.write(data)
        if not self._paused:
            self.backpressure.resume()
        if self._paused and self._transport.get_write_buffer_size() > _TOO_HIGH:
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
