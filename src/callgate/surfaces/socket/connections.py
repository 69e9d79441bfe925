"""One peer: its requests become calls of the runtime, its answers go out in order of arrival.

    bytes -> `intakes` -> call, list, cancel, subscribe, answer -> Runtime
    results, events    -> `outboxes`, within bounds             -> bytes

What may happen next is its state (`states`, with the drawing): each method asks it or moves it.

A peer is local and not trusted: who it is, is what the system says (its user), what it may say
of itself is `cli` or `plugin`, and its session is given to it. It sees its own calls, questions
and events and nobody else's. What it does not read in time is its loss alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, Protocol, cast

from callgate.core.errors import ToolCancelled, ToolError, ToolShuttingDown
from callgate.core.events import Event
from callgate.core.results import ToolResult
from callgate.core.sessions import Session
from callgate.core.turns import SLICE_S, fair_turns
from callgate.protocol.socket_v1 import frames
from callgate.protocol.socket_v1.requests import Fault
from callgate.protocol.socket_v1.server import ServerWire
from callgate.protocol.socket_v1.tool_events import happened, happening
from callgate.surfaces.socket import calls
from callgate.surfaces.socket.callers import Caller, OpenSession
from callgate.surfaces.socket.hosting import Hosting, answer
from callgate.surfaces.socket.intakes import requests
from callgate.surfaces.socket.listening import has_hung_up
from callgate.surfaces.socket.listings import list_tools
from callgate.surfaces.socket.outboxes import Outbox
from callgate.surfaces.socket.presence import PresenceCheck
from callgate.surfaces.socket.replies import Replies
from callgate.surfaces.socket.states import (
    LOOKED_AT,
    OPEN,
    PAUSED,
    ConnectionState,
    Transition,
    next_state,
)
from callgate.surfaces.socket.watchers import Watcher
from callgate.surfaces.unfinished import REFUSAL, Unfinished

_MOST_PENDING = 64
"""Requests beside calls that are answered at once."""
_MOST_BEGUN = 32
"""Calls that begin within one slice, whatever each does before it waits for something."""


class Host(calls.Host, Protocol):
    """What a connection needs of its server."""

    open_session: OpenSession
    hosts: Hosting | None
    unfinished: Unfinished

    def joined(self, connection: Connection) -> bool:
        """Whether the peer may stay."""
        ...

    def left(self, connection: Connection) -> None: ...

    def subscribed(self, connection: Connection) -> None:
        """It has a subscription, or none any more."""
        ...


class Connection(asyncio.Protocol):
    def __init__(self, host: Host, session_id: str) -> None:
        self._host = host
        self._runtime = host.runtime
        self.session_id = session_id
        self.watcher = Watcher(host.runtime, session_id)
        self.caller = Caller(
            host.open_session,
            host.runtime.find_tool,
            session_id,
            is_traced=host.runtime.is_traced,
        )
        self._wire = ServerWire()
        self._out = Outbox(self._wire, self._hang_up_if_done)
        self.caller.backpressure = self._out.backpressure
        self._calls = calls.Calls(host, self._result)
        self._turns = fair_turns()
        self._state = ConnectionState.NEW
        self._floods = False
        """What came last is more than fits a slice."""
        self._is_paused = False
        """Nothing is read."""
        self._is_unfinished = False
        """A request has begun to come, and has not ended."""
        self._received = 0
        """Bytes of what came last ..."""
        self._incoming: Iterator[frames.Request | Fault | None] | None = None
        """... and the requests in it that have not been taken."""
        self._pending = 0
        """Requests beside calls that are being answered."""
        self._replies = Replies()
        self.has_asked = False
        """Whether any request came."""
        self._presence = PresenceCheck(self._look)
        self.transport: asyncio.Transport | None = None

    @property
    def state(self) -> ConnectionState:
        """Asks the transport too: the outbox and the system close it before `connection_lost`."""
        transport = self.transport
        if transport is not None and transport.is_closing() and self._state in OPEN:
            self._move(Transition.CLOSE)
        return self._state

    def _move(self, taken: Transition) -> None:
        self._state = next_state(self._state, taken)

    @property
    def _transport(self) -> asyncio.Transport:
        assert self.transport is not None
        return self.transport

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are none by their class
        self._out.open(self.transport)
        self._move(Transition.OPEN)
        if not self._host.joined(self):
            self.abort()

    def abort(self) -> None:
        """Close at once; what was not written is lost. Idempotent."""
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._move(Transition.LOST)
        self.transport = self._incoming = None
        self._wire.drop()
        self._host.unfinished.hold(self, 0)
        self._presence.stop()
        self._out.backpressure.resume()
        self.watcher.close()
        self._calls.close(ToolCancelled(reason="caller_gone"))
        self._host.left(self)

    def eof_received(self) -> bool:
        """A peer that says no more may still listen, as in `echo ... | socat - UNIX:...`."""
        if self.state not in OPEN or self._peer_is_gone() or not self._is_busy:
            return False  # the transport closes
        self._move(Transition.EOF)
        self._presence.start()
        return True

    def pause_writing(self) -> None:
        self._out.pause()

    def resume_writing(self) -> None:
        self._out.resume()

    def data_received(self, data: bytes) -> None:
        self._out.frames.received(data)
        if self.state not in OPEN:
            return
        self._move(Transition.RECEIVE)
        self._received = len(data)
        self._incoming = requests(self._wire, data)
        self._take_requests()

    def _take_in_turn(self) -> None:
        if self.state is ConnectionState.WAITING:
            self._move(Transition.TURN)
            self._take_requests()

    def _take_requests(self) -> None:
        """Take requests, and send what could be answered with one write."""
        self._out.collect()
        try:
            self._take_slice()
        finally:
            self._out.flush()

    def _take_slice(self) -> None:
        """Take requests; where there are many, the others take their turn in between. What calls
        do before they wait is no part of the slice: of them so many may begin in one."""
        assert self._incoming is not None
        now, begun = self._turns.now, 0
        until = now() + SLICE_S
        for request in self._incoming:
            if type(request) is frames.ToolCall:
                came = now()
                self._take_call(request)
                until += now() - came
                begun += 1
            elif isinstance(request, Fault):
                self._send(request)
            elif request is not None:
                self._take(request)
            is_over = begun >= _MOST_BEGUN or now() > until
            if self.state is not ConnectionState.TAKING:
                break
            if self._pending >= _MOST_PENDING:
                self._move(Transition.BLOCK)
                self._pace()
                return
            if is_over or self._out.is_high:
                self._floods = True
                self._move(Transition.YIELD)
                self._pace()
                self._turns.wait(self._take_in_turn)
                return
        self._end_taking()

    def _end_taking(self) -> None:
        """Everything that came is taken, or the connection is closing."""
        self._incoming = None
        if not self._floods:
            self._turns.note_light()
        self._floods = False
        unfinished = self._wire.unfinished
        if unfinished or self._is_unfinished:
            self._is_unfinished = unfinished > 0
            self._host.unfinished.hold(self, unfinished)
        if self._wire.hopeless:
            self._out.end("protocol", "A line went on without end.")
        if self.state is ConnectionState.TAKING:
            is_full = self._calls.waits and self._calls.is_full_with(self._received)
            self._move(Transition.FILL if is_full else Transition.TAKEN)
            if is_full or self._is_paused:
                self._pace()

    def _pace(self) -> None:
        """Read on, or not yet."""
        state = self.state
        if state is ConnectionState.READING:
            self._is_paused = False
            self._transport.resume_reading()
        elif state in PAUSED:
            self._is_paused = True
            self._transport.pause_reading()
            self._presence.start()

    def overflow(self) -> None:
        """It began more than there is room for: nothing that it says after that makes sense."""
        self._wire.drop()
        self._out.end("overloaded", REFUSAL)

    # A peer that goes away where nobody tells us: what it sends is not read.

    def _look(self) -> bool:
        """End what nobody waits for any more; whether to look again."""
        if self.state not in LOOKED_AT:
            return False
        if self._peer_is_gone():
            self.abort()
            return False
        self._hang_up_if_done()
        return True

    def _peer_is_gone(self) -> bool:
        return has_hung_up(self._transport.get_extra_info("socket"))

    @property
    def sessions(self) -> list[Session]:
        return self.caller.sessions

    @property
    def _is_busy(self) -> bool:
        return bool(self._calls) or self._pending > 0

    def _hang_up_if_done(self) -> None:
        if self._state is ConnectionState.HALF_CLOSED and not self._is_busy:
            self._transport.close()

    # Requests.

    def _take(self, request: frames.Request) -> None:
        self.has_asked = True
        match request:
            case frames.CancelToolCall():
                self._calls.cancel(request.request_id)
            case frames.ListTools():
                self._list_tools(request)
            case frames.Subscribe():
                self._send(self.watcher.subscribe(request))
                self._host.subscribed(self)
            case frames.Unsubscribe():
                self._send(self.watcher.unsubscribe(request))
                self._out.unsubscribed()
                self._host.subscribed(self)
            case frames.ListConfirmations() | frames.AnswerConfirmation():
                self._answer_later(self.watcher.look_up(request))
            case frames.ListHosts() | frames.RenewHost():
                may_ask = self.watcher.may_answer
                self._answer_later(answer(self._host.hosts, request, may_ask=may_ask))
            case frames.CheckAlive():
                self._send(frames.Alive(request_id=request.request_id))

    def _take_call(self, request: frames.ToolCall) -> None:
        self.has_asked = True
        call, refusal, note = self.caller.call(request)
        self._replies.expect(request, note)
        if refusal is not None:
            self._calls.refuse(request.request_id, call, refusal)
        else:
            self._calls.take(request.request_id, call)

    def _list_tools(self, request: frames.ListTools) -> None:
        try:
            session = self.caller.session(request.client_info.cwd)
        except ToolError:
            self._send(frames.ToolsList(request_id=request.request_id, tools=[], workspace=None))
            return
        self._send(list_tools(self._runtime, session, request))

    def _answer_later(self, work: Coroutine[Any, Any, frames.Reply]) -> None:
        self._pending += 1
        self._host.start_task(self._finish(work))

    async def _finish(self, work: Coroutine[Any, Any, frames.Reply]) -> None:
        try:
            reply = await work
        finally:
            self._pending -= 1
            if self.state is ConnectionState.BLOCKED:
                self._move(Transition.ANSWER)
                self._turns.wait(self._take_in_turn)
        self._send(reply)

    # Answers.

    def hear(self, event: Event) -> None:
        """Pass on an event of this connection's session: to the caller of its call, while that
        runs, and to the peer, if it is subscribed to it."""
        frame = happening(event)
        if frame is not None:
            request_id = self._calls.request_of(str(event.payload.get("call_id")))
            if request_id is not None and request_id in self._wire.in_flight:
                self._out.tell(frames.ToolEvent(request_id=request_id, event=frame))
        subscription_id = self.watcher.wanted(event)
        if subscription_id is not None:
            self._out.show(subscription_id, happened(event))

    def _result(self, request_id: str, result: ToolResult) -> None:
        if self._state is ConnectionState.FULL and not self._calls.waits:
            self._move(Transition.DRAIN)
            self._pace()
        is_expected = request_id in self._wire.in_flight
        dropped = self._out.end_call(request_id) if is_expected else 0
        reply = self._replies.of(request_id, result, dropped)
        if is_expected:
            self._send(reply)

    def _send(self, reply: frames.Reply | Fault) -> None:
        self._out.send(reply, at_once=self._out.collects or not self._calls)

    def shut_down(self) -> None:
        """Answer what is still under way, and close."""
        self._calls.close(ToolShuttingDown())
        self._calls.give_up_all(ToolShuttingDown())
        self._out.end("shutting_down")
