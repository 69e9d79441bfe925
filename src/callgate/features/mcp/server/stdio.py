"""MCP over two descriptors, one message per line, until end of file or a signal."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections import deque
from collections.abc import Callable

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from callgate.core.tasks import start_task
from callgate.features.mcp.server.server import McpServer
from callgate.protocol.strict_json import Framer
from callgate.redaction.frame_log import FrameLog
from callgate.socket.descriptors import Descriptors

_AT_ONCE = 1024 * 1024
"""Maximum number of unread bytes."""


class ClientGone(Exception):
    """The client does not read any more."""


class Pipes:
    """A byte stream over two descriptors, which it owns and closes."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._descriptors = Descriptors(read_fd, write_fd)
        self._received: deque[bytes] = deque()
        self._size = 0
        self._readable = asyncio.Event()
        """Set when data has arrived or the stream has ended."""
        self._ended = False
        self._room = asyncio.Event()
        self._room.set()
        self._closed = False
        self._caught_up: Callable[[], None] | None = None
        self._frames = FrameLog("callgate.mcp.serve")

    async def open(self) -> None:
        await self._descriptors.open(self, self._end)

    async def read(self) -> bytes:
        """Return the next bytes; empty at the end."""
        while not self._received:
            if self._ended:
                return b""
            self._readable.clear()
            await self._readable.wait()
        data = self._received.popleft()
        self._size -= len(data)
        if self._caught_up is not None and self._size <= _AT_ONCE:
            caught_up, self._caught_up = self._caught_up, None
            caught_up()
        return data

    async def write(self, data: bytes) -> None:
        """Write the bytes, and wait while the client does not read. Raises `ClientGone`."""
        if not self._closed:
            self._frames.sent(data)
            self._descriptors.write(data)
            await self._room.wait()
        if self._closed:
            raise ClientGone

    def close(self) -> None:
        """Close the descriptors and drop unwritten data. Idempotent."""
        self._descriptors.close()

    def _end(self) -> None:
        self._ended = True
        self._readable.set()

    # Called by `Descriptors`.

    def feed(self, data: bytes) -> None:
        self._frames.received(data)
        self._received.append(data)
        self._size += len(data)
        self._readable.set()

    def is_behind(self, caught_up: Callable[[], None]) -> bool:
        if self._size <= _AT_ONCE:
            return False
        self._caught_up = caught_up
        return True

    def pause(self) -> None:
        self._room.clear()

    def resume(self) -> None:
        self._room.set()

    def lost(self) -> None:
        self._closed = True
        self._room.set()


_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_END_S = 30.0
"""Time limit of the shutdown; then the process exits."""

Received = SessionMessage | Exception


async def serve(read_fd: int, write_fd: int, server: McpServer) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for each in _SIGNALS:
        loop.add_signal_handler(each, ended.set)
    pipes = Pipes(read_fd, write_fd)
    await pipes.open()
    talking = start_task(serve_pipes(pipes, server))
    ending = start_task(ended.wait())
    try:
        await asyncio.wait([talking, ending], return_when=asyncio.FIRST_COMPLETED)
        for each in _SIGNALS:
            loop.remove_signal_handler(each)  # a second signal ends the process immediately
        _end_in_any_case()
        await server.close()
        talking.cancel()
        await asyncio.gather(talking, return_exceptions=True)
    finally:
        ending.cancel()
        pipes.close()


async def serve_pipes(pipes: Pipes, server: McpServer) -> None:
    """Serve until one side closes."""
    coming, received = anyio.create_memory_object_stream[Received](0)
    sending, sent = anyio.create_memory_object_stream[SessionMessage](0)
    options = server.sdk.create_initialization_options()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read, pipes, coming)
        tasks.start_soon(_write, pipes, sent, coming)
        await server.sdk.run(received, sending, options)
        tasks.cancel_scope.cancel()


async def _read(pipes: Pipes, coming: MemoryObjectSendStream[Received]) -> None:
    framer = Framer()
    async with coming:
        try:
            while data := await pipes.read():
                for line in framer.feed(data):
                    message = _message(line)
                    if isinstance(message, SessionMessage):
                        await coming.send(message)
                    else:
                        await pipes.write(_line(message))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, ClientGone):
            pass  # the client or the server is closed


async def _write(
    pipes: Pipes,
    sent: MemoryObjectReceiveStream[SessionMessage],
    coming: MemoryObjectSendStream[Received],
) -> None:
    async with sent:
        try:
            async for each in sent:
                await pipes.write(_line(each.message))
        except ClientGone:
            await coming.aclose()  # treated as the end of input


def _message(line: bytes | None) -> SessionMessage | types.JSONRPCError:
    if line is None:
        return _error(types.INVALID_REQUEST, "The message is too long.")
    try:
        message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError as error:
        if error.errors(include_input=False)[0]["type"] == "json_invalid":
            return _error(types.PARSE_ERROR, "The message is not JSON.")
        return _error(types.INVALID_REQUEST, "The message is not a JSON-RPC message.")
    if isinstance(message, types.JSONRPCNotification) and _has_id(line):
        return _error(types.INVALID_REQUEST, "The id must be a string or a number.")
    return SessionMessage(message)


def _has_id(line: bytes) -> bool:
    """Return whether an apparent notification is a request with an invalid id."""
    if b'"id"' not in line:
        return False
    try:
        return "id" in json.loads(line)
    except (ValueError, RecursionError):  # such as a number with too many digits
        return True


def _error(code: int, message: str) -> types.JSONRPCError:
    error = types.ErrorData(code=code, message=message)
    return types.JSONRPCError(jsonrpc="2.0", id=None, error=error)


def _line(message: types.JSONRPCMessage) -> bytes:
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"


def _end_in_any_case() -> None:
    """Exit the process after `_END_S`, even if a part of it cannot be stopped."""
    timer = threading.Timer(_END_S, os._exit, (1,))
    timer.daemon = True
    timer.start()
