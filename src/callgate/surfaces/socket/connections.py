"""One peer: its requests become calls of the runtime, its answers go out in order of arrival.

    bytes -> ServerWire -> call, list, cancel, subscribe, answer -> Runtime
    results, events     -> [written together at the end of the loop's round] -> bytes

A peer is local and not trusted: who it is, is what the system says (its user), what it may say
of itself is `cli` or `plugin`, and its session is given to it. It sees its own calls, questions
and events and nobody else's. What it does not read in time is its loss alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol, cast

from msgspec import UNSET, UnsetType

from callgate.core.calls import CallerKind, ToolCall
from callgate.core.errors import (
    ToolCancelled,
    ToolError,
    ToolPermissionDenied,
    ToolShuttingDown,
)
from callgate.core.events import Event
from callgate.core.ids import ulid
from callgate.core.results import ToolResult
from callgate.core.sessions import Session
from callgate.dispatch.confirmations import Answer, Scope
from callgate.policy.rules import Outcome
from callgate.protocol.socket_v1 import frames
from callgate.protocol.socket_v1.descriptors import describe, question
from callgate.protocol.socket_v1.requests import Fault
from callgate.protocol.socket_v1.results import envelope, whole
from callgate.protocol.socket_v1.server import ServerWire
from callgate.protocol.socket_v1.tool_events import happened, happening
from callgate.surfaces.socket import calls
from callgate.surfaces.socket.listening import has_hung_up

_MOST_HELD = 16 * 1024 * 1024
"""Bytes of calls that wait for others before no more are read."""
_MOST_WORKSPACES = 64
_HIGH = 256 * 1024
"""Bytes that wait for a peer before events for it are dropped ..."""
_TOO_HIGH = 8 * 1024 * 1024
"""... and before it is cut."""
_LOOK_S = 0.1
"""How often a peer that says no more is looked at, whether it is still there."""
_WITHIN_A_CALL = "A running call cannot approve what it asks for."
_KEPT = frozenset({CallerKind.CLI, CallerKind.PLUGIN})

_log = logging.getLogger("callgate.socket")

OpenSession = Callable[[str | None, str], Session]
"""A session for a peer's directory, with the id of its connection. Raises a `ToolError`."""


class Host(calls.Host, Protocol):
    """What a connection needs of its server."""

    open_session: OpenSession

    def joined(self, connection: Connection) -> bool:
        """Whether the peer may stay."""
        ...

    def left(self, connection: Connection) -> None: ...


class Connection(asyncio.Protocol):
    def __init__(self, host: Host, session_id: str) -> None:
        self._host = host
        self._runtime = host.runtime
        self.session_id = session_id
        self._sessions: dict[str, Session] = {}
        """By directory; all with the one id of this connection."""
        self._wire = ServerWire()
        self._calls = calls.Calls(host, self, self._result)
        self._held = 0
        """Bytes that came since calls have to wait."""
        self._wholes: set[str] = set()
        """The requests in flight whose result is wanted whole."""
        self._watching: tuple[str, frozenset[str] | None] | None = None
        """The subscription, and the types it wants."""
        self._attached = ExitStack()
        self._out: list[bytes] = []
        self._paused = False
        self._missed = 0
        self._half = False
        """The peer says no more, and still listens."""
        self.may_answer = False
        """Not for what a running call has started: it would approve itself."""
        self.transport: asyncio.Transport | None = None

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are none by their class
        self.transport.set_write_buffer_limits(high=_HIGH)
        if not self._host.joined(self):
            self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._attached.close()
        self._calls.close(ToolCancelled(reason="caller_gone"))
        self._host.left(self)

    def eof_received(self) -> bool:
        """A peer that says no more may still listen, as in `echo ... | socat - UNIX:...`."""
        self._half = self._peer_listens() and len(self._calls) > 0
        if self._half:
            self._watch_half()
        return self._half

    def _watch_half(self) -> None:
        """Nobody tells us any more when such a peer goes away altogether."""
        if self.transport is None or not self._half:
            return
        if not self._peer_listens():
            self.transport.abort()
        elif not self._calls:
            self.transport.close()
        else:
            asyncio.get_running_loop().call_later(_LOOK_S, self._watch_half)

    def _peer_listens(self) -> bool:
        assert self.transport is not None
        return not has_hung_up(self.transport.get_extra_info("socket"))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False

    def data_received(self, data: bytes) -> None:
        for request in self._wire.receive(data):
            if isinstance(request, Fault):
                self._send(request)
            else:
                self._take(request)
        if self._wire.hopeless:
            self.end("protocol", "A line went on without end.")
        elif self._calls.waits:
            self._held += len(data)
            if self.transport is not None and (self._calls.is_full or self._held > _MOST_HELD):
                self.transport.pause_reading()

    # Requests.

    def _take(self, request: frames.Request) -> None:
        match request:
            case frames.ToolCall():
                self._take_call(request)
            case frames.CancelToolCall():
                self._calls.cancel(request.request_id)
            case frames.ListTools():
                self._list_tools(request)
            case frames.Subscribe():
                self._subscribe(request)
            case frames.Unsubscribe():
                self._unsubscribe(request)
            case frames.ListConfirmations():
                self._host.own(self._list_confirmations(request))
            case frames.AnswerConfirmation():
                self._host.own(self._answer(request))
            case frames.CheckAlive():
                self._send(frames.Alive(request_id=request.request_id))

    def _take_call(self, request: frames.ToolCall) -> None:
        made, error = self._as_call(request)
        if request.whole:
            self._wholes.add(request.request_id)
        if error is not None:
            self._calls.refuse(request.request_id, made, error)
        else:
            self._calls.take(request.request_id, made)

    def give_up(self, request_id: str, call_id: str, error: ToolError) -> None:
        self._calls.give_up(request_id, call_id, error)

    def _list_tools(self, request: frames.ListTools) -> None:
        try:
            session = self._session(request.client_info.cwd)
        except ToolError:
            self._send(frames.ToolsList(request_id=request.request_id, tools=[], workspace=None))
            return
        tools = self._runtime.tools(session)
        if request.names is not None:
            seen = {tool.name: tool for tool in tools}
            find = self._runtime.dispatcher.registry.find
            named = dict.fromkeys(tool.name for each in request.names if (tool := find(each)))
            tools = [seen[name] for name in named if name in seen]
        self._send(
            frames.ToolsList(
                request_id=request.request_id,
                tools=[describe(tool.definition, tool.timeout_s) for tool in tools],
                workspace=session.workspace,
                mode=session.mode,
            )
        )

    def _subscribe(self, request: frames.Subscribe) -> None:
        if request.session not in ("own", self.session_id) or request.since is not None:
            self._refuse(request.request_id, "A connection sees its own session, from now on.")
            return
        if request.confirmer and not self.may_answer:
            self._refuse(request.request_id, _WITHIN_A_CALL)
            return
        self._attached.close()
        wanted = None if request.types is None else frozenset(request.types)
        self._watching = "sub_" + ulid(), wanted
        if request.confirmer:
            self._attached.enter_context(self._runtime.attach(None, self.session_id))
        self._send(
            frames.Subscribed(request_id=request.request_id, subscription_id=self._watching[0])
        )

    def _unsubscribe(self, request: frames.Unsubscribe) -> None:
        id = request.subscription_id
        if self._watching is None or self._watching[0] != id:
            self._refuse(request.request_id, "There is no such subscription.")
            return
        self._watching = None
        self._attached.close()
        self._send(frames.Unsubscribed(request_id=request.request_id, subscription_id=id))

    def _refuse(self, request_id: str | UnsetType, message: str) -> None:
        self._send(frames.Error(request_id=request_id, message=message))

    async def _list_confirmations(self, request: frames.ListConfirmations) -> None:
        asked = await self._runtime.open_confirmations(self.session_id)
        listed = [question(each) for each in asked]
        self._send(
            frames.ConfirmationsList(request_id=request.request_id, confirmations=listed)
        )

    async def _answer(self, request: frames.AnswerConfirmation) -> None:
        if not self.may_answer:
            self._refuse(request.request_id, _WITHIN_A_CALL)
            return
        asked = await self._runtime.open_confirmations(self.session_id)
        shown = {each.id: each.arguments_sha256 for each in asked}
        sha256 = shown.get(request.confirmation_id)
        if sha256 is None or request.arguments_sha256 not in (None, sha256):
            said = "no such question is open" if sha256 is None else "it is about other arguments"
            self._refuse(request.request_id, said)
            return
        receipt = await self._runtime.answer(request.confirmation_id, _answer_of(request))
        standing = receipt.answer
        self._send(
            frames.ConfirmationResult(
                request_id=request.request_id,
                confirmation_id=request.confirmation_id,
                applied=receipt.applied,
                decision=None if standing is None else standing.decision,
                scope=None if standing is None else standing.scope,
                by=None if standing is None else standing.by,
            )
        )

    def _as_call(self, request: frames.ToolCall) -> tuple[ToolCall, ToolError | None]:
        info, error = request.client_info, None
        try:
            session = self._session(info.cwd)
        except ToolError as refusal:
            session, error = Session(workspace="/", id=self.session_id), refusal
        hints = {"cwd": info.cwd, "spaceId": info.space_id, "tabId": info.tab_id}
        return (
            ToolCall(
                tool=request.tool_name,
                arguments=request.arguments,
                session=session,
                caller=self._caller(info.caller),
                external_id=request.request_id,
                timeout_s=None if request.timeout_ms is None else request.timeout_ms / 1000,
                scope={key: hint for key, hint in hints.items() if hint is not None} or None,
            ),
            error,
        )

    def _caller(self, said: str | None) -> CallerKind:
        if said is None or said in _KEPT:
            return CallerKind(said or CallerKind.CLI)
        _log.warning("a peer called itself %.40r and is treated as cli", said)
        return CallerKind.CLI

    def _session(self, cwd: str | None) -> Session:
        key = cwd or ""
        if key not in self._sessions:
            if len(self._sessions) >= _MOST_WORKSPACES:
                raise ToolPermissionDenied(
                    "A connection works in few directories.", reason="too_many_workspaces"
                )
            self._sessions[key] = self._host.open_session(cwd, self.session_id)
        return self._sessions[key]

    @property
    def sessions(self) -> list[Session]:
        return list(self._sessions.values())

    # Answers.

    def tell(self, request_id: str, event: Event) -> None:
        """Pass on what a call of this connection says while it runs."""
        said = happening(event)
        if said is None or request_id not in self._wire.in_flight:
            return
        if self._paused:
            self._missed += 1
            return
        self._send(frames.ToolEvent(request_id=request_id, event=said))

    def show(self, event: Event) -> None:
        """Pass on an event of this connection's session, if it is subscribed to."""
        if self._watching is None:
            return
        id, wanted = self._watching
        if wanted is not None and event.type not in wanted:
            return
        if self._paused:
            self._missed += 1
            return
        missed, self._missed = self._missed, 0
        self._send(frames.Event(subscription_id=id, event=happened(event), missed=missed))

    def _result(self, request_id: str, result: ToolResult) -> None:
        if self._held and not self._calls.waits:
            self._held = 0
            if self.transport is not None:
                self.transport.resume_reading()
        is_whole = request_id in self._wholes
        self._wholes.discard(request_id)
        if request_id in self._wire.in_flight:
            made = whole(request_id, result) if is_whole else _shown(request_id, result)
            self._send(made)

    def _send(self, reply: frames.Reply | Fault) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        self._out.append(self._wire.encode(reply))
        if not self._calls:  # nothing else is under way that it could go out with
            self._flush()
        elif len(self._out) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if not out or self.transport is None or self.transport.is_closing():
            return
        self.transport.write(b"".join(out) if len(out) > 1 else out[0])
        if self._half and not self._calls:
            self.transport.close()
        elif self.transport.get_write_buffer_size() > _TOO_HIGH:
            _log.warning("a peer that does not read was cut")
            self.end("slow_reader", "What was sent was not read.")

    def shut_down(self) -> None:
        """Answer what is still under way, and close."""
        self._calls.close(ToolShuttingDown())
        self._calls.give_up_all(ToolShuttingDown())
        self.end("shutting_down")

    def end(self, reason: str, message: str | None = None) -> None:
        """Say why, and close the connection."""
        if self.transport is None or self.transport.is_closing():
            return
        if self._out:
            self._flush()
        self.transport.write(self._wire.encode(frames.Closing(reason=reason, message=message)))
        if reason == "slow_reader":
            self.transport.abort()
        else:
            self.transport.close()


def _shown(request_id: str, result: ToolResult) -> frames.ToolResult:
    return frames.ToolResult(request_id=request_id, result=envelope(result))


def _answer_of(request: frames.AnswerConfirmation) -> Answer:
    always = request.decision == "always-allow-this-tool"
    return Answer(
        decision=Outcome.DENY if request.decision == "deny" else Outcome.ALLOW,
        scope=Scope.SESSION if always else Scope(request.scope),
        arguments=None if request.arguments is UNSET else request.arguments,
        pattern=request.pattern,
        reason=request.reason,
        by="socket",
    )
