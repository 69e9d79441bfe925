"""The socket server and its peers: requests become calls, answers are sent as calls complete.

    bytes -> `requests` -> call, list, cancel, subscribe, answer -> Runtime
    results, events     -> `Outbox`, within bounds               -> bytes

Its state (`states`, with the drawing) determines what may happen next.

A peer is local and not trusted. The system identifies its user, it may declare itself `cli` or
`plugin`, and the server assigns its session. It sees only its own calls, questions
and events. If it does not read in time, only the peer itself is affected.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine, Iterator
from typing import Any, Protocol, cast

from callgate.config.instance_records import peer
from callgate.core.calls import ToolResult
from callgate.core.errors import ToolCancelled, ToolError, ToolShuttingDown
from callgate.core.events import Event
from callgate.core.ids import session_id
from callgate.core.sessions import OpenSession, Session
from callgate.core.tasks import TaskSet
from callgate.core.turns import SLICE_S, fair_turns
from callgate.dispatch.permission.question_building import client_of
from callgate.protocol.socket_v1 import frames
from callgate.protocol.socket_v1.connection import Fault, ServerWire
from callgate.protocol.socket_v1.values import HAPPENINGS, happened, happening
from callgate.runtime import Runtime, Stop
from callgate.sandbox.processes.command_marks import inherited_mark
from callgate.socket import calls
from callgate.socket.buffers import REFUSAL, Outbox, PresenceCheck, Unfinished, requests
from callgate.socket.calls import Caller, Replies
from callgate.socket.listening import Acceptor, Listener, file_limit, has_hung_up
from callgate.socket.queries import Hosting, Watcher, answer, list_tools
from callgate.socket.states import LOOKED_AT, OPEN, PAUSED, ConnectionState, Transition, next_state

_MOST_PENDING = 64
"""Maximum concurrent requests other than calls."""
_MOST_BEGUN = 32
"""Maximum calls that begin within one slice, regardless of their work before the first wait."""


class ConnectionServer(calls.CallServer, Protocol):
    """The server's interface for a connection."""

    open_session: OpenSession
    hosts: Hosting | None
    unfinished: Unfinished

    def joined(self, connection: Connection) -> bool:
        """Whether the peer may stay."""
        ...

    def left(self, connection: Connection) -> None: ...

    def subscribed(self, connection: Connection) -> None:
        """Note that the connection has a subscription, or has ended it."""
        ...


class Connection(asyncio.Protocol):
    def __init__(self, host: ConnectionServer, session_id: str) -> None:
        self._host = host
        self._runtime = host.runtime
        self.session_id = session_id
        self.watcher = Watcher(host.runtime, session_id)
        self.caller = Caller(
            host.open_session,
            host.runtime.tools.find,
            session_id,
            is_traced=host.runtime.calls.is_traced,
        )
        self._wire = ServerWire()
        self._out = Outbox(self._wire, self._hang_up_if_done)
        self.caller.backpressure = self._out.backpressure
        self._calls = calls.Calls(host, self._result)
        self._turns = fair_turns()
        self._state = ConnectionState.NEW
        self._floods = False
        """The last received data exceeds a slice."""
        self._is_paused = False
        """Reading is paused."""
        self._is_unfinished = False
        """A request is received in part."""
        self._received = 0
        """Size of the last received data ..."""
        self._incoming: Iterator[frames.Request | Fault | None] | None = None
        """... and its unprocessed requests."""
        self._pending = 0
        """Number of running requests other than calls."""
        self._replies = Replies()
        self.has_asked = False
        """Whether the peer has sent a request."""
        self._presence = PresenceCheck(self._look)
        self.transport: asyncio.Transport | None = None

    @property
    def state(self) -> ConnectionState:
        """The current state. Checks the transport, which may close before `connection_lost`."""
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
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are not subclasses
        self._out.open(self.transport)
        self._move(Transition.OPEN)
        if not self._host.joined(self):
            self.abort()

    def abort(self) -> None:
        """Close immediately; unwritten data is lost. Idempotent."""
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
        """Half-close: the peer may still read, as in `echo ... | socat - UNIX:...`."""
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
        """Process requests, and send all immediate answers with one write."""
        self._out.collect()
        try:
            self._take_slice()
        finally:
            self._out.flush()

    def _take_slice(self) -> None:
        """Process requests within a time slice; then other connections have their turn.

        The time of calls before their first wait does not count, but their number is limited.
        """
        assert self._incoming is not None
        now, begun = self._turns.now, 0
        until = now() + SLICE_S
        for request in self._incoming:
            if type(request) is frames.ToolCall:
                started = now()
                self._take_call(request)
                until += now() - started
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
        """Finish after all received requests were processed, or while the connection is closing."""
        self._incoming = None
        if not self._floods:
            self._turns.note_light()
        self._floods = False
        unfinished = self._wire.unfinished
        if unfinished or self._is_unfinished:
            self._is_unfinished = unfinished > 0
            self._host.unfinished.hold(self, unfinished)
        if self._wire.hopeless:
            self._out.end("protocol", "A line exceeds the maximum length.")
        if self.state is ConnectionState.TAKING:
            is_full = self._calls.waits and self._calls.is_full_with(self._received)
            self._move(Transition.FILL if is_full else Transition.TAKEN)
            if is_full or self._is_paused:
                self._pace()

    def _pace(self) -> None:
        """Resume or pause reading, according to the state."""
        state = self.state
        if state is ConnectionState.READING:
            self._is_paused = False
            self._transport.resume_reading()
        elif state in PAUSED:
            self._is_paused = True
            self._transport.pause_reading()
            self._presence.start()

    def overflow(self) -> None:
        """Close the connection after too much incomplete input, which cannot be parsed."""
        self._wire.drop()
        self._out.end("overloaded", REFUSAL)

    # Detection of a peer that disconnects while its socket is not read.

    def _look(self) -> bool:
        """Abort if the peer is gone; return whether to check again."""
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
        """Pass on an event of this connection's session: to the caller of a running call, and to
        the peer if it has subscribed.
        """
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
        """Answer the running calls, and close."""
        self._calls.close(ToolShuttingDown())
        self._calls.give_up_all(ToolShuttingDown())
        self._out.end("shutting_down")


_DRAIN_S = 0.7
"""Time for calls to end when the instance stops."""

_log = logging.getLogger("callgate.socket")


class SocketServer:
    def __init__(
        self,
        runtime: Runtime,
        open_session: OpenSession,
        hosts: Hosting | None = None,
        unfinished: Unfinished | None = None,
    ) -> None:
        """`unfinished` is the memory limit shared with other surfaces."""
        self.runtime = runtime
        self.open_session = open_session
        self.hosts = hosts
        self.unfinished = unfinished or Unfinished()
        self._connections: dict[str, Connection] = {}
        """By session id."""
        self._subscribers: set[Connection] = set()
        self._tasks = TaskSet(_log, "a connection's work failed")
        self._unlisten = runtime.sessions.listen(self._hear)
        self._acceptor: Acceptor | None = None

    def start(self, listener: Listener) -> None:
        self._acceptor = Acceptor(listener.socket, lambda: Connection(self, session_id()))
        self._acceptor.start()

    def stop_accepting(self) -> None:
        """Accept no more peers; present ones stay."""
        if self._acceptor is not None:
            self._acceptor.close()
            self._acceptor = None

    def __len__(self) -> int:
        return len(self._connections)

    async def close(self) -> None:
        """Accept no more peers, stop running calls, send last replies, and close. Idempotent."""
        self.stop_accepting()
        stopping = self.start_task(self.runtime.close())
        await asyncio.wait({stopping}, timeout=_DRAIN_S)
        for connection in list(self._connections.values()):
            connection.shut_down()
        self._unlisten()
        await asyncio.sleep(0)

    # Interface for connections.

    def joined(self, connection: Connection) -> bool:
        assert connection.transport is not None
        uid, pid = peer(connection.transport.get_extra_info("socket"))
        if uid != os.getuid():
            _log.warning("a peer of user %d was rejected", uid)
            return False
        # Half of the file descriptors are reserved for calls.
        if len(self._connections) >= file_limit() // 2 and not self._drop_silent():
            _log.warning("a peer was rejected: there are too many")
            return False
        connection.watcher.may_answer = pid == 0 or not inherited_mark(pid)
        connection.caller.client = client_of(pid)
        self._connections[connection.session_id] = connection
        return True

    def _drop_silent(self) -> bool:
        """Disconnect the oldest peer that has sent no request; return whether there was one."""
        silent = (each for each in self._connections.values() if not each.has_asked)
        oldest = next(silent, None)
        if oldest is not None:
            oldest.abort()
            self.left(oldest)
        return oldest is not None

    def left(self, connection: Connection) -> None:
        self._subscribers.discard(connection)
        if self._connections.pop(connection.session_id, None) is not None:
            for session in connection.sessions[:1]:  # all have the same id
                self.start_task(self.runtime.sessions.close(session, Stop.CALLER_GONE))

    def start_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self._tasks.start(work)

    def subscribed(self, connection: Connection) -> None:
        if connection.watcher.is_subscribed:
            self._subscribers.add(connection)
        else:
            self._subscribers.discard(connection)

    def _hear(self, event: Event) -> None:
        if event.type in HAPPENINGS or self._subscribers:
            connection = self._connections.get(event.session_id)
            if connection is not None:
                connection.hear(event)
