"""The last messages between us and one MCP server, in memory, for a person who looks for a fault.

What is kept is bounded in number and bytes, whatever the server sends. It is kept as it was on the
wire and redacted when it is read: a server that nobody looks at costs no redaction.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import msgspec

from callgate.redaction.data import Limits, redact_text, redact_within

MOST = 200
"""Messages of one server."""
MOST_BYTES = 1024 * 1024
"""Of them all."""
LARGEST = 128 * 1024
"""Bytes of one message; of a larger one only its size is kept."""
LONGEST_NAME = 200
"""Characters of a method, and of an id that an answer is found by."""

Direction = Literal["sent", "received"]
MessageKind = Literal["request", "answer", "error", "notification"]


class LoggedMessage(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    """Counts all messages of the server, also those that are no longer here."""
    connection: int
    """Counts its connections: one for each place in which it runs."""
    direction: Direction
    at: float
    kind: MessageKind
    method: str | None
    """Of an answer, the method of its request."""
    duration_ms: float | None
    """Of an answer, the time since its request."""
    size: int
    """Bytes."""
    text: str | None
    """JSON, indented and redacted. It is the word of the server. None: it was too large to keep."""


class _Entry(NamedTuple):
    message: LoggedMessage
    """Without its text."""
    data: bytes | None


class _Request(NamedTuple):
    method: str
    began: float


class MessageLog:
    def __init__(self, covered: Callable[[str], str] = str) -> None:
        """`covered` takes what the server was given in secret out of a text."""
        self._covered = covered
        self._entries: deque[_Entry] = deque()
        self._bytes = 0
        self._count = 0
        self._connections = 0

    def connection(self) -> ConnectionMessages:
        """For a connection that is being opened."""
        self._connections += 1
        return ConnectionMessages(self, self._connections)

    def add(self, message: LoggedMessage, data: bytes) -> None:
        self._count += 1
        body = data if len(data) <= LARGEST else None
        self._entries.append(_Entry(msgspec.structs.replace(message, number=self._count), body))
        self._bytes += len(body or b"")
        while len(self._entries) > MOST or self._bytes > MOST_BYTES:
            self._bytes -= len(self._entries.popleft().data or b"")

    def reader(self) -> Callable[[], list[LoggedMessage]]:
        """Reads the messages that are here now, oldest first; good for another thread."""
        entries = tuple(self._entries)
        return lambda: [self._read(each) for each in entries]

    def _read(self, entry: _Entry) -> LoggedMessage:
        def hide(text: str, name: str) -> str:
            return redact_text(self._covered(text), name)

        method = None if entry.message.method is None else hide(entry.message.method, "")
        text = None
        if entry.data is not None:
            value = redact_within(_decoded(entry.data), Limits(depth=32, text=hide))
            text = json.dumps(value, indent=2, ensure_ascii=False)
        return msgspec.structs.replace(entry.message, method=method, text=text)


class ConnectionMessages:
    """Tells which answer belongs to which request: ids are those of one connection."""

    def __init__(self, log: MessageLog, number: int) -> None:
        self._log = log
        self._number = number
        self._open: dict[tuple[Direction, str | int], _Request] = {}

    def add(self, direction: Direction, message: Any, data: bytes) -> None:
        """`message` is one of JSON-RPC, `data` what it is on the wire."""
        id, method = getattr(message, "id", None), getattr(message, "method", None)
        kind, duration = _kind(message, id, method), None
        if method is not None:
            method = method[:LONGEST_NAME]
            self._begin(direction, id, method)
        elif (request := self._answered(direction, id)) is not None:
            method = request.method
            duration = round((time.perf_counter() - request.began) * 1e3, 3)
        logged = LoggedMessage(
            number=0,
            connection=self._number,
            direction=direction,
            at=time.time(),
            kind=kind,
            method=method,
            duration_ms=duration,
            size=len(data),
            text=None,
        )
        self._log.add(logged, data)

    def _begin(self, direction: Direction, id: str | int | None, method: str) -> None:
        if id is None or len(str(id)) > LONGEST_NAME:
            return
        self._open[direction, id] = _Request(method, time.perf_counter())
        if len(self._open) > MOST:
            del self._open[next(iter(self._open))]

    def _answered(self, direction: Direction, id: str | int | None) -> _Request | None:
        request_direction: Direction = "sent" if direction == "received" else "received"
        return None if id is None else self._open.pop((request_direction, id), None)


def _kind(message: Any, id: object, method: str | None) -> MessageKind:
    if method is not None:
        return "notification" if id is None else "request"
    return "error" if hasattr(message, "error") else "answer"


def _decoded(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return f"[{len(data)} bytes that are no JSON, or nested too deeply]"
