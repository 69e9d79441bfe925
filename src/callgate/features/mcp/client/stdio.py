"""Process of an MCP server as a pair of SDK streams, with one JSON message per line."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import anyio
import mcp_types
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from callgate.core.commands import Exit, Running, Stream, watch_writes
from callgate.core.tasks import start_task
from callgate.features.mcp.client.processes import Access, EarlyStart
from callgate.protocol.host_v1.frames import excerpt
from callgate.protocol.strict_json import Framer, StrictJsonError, loads
from callgate.redaction.frame_log import FrameLog
from callgate.sources.host_links import LEAVE_S, TERM_S
from callgate.sources.logs import LifeLog

TELLING = frozenset(
    {
        "notifications/progress",
        "notifications/cancelled",
        "notifications/elicitation/complete",
        "notifications/tools/list_changed",
        "notifications/resources/list_changed",
        "notifications/resources/updated",
        "notifications/prompts/list_changed",
        "notifications/subscriptions/acknowledged",
    }
)
MESSAGE = "notifications/message"
PER_SECOND = 500
"""Maximum number of forwarded notifications per second; the others are dropped."""
MOST_NOISE = 200_000
"""Maximum number of lines within `WITHIN_S` that are invalid, unknown, dropped or log messages; a
server that sends more is stopped."""
WITHIN_S = 60.0
NOTED = 100
"""Maximum number of such lines in the log, within `WITHIN_S`."""
_HEAD = 512
_ID = re.compile(rb'"id"\s*:\s*(\d{1,18}|"(?:[^"\\]|\\.){1,128}")')
INVALID = -32600


class Lines:
    def __init__(self) -> None:
        self._framer = Framer(head=_HEAD)
        self._noise = 0
        self._since = time.monotonic()
        self._second = 0.0
        self._notifications = 0
        self.notes: list[str] = []
        """Notes for the log; the caller clears them."""
        self.hopeless = False

    def drop(self) -> None:
        """Discard an unfinished line."""
        self._framer.drop()

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        for line in self._framer.feed(data):
            if line is None:
                yield from self._spoilt(self._framer.heads.popleft(), "it is too long")
                continue
            try:
                message = loads(line)
            except StrictJsonError as error:
                if line.startswith(b"{"):
                    yield from self._spoilt(line[:_HEAD], str(error))
                else:
                    self._pass_over("not JSON", line)
                continue
            if type(message) is not dict or message.get("jsonrpc") != "2.0":
                self._pass_over("not a message", line)
            elif "id" in message or self._tells(message):
                yield message

    def _tells(self, message: dict[str, Any]) -> bool:
        """Return whether to forward a notification. Unknown methods and excess ones are dropped."""
        method = message.get("method")
        if method == MESSAGE:
            params = message.get("params")
            data = params.get("data") if isinstance(params, dict) else None
            self._note(f"it logs: {excerpt(str(data))}")
        elif method not in TELLING:
            self._pass_over("unknown notification", str(method))
            return False
        now = time.monotonic()
        if now - self._second >= 1.0:
            self._second, self._notifications = now, 0
        self._notifications += 1
        if self._notifications > PER_SECOND:
            self._count()
            return False
        return True

    def _spoilt(self, head: bytes, why: str) -> Iterator[dict[str, Any]]:
        """Answer the request of an unreadable response with an error, if its id is readable."""
        self._pass_over(why, head)
        found = _ID.search(head)
        if found is not None and b'"method"' not in head:
            error = {"code": INVALID, "message": f"the response is invalid: {why}"}
            yield {"jsonrpc": "2.0", "id": loads(found[1]), "error": error}

    def _pass_over(self, why: str, line: str | bytes) -> None:
        self._note(f"ignored ({why}): {excerpt(line)}")

    def _note(self, text: str) -> None:
        self._count()
        if self._noise <= NOTED:
            self.notes.append(text)
        elif self._noise == NOTED + 1:
            self.notes.append("more lines were ignored and are not logged")

    def _count(self) -> None:
        now = time.monotonic()
        if now - self._since > WITHIN_S:
            self._since, self._noise = now, 0
        self._noise += 1
        self.hopeless = self.hopeless or self._noise > MOST_NOISE


MOST_WAITING = 20_000
"""Maximum number of unread messages; a server that sends more is stopped."""


class Link:
    """Context manager of a process: entering returns its two streams, leaving stops it."""

    def __init__(
        self, process: EarlyStart, log: LifeLog, access: Callable[[], Access] | None = None
    ) -> None:
        """`access`: the process's access in the sandbox; None without a sandbox."""
        self._process = process
        self._log = log
        self._access = access
        self._explained: set[str] = set()
        self._lines = Lines()
        self._given_up = False
        self._into, self._out = anyio.create_memory_object_stream[SessionMessage | Exception](
            MOST_WAITING
        )
        self._sink = _Sink()
        self._running: Running | None = None
        self._watching: asyncio.Task[None] | None = None
        self.ended = asyncio.Event()
        """Set when the process ends. The connection replaces it with its own event."""
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
        self._running, stdin = self._process.take(self._hear)
        self._watching = start_task(self._await_end(self._running))
        await self._sink.open(stdin)

    async def __aexit__(self, *_: object) -> None:
        """Close stdin, and stop the process if it does not exit."""
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
        """Report the next forbidden write, if the platform can detect it."""
        watch_writes(self._running, report)

    def explain(self, text: str) -> str:
        """Return the refusals of the sandbox behind an error text; empty if there are none.

        They include each blocked host that is new or appears in the text.
        """
        if self._access is None:
            return ""
        refused: tuple[str, ...] = getattr(self._running, "blocked", ())
        blocked = [
            each
            for each in refused
            if each not in self._explained or each.rpartition(":")[0] in text
        ]
        self._explained.update(blocked)
        return self._access().explain(text, blocked)

    def kill(self) -> None:
        """Stop the process and its children immediately."""
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
            self._log.note("stopped: too many lines that are not protocol messages")
            self.kill()

    def _take(self, message: dict[str, Any]) -> None:
        try:
            read = mcp_types.jsonrpc_message_adapter.validate_python(message, by_name=False)
        except ValidationError:
            self._log.note(f"ignored (not a message): {excerpt(str(message)[:1_000])}")
            return
        try:
            self._into.send_nowait(SessionMessage(read))
        except anyio.WouldBlock:
            self._log.note("stopped: it sends messages faster than callgate reads them")
            self.kill()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the reading side is closed

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


class _Sink(asyncio.Protocol):
    """The stdin of a process, with backpressure: `send` waits while the process does not read."""

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

    async def __aexit__(self, *_: object) -> None:
        self.close()
