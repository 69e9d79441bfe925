"""Bounded input and output of one peer, and the detection that it is gone.

    answers, results   -> always sent; a peer that leaves too much unread is disconnected
    events             -> sent up to `_MOST_EVENTS` unread bytes, then dropped and counted

Backpressure comes first: while a peer does not read, the producers of its events wait. A dropped
event of a call is marked twice: by a `log` event at its position, and by the number that `end_call`
returns for the result. Dropped events of a subscription count as `missed` in its next event.

Input becomes requests in small pieces, so that no other peer waits long. `Unfinished` bounds the
memory of incomplete messages of all connections together: if it is exceeded, the connection with
the most is refused, so that a small request never is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Protocol

from callgate.core.tasks import Backpressure, dropped_events
from callgate.protocol.socket_v1 import frames
from callgate.protocol.socket_v1.connection import Fault, ServerWire
from callgate.protocol.socket_v1.frames import Request
from callgate.protocol.strict_json import Unsendable
from callgate.redaction.frame_log import FrameLog

_HIGH = 256 * 1024
"""Unread bytes of a peer at which the producers of its events wait ..."""
_MOST_EVENTS = 4 * 1024 * 1024
"""... at which its events are dropped ..."""
_TOO_HIGH = 12 * 1024 * 1024
"""... and at which it is disconnected."""

_log = logging.getLogger("callgate.socket")


class _Drops:
    """Events of one call that were not sent."""

    __slots__ = ("total", "unmarked")

    def __init__(self) -> None:
        self.total = 0
        self.unmarked = 0
        """Number of events after the last mark in the stream."""


class Outbox:
    def __init__(self, wire: ServerWire, written: Callable[[], None]) -> None:
        """`written` is called when all data was passed to the system, or waits for it."""
        self._wire = wire
        self._written = written
        self._transport: asyncio.Transport | None = None
        self._lines: list[bytes] = []
        self._size = 0
        self._drops: dict[str, _Drops] = {}
        """By request in flight."""
        self._missed = 0
        """Number of unsent events of the subscription ..."""
        self._subscription_id = ""
        """... with this id."""
        self.backpressure = Backpressure()
        self.collects = False
        """Whether sent frames wait for the next `flush`."""
        self.frames = FrameLog("callgate.socket")
        self._paused = False
        """The system accepts no more data for now."""

    def open(self, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(high=_HIGH)
        self._transport = transport

    def pause(self) -> None:
        """Note that the system accepts no more data for now."""
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
        """Whether so much output is pending that the caller should pause."""
        return self._paused or self._size > _HIGH

    @property
    def _is_full(self) -> bool:
        """Whether so much output is pending that events are dropped."""
        if self._size <= _HIGH and not self._paused:
            return False
        waiting = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return waiting + self._size > _MOST_EVENTS

    def send(self, reply: frames.Reply | Fault, *, at_once: bool = False) -> None:
        """Send a reply. `at_once`: no other output is expected that could share the write."""
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
        """Hold all output until the next `flush`."""
        self.collects = True

    def tell(self, event: frames.ToolEvent) -> None:
        """Send an event of a call, if the peer keeps up and the event can be encoded."""
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
        """Mark the last gap in the events of a call. Return the number of unsent events."""
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
        """Send an event of a subscription, with the number of missed ones."""
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
        """Reset the number of missed events."""
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
            _log.warning("a peer that does not read was disconnected")
            self.end("slow_reader", "The peer did not read its data in time.")
        else:
            self._written()

    def end(self, reason: str, message: str | None = None) -> None:
        """Send the reason, and close the connection."""
        self.flush()
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(self._wire.encode(frames.Closing(reason=reason, message=message)))
        if reason == "slow_reader":
            self._transport.abort()
        else:
            self._transport.close()


_PIECE = 1024
"""Bytes of a piece, extended to the end of a line: few requests can have long answers."""


def requests(wire: ServerWire, data: bytes) -> Iterator[Request | Fault | None]:
    """Yield the requests that the bytes complete; None between two pieces."""
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


MOST = 64 * 1024 * 1024
"""Maximum bytes of all incomplete messages."""
REFUSAL = "All connections together have too much incomplete input. Send it again later."


class Holder(Protocol):
    """A connection, or a request on one."""

    def overflow(self) -> None:
        """Drop the incomplete message, and report that to the peer."""
        ...


class Unfinished:
    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._sizes: dict[Holder, int] = {}
        """Ordered by their last change."""
        self._total = 0

    def hold(self, holder: Holder, size: int) -> None:
        """Set the size of an incomplete message; 0 after its end."""
        if size == 0 and holder not in self._sizes:
            return
        self._total += size - self._sizes.pop(holder, 0)
        if size:
            self._sizes[holder] = size
        while self._total > self._most:
            largest = max(self._sizes, key=self._sizes.__getitem__)
            self._total -= self._sizes.pop(largest)
            largest.overflow()


_EVERY_S = 0.1


class PresenceCheck:
    def __init__(self, look: Callable[[], bool]) -> None:
        """`look` returns whether to check again."""
        self._look = look
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Check now and then periodically. Idempotent."""
        if self._timer is None:
            self._run()

    def stop(self) -> None:
        """Stop checking. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()

    def _run(self) -> None:
        self._timer = None
        if self._look():
            self._timer = asyncio.get_running_loop().call_later(_EVERY_S, self._run)
