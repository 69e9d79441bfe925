"""What a host may ask of us for a call that it runs: its files, under the same wall as any tool."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from callgate.core.environment import off_loop
from callgate.core.errors import ToolError, ToolExecutionError, ToolValidationError
from callgate.core.tools import ToolContext
from callgate.dispatch.call_files import UNDECLARED
from callgate.protocol.host_v1 import frames


class RuntimeRequests:
    """Serves the requests of a host for one call, with the context of the call."""

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self._answering: asyncio.Lock | None = None
        """Made with the first request; most calls have none."""
        self.undeclared: str | None = None
        """What it tried although its tool declares to change nothing."""

    async def answer(self, request: frames.OfRuntime) -> Any:
        """The value of a request. Raises a `ToolError`."""
        self._answering = self._answering or asyncio.Lock()
        try:
            async with self._answering:
                return await self._do(request)
        except ToolError as error:
            if error.reason == UNDECLARED:
                self.undeclared = error.message
            raise
        except UnicodeDecodeError:
            raise ToolExecutionError("The file is no UTF-8 text.", reason="not_text") from None
        except OSError as error:
            message = f"{error.strerror}: {getattr(request, 'path', '')}"
            raise ToolExecutionError(message, reason="os_error") from None

    @property
    def any(self) -> bool:
        """Whether the host has asked for anything."""
        return self._answering is not None

    async def ended(self) -> None:
        """Nothing is being done for the host: its call may end before an answer that it did not
        wait for."""
        if self._answering is not None:
            async with self._answering:
                pass

    async def _do(self, request: frames.OfRuntime) -> Any:
        context = self._context
        match request:
            case frames.ReadFile(path=path, encoding=encoding):
                data = context.workspace_files.read_bytes(path)
                return data.decode() if encoding == "utf-8" else base64.b64encode(data).decode()
            case frames.WriteFile(path=path, content=content, encoding=encoding):
                await off_loop(context.workspace_files.write_bytes, path, _bytes(content, encoding))
            case frames.AppendFile(path=path, content=content):
                await off_loop(context.workspace_files.append, path, content)
            case frames.PatchFile(path=path, old=old, new=new):
                await off_loop(context.workspace_files.patch, path, old, new)
            case frames.DeleteFile(path=path):
                await off_loop(context.workspace_files.delete, path)
            case frames.FileExists(path=path):
                return context.workspace_files.exists(path)
            case frames.ListFiles(path=path):
                return context.workspace_files.list(path)
            case frames.KeepArtifact(name=name):
                return context.artifact(name)
            case frames.IsCancelled():
                return context.cancel_event.is_set()
        return None


def _bytes(content: str, encoding: str) -> bytes:
    if encoding == "utf-8":
        return content.encode()
    try:
        return base64.b64decode(content, validate=True)
    except ValueError:
        raise ToolValidationError("content: is not base64") from None
