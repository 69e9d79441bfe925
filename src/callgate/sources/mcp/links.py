"""The process of an MCP server, as the streams on which the SDK speaks.

    stdin  <- what the SDK sends           stdout -> `lines` -> what the SDK receives
    stderr -> its log                      its end -> the stream ends: every request is answered

The SDK would start the process itself; ours are started by the launcher alone, which puts a
jail around them and ends the whole tree.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import anyio
import mcp_types
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from callgate.core.commands import Command, Exit, Launcher, Running, Stream, watch_writes
from callgate.core.errors import ToolError
from callgate.core.task_sets import start_task
from callgate.protocol.host_v1.excerpts import excerpt
from callgate.redaction.frame_log import FrameLog
from callgate.sources.hosts.links import LEAVE_S, TERM_S
from callgate.sources.logs import LifeLog
from callgate.sources.mcp.lines import Lines

MOST_WAITING = 20_000
"""Messages that wait to be looked at: who sends more at once floods us."""


class Link:
    """Enter it for the two streams; leave it, and nothing of the process is left."""

    def __init__(self, launcher: Launcher, command: Command, log: LifeLog) -> None:
        self._launcher = launcher
        self._command = command
        self._log = log
        self._lines = Lines()
        self._given_up = False
        self._into, self._out = anyio.create_memory_object_stream[SessionMessage | Exception](
            MOST_WAITING
        )
        self._sink = _Sink()
        self._running: Running | None = None
        self._watching: asyncio.Task[None] | None = None
        self.ended = asyncio.Event()
        """Whoever has to know at once may put an event of their own here."""
        self.exit: Exit | None = None

    async def __aenter__(
        self,
    ) -> tuple[MemoryObjectReceiveStream[SessionMessage | Exception], _Sink]:
        try:
            await self._start()
        except BaseException:
            self._close()
            raise
        return self._out, self._sink

    async def _start(self) -> None:
        theirs, ours = os.pipe()
        try:
            command = msgspec.structs.replace(self._command, stdin=theirs)
            self._running = await self._launcher.start(command, self._hear)
        except OSError as error:
            os.close(ours)
            raise _not_started(command.argv[0], error) from error
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        self._watching = start_task(self._await_end(self._running))
        await self._sink.open(ours)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Its stdin ends; if it does not end by that, it is ended."""
        self._sink.close()
        self._into.close()
        running = self._running
        if running is not None and self._watching is not None:
            waiting = asyncio.get_running_loop().call_later(LEAVE_S, running.stop, TERM_S)
            try:
                await asyncio.shield(self._watching)
            except asyncio.CancelledError:
                running.stop(0.0)
                raise
            finally:
                waiting.cancel()
        self._close()

    def watch_writes(self, report: Callable[[str], None]) -> None:
        """Tell of its next attempt to write where it may not, if that can be seen."""
        watch_writes(self._running, report)

    def kill(self) -> None:
        """End it and all that it started, now."""
        if self._running is not None:
            self._running.stop(0.0)

    def _hear(self, stream: Stream, data: bytes) -> None:
        if stream == "stderr":
            self._log.add(data)
            return
        if self._given_up:
            return
        self._sink.frames.received(data)
        for message in self._lines.feed(data):
            self._take(message)
        for note in self._lines.notes:
            self._log.note(note)
        self._lines.notes.clear()
        if self._lines.hopeless:
            self._given_up = True
            self._log.note("ended: it says too much that means nothing")
            self.kill()

    def _take(self, message: dict[str, Any]) -> None:
        try:
            read = mcp_types.jsonrpc_message_adapter.validate_python(message, by_name=False)
        except ValidationError:
            self._log.note(f"passed over (no message): {excerpt(str(message)[:1_000])}")
            return
        try:
            self._into.send_nowait(SessionMessage(read))
        except anyio.WouldBlock:
            self._log.note("ended: it says more than anybody can take in")
            self.kill()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # nobody listens any more

    async def _await_end(self, running: Running) -> None:
        self.exit = await running.wait()
        self._lines.drop()
        self._sink.close()
        self._into.close()
        self.ended.set()

    def _close(self) -> None:
        self._sink.close()
        self._into.close()
        self._out.close()


def _not_started(program: str, error: OSError) -> ToolError:
    why = error.strerror or str(error)
    if isinstance(error, FileNotFoundError):
        why = "there is no such program, or none that the sandbox shows it"
    return ToolError(f"{program} cannot be started: {why}")


class _Sink(asyncio.Protocol):
    """The stdin of a process: whoever sends waits while it does not read."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._closed = False
        self.frames = FrameLog("callgate.mcp")

    async def open(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        pipe = os.fdopen(descriptor, "wb", buffering=0)
        try:
            loop = asyncio.get_running_loop()
            self._transport, _ = await loop.connect_write_pipe(lambda: self, pipe)
        except BaseException:
            pipe.close()
            raise
        if self._closed:
            self._transport.abort()

    async def send(self, item: SessionMessage, /) -> None:
        text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        await self._room.wait()
        if self._transport is None or self._closed or self._transport.is_closing():
            raise anyio.BrokenResourceError
        line = text.encode("utf-8", "replace") + b"\n"
        self.frames.sent(line)
        self._transport.write(line)

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.close()

    def close(self) -> None:
        self._closed = True
        self._room.set()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    async def aclose(self) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
