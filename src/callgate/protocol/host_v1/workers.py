"""What a server asks of a remote worker: a host's methods, and three more.

    locate_call      where the arguments of a call lead there, and what its commands run in
    preview_call     what the call would do, for the person who is asked about it
    list_changes     the calls of a session whose changes can be undone there

A worker is a host at the other end of a WebSocket, one frame a message. What a call of it needs
beside its arguments, its `context` says: the server has judged the call, the worker only keeps it
within its workspace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from callgate.core.resolved_paths import ResolvedPath
from callgate.protocol.host_v1.frames import (
    CallContext,
    Cancel,
    ExecuteTool,
    GetToolSchemas,
    Init,
    Name,
    Object,
    Request,
)

VERSION = 1
"""Of this protocol: a worker of another one is refused."""
SERVER = "the server's settings"
"""Where rules come from that a server sends: its paths are no business of a worker."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A value inside a frame."""


class WorkerContext(CallContext, frozen=True, kw_only=True):
    """Where a call comes from, and what was decided about it. `workspace_path` has the spelling
    of `core.sessions`."""

    call_id: str
    caller: str
    mode: str
    timeout_s: float | None = None
    rules: list[Object] = []
    """Those of the server that bind files and commands (`policy.rules.Rule`)."""
    judged: list[str] | None = None
    """The real paths that the call was judged with: if they lead elsewhere by now, it is refused.
    None: it has not been judged."""


class RunTool(ExecuteTool, frozen=True, kw_only=True):
    context: WorkerContext


class LocateCall(_Part, frozen=True, kw_only=True):
    tool_name: Name
    arguments: Object = {}
    context: WorkerContext


class PreviewCall(LocateCall, frozen=True, kw_only=True):
    pass


class ListChanges(_Part, frozen=True, kw_only=True):
    session_id: Name


class Located(_Part, frozen=True, kw_only=True):
    """The value of `locate_call`."""

    resolved_paths: tuple[ResolvedPath, ...] = ()
    named: tuple[ResolvedPath, ...] = ()
    enclosure: Object | None = None


class Description(_Part, frozen=True, kw_only=True):
    """What a worker says of itself: the value of `init`."""

    version: str
    platform: str
    workspaces: list[Name]
    slots: int = 8
    """Calls that it runs at once."""
    sandbox: str = ""


OF_WORKER: Mapping[str, type[Any]] = {
    "init": Init,
    "get_tool_schemas": GetToolSchemas,
    "execute_tool": RunTool,
    "cancel": Cancel,
    "locate_call": LocateCall,
    "preview_call": PreviewCall,
    "list_changes": ListChanges,
}
_NAMES = {kind: name for name, kind in OF_WORKER.items()}


def ask(id: str, params: Any) -> Request[Any]:
    """The request with these params to a worker."""
    return Request(id=id, method=_NAMES[type(params)], params=params)
