"""What a tool in a host may use: the same `ToolContext`, with the runtime behind it.

Progress, output and log lines become events of the call. Files are the runtime's: each
operation is a request to it, and is judged there like one of a tool in its own process.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
from functools import partial
from typing import Any

from msgspec import UNSET

from callgate.core.environment import WorkspaceFiles
from callgate.core.tools import OutputStream, ToolContext
from callgate.host.pipes import Call, Pipe
from callgate.host.plain import plain
from callgate.protocol.host_v1 import frames, parts

_NOWHERE = frames.CallContext(session_id="", tool_use_id="", workspace_path="")


class HostContext(ToolContext):
    __slots__ = ("_pipe", "_traceparent", "request")

    def __init__(self, request: frames.Request[frames.ExecuteTool], pipe: Pipe) -> None:
        given = request.params.context
        context = _NOWHERE if given is UNSET else given
        self.request = Call(request.id)
        self.session_id = context.session_id
        self.turn_id = context.turn_id
        self.tool_use_id = context.tool_use_id or request.id
        self.workspace_path = context.workspace_path or os.getcwd()
        self.scope = context.scope or None
        self._cancel_event = asyncio.Event()
        self._logger = self._files = self._environment = self._launcher = None
        self._pipe = pipe
        self.trace = None
        self._traceparent = request.params.traceparent

    @property
    def traceparent(self) -> str | None:
        return None if self._traceparent is UNSET else self._traceparent

    @property
    def call(self) -> str:
        """The id under which the runtime knows it on this pipe."""
        return self.request.id

    @property
    def logger(self) -> logging.Logger | logging.LoggerAdapter[logging.Logger]:
        if self._logger is None:
            logger = logging.Logger("callgate.tool", logging.INFO)  # of nobody else's tree
            logger.addHandler(_Telling(self))
            self._logger = logger
        return self._logger

    def progress(self, message: str | None = None, fraction: float | None = None) -> None:
        self._pipe.emit(self.request, parts.progress(message, fraction))

    def output(self, text: str, stream: OutputStream = "text") -> None:
        self._pipe.emit(self.request, parts.output(text, stream))

    def log(self, message: str, level: str = "info") -> None:
        self._pipe.emit(self.request, parts.log(message, level))

    def emit(self, event: Any) -> bool:
        """A plugin's `emit`: an event with a type, or else the payload of a part.

        False if it was not said, because the call is over. Raises `Unsendable`.
        """
        kind, payload = "part", event
        if type(event) is dict and type(event.get("type")) is str:
            kind, payload = event["type"], event.get("payload")
        return self._pipe.emit(self.request, frames.Event(type=kind, payload=plain(payload)))

    def is_cancelled(self) -> bool:
        """Whether somebody wants the call to stop, as the runtime knows it now."""
        if self.cancel_event.is_set() or not self._pipe.agreed_on("is_cancelled"):
            return self.cancel_event.is_set()
        return self._pipe.ask(self.request, frames.IsCancelled(call=self.call)) is True

    def _open_files(self) -> WorkspaceFiles:
        return HostFiles(self.request, self.workspace_path, self._pipe)

    def _artifact(self, name: str) -> str | None:
        request = frames.KeepArtifact(call=self.call, name=name)
        path: str | None = self._pipe.ask(self.request, request)
        return path


class _Telling(logging.Handler):
    """From the log of one call to its events."""

    def __init__(self, context: HostContext) -> None:
        super().__init__()
        self._context = context

    def emit(self, record: logging.LogRecord) -> None:
        self._context.log(self.format(record), record.levelname.lower())


class HostFiles:
    """The files of the session's workspace, over the pipe."""

    def __init__(self, call: Call, workspace_root: str, pipe: Pipe) -> None:
        self._call = call.id
        self._ask = partial(pipe.ask, call)
        self.workspace_root = workspace_root

    def read(self, path: str) -> str:
        content: str = self._ask(frames.ReadFile(call=self._call, path=path))
        return content

    def read_bytes(self, path: str) -> bytes:
        request = frames.ReadFile(call=self._call, path=path, encoding="base64")
        return base64.b64decode(self._ask(request))

    def write(self, path: str, content: str) -> None:
        self._ask(frames.WriteFile(call=self._call, path=path, content=content))

    def write_bytes(self, path: str, content: bytes) -> None:
        text = base64.b64encode(content).decode()
        self._ask(frames.WriteFile(call=self._call, path=path, content=text, encoding="base64"))

    def append(self, path: str, content: str) -> None:
        self._ask(frames.AppendFile(call=self._call, path=path, content=content))

    def exists(self, path: str) -> bool:
        return self._ask(frames.FileExists(call=self._call, path=path)) is True

    def list(self, path: str) -> list[str]:
        names: list[str] = self._ask(frames.ListFiles(call=self._call, path=path))
        return names

    def delete(self, path: str) -> None:
        self._ask(frames.DeleteFile(call=self._call, path=path))

    def patch(self, path: str, old: str, new: str) -> None:
        self._ask(frames.PatchFile(call=self._call, path=path, old=old, new=new))
