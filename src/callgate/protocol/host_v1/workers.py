"""Requests of a server to a remote worker: a host's methods, and three more.

    locate_call      resolve the paths of a call on the worker, and describe its sandbox
    preview_call     preview the effect of the call, for the approver
    list_changes     list the calls of a session whose changes can be undone on the worker

A worker is a host at the other end of a WebSocket, one frame per message. The `context` of a call
has all further data: the server has decided about the call, the worker only confines it to its
workspace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from callgate.core.sessions import ResolvedPath
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
"""Version of this protocol; a worker with another one is refused."""
SERVER = "the server's settings"
"""Origin of a server's rules, without the paths of its files, which a worker need not know."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A value inside a frame."""


class WorkerContext(CallContext, frozen=True, kw_only=True):
    """Origin of a call, and the decision about it. `workspace_path` has the spelling of
    `core.sessions`."""

    call_id: str
    caller: str
    mode: str
    timeout_s: float | None = None
    rules: list[Object] = []
    """Rules of the server for files and commands (`policy.rules.Rule`)."""
    judged: list[str] | None = None
    """The real paths in the decision about the call; if they have changed, it is refused. None:
    there is no decision yet."""


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
    """Result of `locate_call`."""

    resolved_paths: tuple[ResolvedPath, ...] = ()
    named: tuple[ResolvedPath, ...] = ()
    enclosure: Object | None = None


class Description(_Part, frozen=True, kw_only=True):
    """Capabilities of a worker: the result of `init`."""

    version: str
    platform: str
    workspaces: list[Name]
    slots: int = 8
    """Maximum concurrent calls."""
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
    """Return the request with these params to a worker."""
    return Request(id=id, method=_NAMES[type(params)], params=params)
