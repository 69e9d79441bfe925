"""MCP over two descriptors, a message a line, until the client goes or a signal comes.

A line that is no message is answered with an error and harms nobody; one that is too long is
let go while it comes. The end of the input stops every call of the client.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from callgate.core.task_sets import start_task
from callgate.protocol.ndjson import Framer
from callgate.surfaces.mcp.pipes import ClientGone, Pipes
from callgate.surfaces.mcp.server import McpServer

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_END_S = 30.0
"""What has not ended by then is left behind."""

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
            loop.remove_signal_handler(each)  # a second one ends us at once
        _end_in_any_case()
        await server.close()
        talking.cancel()
        await asyncio.gather(talking, return_exceptions=True)
    finally:
        ending.cancel()
        pipes.close()


async def serve_pipes(pipes: Pipes, server: McpServer) -> None:
    """Until one side is closed."""
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
            pass  # there is nobody left to read for


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
            await coming.aclose()  # as if it had said that it goes


def _message(line: bytes | None) -> SessionMessage | types.JSONRPCError:
    if line is None:
        return _error(types.INVALID_REQUEST, "The message is too long.")
    try:
        message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError as error:
        if error.errors(include_input=False)[0]["type"] == "json_invalid":
            return _error(types.PARSE_ERROR, "This is no JSON.")
        return _error(types.INVALID_REQUEST, "This is no message of JSON-RPC.")
    if isinstance(message, types.JSONRPCNotification) and _has_id(line):
        return _error(types.INVALID_REQUEST, "An id is a text or a number.")
    return SessionMessage(message)


def _has_id(line: bytes) -> bool:
    """Whether what was read as a notification was meant as a request."""
    if b'"id"' not in line:
        return False
    try:
        return "id" in json.loads(line)
    except (ValueError, RecursionError):  # such as a number that the interpreter does not read
        return True


def _error(code: int, message: str) -> types.JSONRPCError:
    error = types.ErrorData(code=code, message=message)
    return types.JSONRPCError(jsonrpc="2.0", id=None, error=error)


def _line(message: types.JSONRPCMessage) -> bytes:
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"


def _end_in_any_case() -> None:
    """Also if something in this process cannot be stopped."""
    timer = threading.Timer(_END_S, os._exit, (1,))
    timer.daemon = True
    timer.start()
