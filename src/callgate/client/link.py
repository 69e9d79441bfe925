"""One connection to an instance: requests out, each answer to whoever waits for it.

    send ---> bytes                      bytes ---> answer, to its request
                                               ---> what a call says, to whoever made it
    silence, while something is due ---> check_alive ---> silence ---> the end

A line that cannot be read ends the connection: it may have been somebody's answer. At the end
everyone who waits is told of it, and whether their call may have run.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import NamedTuple

from msgspec import UNSET

from callgate.client.errors import InstanceGone
from callgate.protocol.socket_v1 import frames
from callgate.protocol.socket_v1.client import ClientWire, Passed

Reply = frames.Answer | frames.Error
Hear = Callable[[frames.Happening], None]

_log = logging.getLogger("callgate.client")


class _Waiting(NamedTuple):
    reply: asyncio.Future[Reply]
    is_call: bool
    hear: Hear | None


class Link(asyncio.Protocol):
    def __init__(
        self, patience_s: float, show: Callable[[frames.Event], None], ended: Callable[[], None]
    ) -> None:
        """`show` gets what was subscribed to. `ended` is called once."""
        self._patience_s = patience_s
        self._show = show
        self._ended = ended
        self._wire = ClientWire()
        self._ids = itertools.count(1)
        self._waiting: dict[str, _Waiting] = {}
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._closing_reason: str | None = None
        """Why the instance is about to hang up."""
        self.lost: str | None = None
        """Why the connection has ended."""
        self._heard = False
        """Since the timer last went off."""
        self._checked = False
        self._timer: asyncio.TimerHandle | None = None

    # For those who ask.

    def new_id(self) -> str:
        return f"req_{next(self._ids)}"

    def connection_lost_error(self, *, may_have_run: bool = False) -> InstanceGone:
        return InstanceGone(self.lost or "closed", may_have_run=may_have_run)

    async def writable(self) -> None:
        """Wait until what was sent before has left, or the connection has."""
        await self._writable.wait()

    def send(self, request: frames.Request, hear: Hear | None = None) -> asyncio.Future[Reply]:
        """Send a request; its one answer, or `InstanceGone`."""
        if self._transport is None or self.lost is not None:
            raise self.connection_lost_error()
        assert request.request_id is not UNSET
        data = self._wire.encode(request)
        reply = asyncio.get_running_loop().create_future()
        is_call = isinstance(request, frames.ToolCall)
        self._waiting[request.request_id] = _Waiting(reply, is_call, hear)
        self._transport.write(data)
        if self._timer is None:
            self._watch()
        return reply

    def cancel(self, request_id: str) -> None:
        """Tell the instance to stop a call, if it has not been answered."""
        if request_id in self._waiting and self._transport is not None and self.lost is None:
            self._transport.write(self._wire.encode(frames.CancelToolCall(request_id=request_id)))

    async def ask(self, request: frames.Request) -> Reply:
        """Send what needs no work, so that the answer is due at once."""
        reply = self.send(request)
        await asyncio.wait({reply}, timeout=self._patience_s)
        if not reply.done():
            self.end("unresponsive")
        return await reply

    def calls(self) -> dict[str, asyncio.Future[Reply]]:
        """Those that have not been answered, by request id."""
        return {id: each.reply for id, each in self._waiting.items() if each.is_call}

    def end(self, reason: str) -> None:
        """Hang up, and tell everyone who waits. Idempotent."""
        if self.lost is not None:
            return
        self.lost = reason
        if self._transport is not None:
            self._transport.abort()
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            if not each.reply.done():
                each.reply.set_exception(self.connection_lost_error(may_have_run=each.is_call))
                each.reply.exception()  # whoever waits still gets it; nobody may
        self._writable.set()
        self._ended()

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.end(self._closing_reason or "lost")

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        for reply in self._wire.receive(data):
            if not isinstance(reply, Passed):
                self._heard = True
                self._take(reply)
            elif reply.why in ("unreadable", "too_long"):
                self.end("unreadable")
                return

    def _take(self, reply: frames.Reply) -> None:
        if isinstance(reply, frames.Closing):
            self._closing_reason = reply.reason
        elif isinstance(reply, frames.Event):
            self._show(reply)
        elif isinstance(reply, frames.ToolEvent):
            waiting = self._waiting.get(reply.request_id)
            if waiting is not None and waiting.hear is not None:
                waiting.hear(reply.event)
        elif reply.request_id is UNSET:
            _log.warning("the instance says: %.200s", getattr(reply, "message", reply))
        else:
            waiting = self._waiting.pop(reply.request_id, None)
            if waiting is not None and not waiting.reply.done():
                waiting.reply.set_result(reply)

    # Signs of life.

    def _watch(self) -> None:
        self._heard = False
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._patience_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._heard or not self._waiting:
            self._checked = False
        elif self._checked:
            self.end("unresponsive")
        else:
            self._checked = True
            self.send(frames.CheckAlive(request_id=self.new_id()))
        if self._waiting and self._timer is None:
            self._watch()
