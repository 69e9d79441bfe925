"""Calls of one connection: their caller, the concurrency limit, and their replies.

    received -> running, up to `MOST_AT_ONCE`       -> answered once, when it ends,
             -> queued, in order of arrival            is cancelled, or the peer disconnects

A peer may declare itself `cli` or `plugin`. The server assigns its session, and its directory must
be served by the instance or trusted by the user. Any other directory is a hint, which is ignored
for a tool without files and processes: its call runs in the instance's own directory.

A call that never waits is answered immediately, without a task or an iteration of the loop. If a
peer sends faster than its calls end, reading pauses (`is_full`) until there is room.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from msgspec import structs

from callgate.core.calls import CallerKind, Diagnostic, ToolCall, ToolResult
from callgate.core.effects import Capability
from callgate.core.errors import ToolCancelled, ToolError, ToolPermissionDenied
from callgate.core.sessions import Client, OpenSession, Session
from callgate.core.tasks import Backpressure, dropped_events
from callgate.protocol.socket_v1 import frames
from callgate.protocol.socket_v1.values import envelope, uncut
from callgate.runtime import Registered, Runtime

if TYPE_CHECKING:
    from callgate.core.ids import TraceContext


_MOST_WORKSPACES = 64
_ACCEPTED_KINDS = {None: CallerKind.CLI, "cli": CallerKind.CLI, "plugin": CallerKind.PLUGIN}
"""Caller by the kind that a peer declares."""
_IN_A_DIRECTORY = frozenset(
    {Capability.WRITES_FILES, Capability.STARTS_PROCESS, Capability.DESTRUCTIVE}
)


_log = logging.getLogger("callgate.socket")

FindTool = Callable[[str, Session], Registered | None]


class IncomingCall(NamedTuple):
    """A requested call."""

    call: ToolCall
    refusal: ToolError | None = None
    """Why it must not run."""
    note: Diagnostic | None = None
    """Diagnostic to add to its result."""


class Caller:
    def __init__(
        self,
        open_session: OpenSession,
        find_tool: FindTool,
        session_id: str,
        *,
        is_traced: bool = False,
    ) -> None:
        """`is_traced`: telemetry is on."""
        self.client: Client | None = None
        """The process at the other end; None until it is identified."""
        self.backpressure: Backpressure | None = None
        """The backpressure of the connection."""
        self._open_session = open_session
        self._find_tool = find_tool
        self._session_id = session_id
        self._is_traced = is_traced
        self._sessions: dict[str, Session] = {}
        """By directory; all have the session id of this connection."""

    @property
    def sessions(self) -> list[Session]:
        return list(self._sessions.values())

    def session(self, cwd: str | None) -> Session:
        """Return the session in a directory of the peer. Raises a `ToolError`."""
        key = cwd or ""
        if key not in self._sessions:
            if len(self._sessions) >= _MOST_WORKSPACES:
                raise ToolPermissionDenied(
                    "The connection uses too many directories.", reason="too_many_workspaces"
                )
            session = self._sessions[key] = self._open_session(cwd, self._session_id)
            session.client = self.client
        return self._sessions[key]

    def call(self, request: frames.ToolCall) -> IncomingCall:
        info = request.client_info
        session, refusal, note = self._sessions.get(info.cwd or ""), None, None
        if session is None:
            session, refusal, note = self._session_for(request)
        call = ToolCall(
            tool=request.tool_name,
            arguments=request.arguments,
            session=session,
            caller=_ACCEPTED_KINDS.get(info.caller) or _unknown(info.caller),
            external_id=request.request_id,
            timeout_s=None if request.timeout_ms is None else request.timeout_ms / 1000,
            scope=_scope(info),
            trace=_trace(info.traceparent) if self._is_traced else None,
            backpressure=self.backpressure,
        )
        return IncomingCall(call, refusal, note)

    def _session_for(
        self, request: frames.ToolCall
    ) -> tuple[Session, ToolError | None, Diagnostic | None]:
        """Return the session of a call, a refusal or None, and a note for the result or None."""
        cwd = request.client_info.cwd
        try:
            return self.session(cwd), None, None
        except ToolError as error:
            refusal = error
        try:
            session = self.session(None)
        except ToolError:
            return Session(workspace="/", id=self._session_id), refusal, None
        tool = self._find_tool(request.tool_name, session)
        if tool is not None and needs_directory(tool):
            return Session(workspace="/", id=self._session_id), refusal, None
        return session, None, Diagnostic(f"clientInfo.cwd is ignored: {refusal.message}", "warn")


def _trace(traceparent: str | None) -> TraceContext | None:
    from callgate.core.ids import parse_traceparent  # lazy: only where telemetry is on  # noqa: PLC0415

    return parse_traceparent(traceparent)


def needs_directory(tool: Registered) -> bool:
    """Whether a tool may access files or start processes."""
    if tool.path_params or tool.definition.sandboxed or tool.capabilities & _IN_A_DIRECTORY:
        return True
    return Capability.READ_ONLY in tool.capabilities and tool.definition.requires_workspace


def _scope(info: frames.ClientInfo) -> dict[str, str] | None:
    if info.cwd is None and info.space_id is None and info.tab_id is None:
        return None
    hints = {"cwd": info.cwd, "spaceId": info.space_id, "tabId": info.tab_id}
    return {key: hint for key, hint in hints.items() if hint is not None}


def _unknown(name: str | None) -> CallerKind:
    _log.warning("a peer declared itself as %.40r and is treated as cli", name)
    return CallerKind.CLI


MOST_AT_ONCE = 64
MOST_WAITING = 1_024
_MOST_WAITING_BYTES = 16 * 1024 * 1024
"""Maximum bytes of queued calls before reading pauses."""


class CallServer(Protocol):
    """The server's interface for calls."""

    runtime: Runtime

    def start_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]: ...


class Calls:
    def __init__(self, host: CallServer, answer: Callable[[str, ToolResult], None]) -> None:
        self._host = host
        self._runtime = host.runtime
        self._answer = answer
        self._running: dict[str, str] = {}
        """Maps request ids to call ids ..."""
        self._requests: dict[str, str] = {}
        """... and call ids to request ids, for calls that have begun."""
        self._waiting: dict[str, ToolCall] = {}
        self._waiting_bytes = 0
        """Bytes received since the queue became non-empty."""
        self._cancelled: set[str] = set()
        """The ids of running calls that are being cancelled."""
        self._closed: ToolError | None = None

    def __len__(self) -> int:
        return len(self._running) + len(self._waiting)

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    @property
    def is_full(self) -> bool:
        many = len(self._waiting) >= MOST_WAITING
        return many or (self.waits and self._waiting_bytes > _MOST_WAITING_BYTES)

    def is_full_with(self, received: int) -> bool:
        """Count bytes received while calls are queued. Return whether the queue is full."""
        self._waiting_bytes += received
        return self.is_full

    def request_of(self, call_id: str) -> str | None:
        """Return the request of a call that has begun and is not answered."""
        return self._requests.get(call_id)

    def take(self, request_id: str, call: ToolCall) -> None:
        if len(self._running) < MOST_AT_ONCE:
            self._running[request_id] = call.id
            self._begin(request_id, call)
        else:
            self._waiting[request_id] = call

    def refuse(self, request_id: str, call: ToolCall, error: ToolError) -> None:
        self._answer(request_id, self._runtime.calls.refuse(call, error))

    def cancel(self, request_id: str) -> None:
        call = self._waiting.pop(request_id, None)
        if call is not None:
            self._forget_bytes()
            self.refuse(request_id, call, ToolCancelled())
            return
        call_id = self._running.get(request_id)
        if call_id is not None and call_id not in self._cancelled:
            self._cancelled.add(call_id)
            self._host.start_task(self._runtime.calls.cancel(call_id))

    def close(self, error: ToolError) -> None:
        """Start no more calls. Refuse queued ones; the server stops running ones."""
        self._closed = error
        waiting, self._waiting = self._waiting, {}
        for request_id, call in waiting.items():
            self.refuse(request_id, call, error)

    def give_up_all(self, error: ToolError) -> None:
        """Answer the running calls now; their later end has no effect."""
        for request_id, call_id in list(self._running.items()):
            if self._end(request_id, call_id):
                self._answer(request_id, self._runtime.calls.give_up(call_id, error))

    def _forget_bytes(self) -> None:
        if not self._waiting:
            self._waiting_bytes = 0

    def _begin(self, request_id: str, call: ToolCall) -> None:
        if self._closed is not None:  # closed before the call began
            self.refuse(request_id, call, self._closed)
            return
        self._requests[call.id] = request_id
        try:
            begun = self._runtime.calls.begin(call)
        except BaseException as error:
            self._end(request_id, call.id)
            if not isinstance(error, asyncio.CancelledError):  # a cancellation needs no report
                raise
        else:
            if isinstance(begun, ToolResult):
                if self._end(request_id, call.id):
                    self._answer(request_id, begun)
            else:
                self._host.start_task(self._finish(request_id, call.id, begun))

    async def _finish(
        self, request_id: str, call_id: str, begun: Coroutine[Any, Any, ToolResult]
    ) -> None:
        is_asked = False
        try:
            result = await begun
        finally:
            is_asked = self._end(request_id, call_id)
        if is_asked:
            self._answer(request_id, result)

    def _end(self, request_id: str, call_id: str) -> bool:
        """End a call; return whether it was unanswered. Its request id may have been reused."""
        self._requests.pop(call_id, None)
        if self._running.get(request_id) != call_id:
            return False
        del self._running[request_id]
        if self._cancelled:
            self._cancelled.discard(call_id)
        if self._waiting:
            following = next(iter(self._waiting))
            call = self._waiting.pop(following)
            self._running[following] = call.id
            # In another iteration of the loop: many calls may be queued, and none may wait.
            asyncio.get_running_loop().call_soon(self._begin, following, call)
            self._forget_bytes()
        return True


class Replies:
    def __init__(self) -> None:
        self._uncut: set[str] = set()
        """Requests in flight that want their result without truncation."""
        self._notes: dict[str, Diagnostic] = {}
        """Diagnostics for the results of requests in flight."""

    def expect(self, request: frames.ToolCall, note: Diagnostic | None) -> None:
        if request.whole:
            self._uncut.add(request.request_id)
        if note is not None:
            self._notes[request.request_id] = note

    def of(self, request_id: str, result: ToolResult, dropped: int = 0) -> frames.ToolResult:
        """Return the frame for the result of a request, and forget the request.

        `dropped` is the number of its events that were not sent.
        """
        note = self._notes.pop(request_id, None) if self._notes else None
        if note is not None:
            result = structs.replace(result, diagnostics=(*result.diagnostics, note))
        if dropped:
            note = Diagnostic(dropped_events(dropped))
            result = structs.replace(result, diagnostics=(*result.diagnostics, note))
        if request_id in self._uncut:
            self._uncut.discard(request_id)
            return uncut(request_id, result)
        return frames.ToolResult(request_id=request_id, result=envelope(result))
