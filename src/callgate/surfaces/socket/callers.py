"""Who makes the calls of one connection, and where: little of it is what the peer says.

It may call itself `cli` or `plugin`. Its session is given to it, and its directory is one that
the instance serves or the user trusts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from callgate.core.calls import CallerKind, ToolCall
from callgate.core.clients import Client
from callgate.core.errors import ToolError, ToolPermissionDenied
from callgate.core.sessions import Session
from callgate.protocol.socket_v1 import frames

_MOST_WORKSPACES = 64
_KEPT = frozenset({CallerKind.CLI, CallerKind.PLUGIN})

_log = logging.getLogger("callgate.socket")

OpenSession = Callable[[str | None, str], Session]
"""A session for a peer's directory, with the id of its connection. Raises a `ToolError`."""


class Caller:
    def __init__(self, open_session: OpenSession, session_id: str) -> None:
        self.client: Client | None = None
        """The process at the other end; None until it is known."""
        self._open_session = open_session
        self._session_id = session_id
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

    def call(self, request: frames.ToolCall) -> tuple[ToolCall, ToolError | None]:
        """The call that was asked for, and why it is not to be run."""
        info, error = request.client_info, None
        try:
            session = self.session(info.cwd)
        except ToolError as refusal:
            session, error = Session(workspace="/", id=self._session_id), refusal
        hints = {"cwd": info.cwd, "spaceId": info.space_id, "tabId": info.tab_id}
        return (
            ToolCall(
                tool=request.tool_name,
                arguments=request.arguments,
                session=session,
                caller=_kind(info.caller),
                external_id=request.request_id,
                timeout_s=None if request.timeout_ms is None else request.timeout_ms / 1000,
                scope={key: hint for key, hint in hints.items() if hint is not None} or None,
            ),
            error,
        )


def _kind(said: str | None) -> CallerKind:
    if said is None or said in _KEPT:
        return CallerKind(said or CallerKind.CLI)
    _log.warning("a peer called itself %.40r and is treated as cli", said)
    return CallerKind.CLI
