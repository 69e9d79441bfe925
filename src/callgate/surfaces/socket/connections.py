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
from typing import Any, Protocol

from msgspec import UNSET

from callgate.core.calls import CallerKind, ToolCall
from callgate.core.errors import (
    ToolCancelled,
    ToolError,
    ToolPermissionDenied,
    ToolProtocolError,
    ToolShuttingDown,
)
from callgate.core.events import Event
from callgate.core.ids import ulid
from callgate.core.results import ErrorInfo, ToolResult
from callgate.core.sessions import Session
from callgate.dispatch.confirmations import Answer, Scope
from callgate.policy.rules import Outcome
from callgate.protocol.socket_v1 import frames
from callgate.protocol.socket_v1.descriptors import describe, question
from callgate.protocol.socket_v1.requests import Fault
from callgate.protocol.socket_v1.results import envelope
from callgate.protocol.socket_v1.server import ServerWire
from callgate.protocol.socket_v1.tool_events import happened, happening
from callgate.runtime import Runtime

MOST_CALLS = 64
"""In flight on one connection."""
_HIGH = 256 * 1024
"""Bytes that wait for a peer before events for it are dropped ..."""
_TOO_HIGH = 8 * 1024 * 1024
"""... and before it is cut."""
_STOP_S = 2.0
"""How long a cancelled call may take to say what it had, before its caller is answered."""
_KEPT = frozenset({CallerKind.CLI, CallerKind.PLUGIN})

_log = logging.getLogger("callgate.socket")

OpenSession = Callable[[str | None, str], Session]
"""A session for a peer's directory, with the id of its connection. Raises a `ToolError`."""


class Host(Protocol):
    """What a connection needs of its server."""

    runtime: Runtime
    open_session: OpenSession

    def joined(self, connection: Connection) -> bool:
        """Whether the peer may stay."""
        ...

    def left(self, connection: Connection) -> None: ...
    def own(self, work: Any) -> asyncio.Task[Any]: ...
    def follow(self, call_id: str, connection: Connection, request_id: str) -> None:
        """Tell the connection what a call says while it runs."""
        ...

    def unfollow(self, call_id: str) -> None: ...


class Connection(asyncio.Protocol):
    def __init__(self, host: Host, session_id: str) -> None:
        self._host = host
        self._runtime = host.runtime
        self.session_id = session_id
        self._sessions: dict[str, Session] = {}
        """By directory; all with the one id of this connection."""
        self._wire = ServerWire()
        self._calls: dict[str, tuple[str, asyncio.Task[None]]] = {}
        """By request id: our id of the call, and the task that answers it."""
        self._watching: tuple[str, frozenset[str] | None] | None = None
        """The subscription, and the types it wants."""
        self._attached = ExitStack()
        self._out: list[bytes] = []
        self._paused = False
        self._missed = 0
        self.transport: asyncio.Transport | None = None

    # The transport's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.set_write_buffer_limits(high=_HIGH)
        if not self._host.joined(self):
            transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._attached.close()
        for _, task in self._calls.values():
            task.cancel()
        self._host.left(self)

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

    # Requests.

    def _take(self, request: frames.Request) -> None:
        match request:
            case frames.ToolCall():
                self._take_call(request)
            case frames.CancelToolCall():
                self._cancel(request.request_id)
            case frames.ListTools():
                tools = [describe(tool.definition, tool.timeout_s) for tool in self._tools(request)]
                self._send(frames.ToolsList(request_id=request.request_id, tools=tools))
            case frames.Subscribe():
                self._subscribe(request)
            case frames.Unsubscribe():
                self._watching = None
                self._attached.close()
                self._send(
                    frames.Unsubscribed(
                        request_id=request.request_id, subscription_id=request.subscription_id
                    )
                )
            case frames.ListConfirmations():
                self._host.own(self._list_confirmations(request))
            case frames.AnswerConfirmation():
                self._host.own(self._answer(request))
            case frames.CheckAlive():
                self._send(frames.Alive(request_id=request.request_id))

    def _take_call(self, request: frames.ToolCall) -> None:
        made, error = self._as_call(request)
        if error is None and len(self._calls) >= MOST_CALLS:
            error = ToolProtocolError(
                f"{MOST_CALLS} calls are in flight on this connection.", reason="too_many_calls"
            )
        if error is not None:
            self._result(request.request_id, self._runtime.refuse(made, error))
            return
        task = self._host.own(self._call(request.request_id, made))
        self._calls[request.request_id] = made.id, task

    async def _call(self, request_id: str, made: ToolCall) -> None:
        self._host.follow(made.id, self, request_id)
        try:
            result = await self._runtime.call(made)
        finally:
            self._host.unfollow(made.id)
            self._calls.pop(request_id, None)
        self._result(request_id, result)

    def _cancel(self, request_id: str) -> None:
        found = self._calls.get(request_id)
        if found is not None:
            self._host.own(self._stop(request_id, *found))

    async def _stop(self, request_id: str, call_id: str, task: asyncio.Task[None]) -> None:
        stopping = self._host.own(self._runtime.cancel(call_id))
        await asyncio.wait({task}, timeout=_STOP_S)
        # Its work may not stop at once; its caller need not wait for that.
        self._answer_for(request_id, call_id, ToolCancelled(details={"stopped": False}))
        await stopping

    def _answer_for(self, request_id: str, call_id: str, error: ToolError) -> None:
        """Answer a call whose end has not come; when it comes, nobody is told again."""
        self._host.unfollow(call_id)
        info = ErrorInfo.of(error)
        self._result(
            request_id,
            ToolResult(call_id=call_id, tool="", ok=False, content=[], error=info),
        )

    def _tools(self, request: frames.ListTools) -> list[Any]:
        try:
            session = self._session(request.client_info.cwd)
        except ToolError:
            return []
        return self._runtime.tools(session)

    def _subscribe(self, request: frames.Subscribe) -> None:
        if request.session not in ("own", self.session_id) or request.since is not None:
            self._send(
                frames.Error(
                    request_id=request.request_id,
                    message="A connection sees its own session, from now on.",
                )
            )
            return
        self._attached.close()
        wanted = None if request.types is None else frozenset(request.types)
        self._watching = "sub_" + ulid(), wanted
        if request.confirmer:
            self._attached.enter_context(self._runtime.attach(None, self.session_id))
        self._send(
            frames.Subscribed(request_id=request.request_id, subscription_id=self._watching[0])
        )

    async def _list_confirmations(self, request: frames.ListConfirmations) -> None:
        asked = await self._runtime.open_confirmations(self.session_id)
        listed = [question(each) for each in asked]
        self._send(
            frames.ConfirmationsList(request_id=request.request_id, confirmations=listed)
        )

    async def _answer(self, request: frames.AnswerConfirmation) -> None:
        asked = await self._runtime.open_confirmations(self.session_id)
        shown = {each.id: each.arguments_sha256 for each in asked}
        sha256 = shown.get(request.confirmation_id)
        if sha256 is None or request.arguments_sha256 not in (None, sha256):
            said = "no such question is open" if sha256 is None else "it is about other arguments"
            self._send(frames.Error(request_id=request.request_id, message=said))
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
            if len(self._sessions) >= MOST_CALLS:
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
        if request_id in self._wire.in_flight:
            self._send(frames.ToolResult(request_id=request_id, result=envelope(result)))

    def _send(self, reply: frames.Reply | Fault) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        if not self._out:
            asyncio.get_running_loop().call_soon(self._flush)
        self._out.append(self._wire.encode(reply))

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self.transport is None or self.transport.is_closing():
            return
        self.transport.write(b"".join(out) if len(out) > 1 else out[0])
        if self.transport.get_write_buffer_size() > _TOO_HIGH:
            _log.warning("a peer that does not read was cut")
            self.end("slow_reader", "What was sent was not read.")

    def shut_down(self) -> None:
        """Answer what is still under way, and close."""
        for request_id, (call_id, _) in list(self._calls.items()):
            self._answer_for(request_id, call_id, ToolShuttingDown())
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
