"""Who makes the calls of one connection, and where: little of it is what the peer says.

It may call itself `cli` or `plugin`. Its session is given to it, and its directory is one that
the instance serves or the user trusts. Any other directory is a hint, which a tool that touches
no files and starts no processes does not need: its call is run in the instance's own directory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from callgate.core.calls import CallerKind, ToolCall
from callgate.core.clients import Client
from callgate.core.effects import Capability
from callgate.core.errors import ToolError, ToolPermissionDenied
from callgate.core.pacing.backpressure import Backpressure
from callgate.core.results import Diagnostic
from callgate.core.sessions import Session
from callgate.protocol.socket_v1 import frames
from callgate.runtime import Registered

_MOST_WORKSPACES = 64
_ACCEPTED_KINDS = {None: CallerKind.CLI, "cli": CallerKind.CLI, "plugin": CallerKind.PLUGIN}
"""By what a peer calls itself."""
_IN_A_DIRECTORY = frozenset(
    {Capability.WRITES_FILES, Capability.STARTS_PROCESS, Capability.DESTRUCTIVE}
)

if TYPE_CHECKING:
    from callgate.core.text.traces import TraceContext

_log = logging.getLogger("callgate.socket")

OpenSession = Callable[[str | None, str], Session]
"""A session for a peer's directory, with the id of its connection. Raises a `ToolError`."""
FindTool = Callable[[str, Session], Registered | None]


class IncomingCall(NamedTuple):
    """The call that was asked for."""

    call: ToolCall
    refusal: ToolError | None = None
    """Why it is not to be run."""
    note: Diagnostic | None = None
    """What is to be said beside its result."""


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
        """The process at the other end; None until it is known."""
        self.backpressure: Backpressure | None = None
        """Of the connection."""
        self._open_session = open_session
        self._find_tool = find_tool
        self._session_id = session_id
        self._is_traced = is_traced
        self._sessions: dict[str, Session] = {}
        """By directory; all with the one id of this connection."""

    @property
    def sessions(self) -> list[Session]:
        return list(self._sessions.values())

    def session(self, cwd: str | None) -> Session:
        """The session in a directory of the peer's. Raises a `ToolError`."""
        key = cwd or ""
        if key not in self._sessions:
            if len(self._sessions) >= _MOST_WORKSPACES:
                raise ToolPermissionDenied(
                    "A connection works in few directories.", reason="too_many_workspaces"
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
        """Where a call works, or why it does not, and what its caller has to know of that."""
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
    from callgate.core.text.traces import parse_traceparent  # lazy: only where telemetry is on  # noqa: PLC0415

    return parse_traceparent(traceparent)


def needs_directory(tool: Registered) -> bool:
    """Whether a tool may touch files or start processes."""
    if tool.path_params or tool.definition.sandboxed or tool.capabilities & _IN_A_DIRECTORY:
        return True
    return Capability.READ_ONLY in tool.capabilities and tool.definition.requires_workspace


def _scope(info: frames.ClientInfo) -> dict[str, str] | None:
    if info.cwd is None and info.space_id is None and info.tab_id is None:
        return None
    hints = {"cwd": info.cwd, "spaceId": info.space_id, "tabId": info.tab_id}
    return {key: hint for key, hint in hints.items() if hint is not None}


def _unknown(name: str | None) -> CallerKind:
    _log.warning("a peer called itself %.40r and is treated as cli", name)
    return CallerKind.CLI
