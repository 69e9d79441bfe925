"""Logs of hosts and MCP servers: a bounded file of stderr and notes, and the last MCP messages.

Messages are bounded in number and bytes. They are stored as received, and redaction happens on
reading, so an unread log costs no redaction.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import msgspec

from callgate.core.local.disk import make_private_directory
from callgate.redaction.data import RedactionLimits, redact_text, redact_within

TAIL = 4_096
"""Bytes of stderr in an error."""
LARGEST = 1024 * 1024
"""Bytes of a log file; the previous file is retained."""
STARTING, PROBLEM = "starting: ", "problem: "
QUARANTINED, RESTARTED = "quarantined", "restarted by hand"
"""Prefixes of the notes about the lifecycle."""
_NOTE = re.compile(rb"^\[callgate [0-9: -]{19}\] (.*)", re.MULTILINE)
_ERROR = re.compile(r"[\w.]*(?:Error|Exception)\b")
_LOOK_AT = 64 * 1024
"""Bytes at the end of a log that are searched for the last problem."""
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class Trouble(NamedTuple):
    problem: str
    given_up: bool
    """Whether it was quarantined."""


def trouble(path: str) -> Trouble | None:
    """Return the last problem in a log file; None if there was a start or restart after it.

    For display only: a host may write anything into its log.
    """
    problem, given_up = None, False
    for note in _notes(path):
        if note.startswith((STARTING, RESTARTED)):
            problem, given_up = None, False
        elif note.startswith(PROBLEM):
            problem = note.removeprefix(PROBLEM)
        elif note == QUARANTINED:
            given_up = True
    return None if problem is None else Trouble(problem, given_up)


def _notes(path: str) -> list[str]:
    try:
        with open(path, "rb") as file:
            file.seek(max(os.fstat(file.fileno()).st_size - _LOOK_AT, 0))
            data = file.read(_LOOK_AT)
    except OSError:
        return []
    return [found.decode("utf-8", "replace") for found in _NOTE.findall(data)]


class LifeLog:
    """The log of one process. Without a path it writes no file."""

    def __init__(self, path: str | None = None) -> None:
        self.path = path
        self._tail = bytearray()
        self._file: int | None = None
        self._size = 0

    @property
    def tail(self) -> str:
        return bytes(self._tail).decode("utf-8", "replace").strip()

    @property
    def last_words(self) -> str:
        """The most relevant line of stderr: the last that names an error, else the last."""
        lines = [line for each in self.tail.splitlines() if (line := each.strip())]
        return ([line for line in lines if _ERROR.match(line)] or lines or [""])[-1]

    def add(self, data: bytes) -> None:
        self._tail += data
        del self._tail[:-TAIL]
        self._write(data)

    def note(self, text: str) -> None:
        """Write a line of callgate's own about the host."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        self._write(f"[callgate {stamp}] {text}\n".encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, data: bytes) -> None:
        if self.path is None:
            return
        try:
            if self._file is None or self._size > LARGEST:
                self._open(self.path)
            assert self._file is not None
            self._size += os.write(self._file, data)
        except OSError:
            self.close()  # a full disk: the tail in memory remains

    def _open(self, path: str) -> None:
        self.close()
        make_private_directory(os.path.dirname(path))
        self._file = os.open(path, _FLAGS, 0o600)
        self._size = os.fstat(self._file).st_size
        if self._size > LARGEST:
            os.replace(path, f"{path}.1")
            os.close(self._file)
            self._file = os.open(path, _FLAGS, 0o600)
            self._size = 0


MOST = 200
"""Maximum messages of one server."""
MOST_BYTES = 1024 * 1024
"""Maximum bytes of all messages of one server."""
LARGEST_MESSAGE = 128 * 1024
"""Maximum bytes of one message; a larger message is stored without its text."""
LONGEST_NAME = 200
"""Maximum characters of a method, and of an id that is matched to an answer."""

Direction = Literal["sent", "received"]
MessageKind = Literal["request", "answer", "error", "notification"]


class LoggedMessage(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    """Counts all messages of the server, including discarded ones."""
    connection: int
    """Counts the server's connections: one for each place in which it runs."""
    direction: Direction
    at: float
    kind: MessageKind
    method: str | None
    """For an answer: the method of its request."""
    duration_ms: float | None
    """For an answer: the time since its request."""
    size: int
    """Bytes."""
    text: str | None
    """JSON, indented and redacted. Untrusted. None: too large to store."""


class _Entry(NamedTuple):
    message: LoggedMessage
    """The message without its text."""
    data: bytes | None


class _Request(NamedTuple):
    method: str
    began: float


class MessageLog:
    def __init__(self, covered: Callable[[str], str] = str) -> None:
        """`covered` removes the server's secrets from a text."""
        self._covered = covered
        self._entries: deque[_Entry] = deque()
        self._bytes = 0
        self._count = 0
        self._connections = 0

    def connection(self) -> ConnectionMessages:
        """Return the log of a new connection."""
        self._connections += 1
        return ConnectionMessages(self, self._connections)

    def add(self, message: LoggedMessage, data: bytes) -> None:
        self._count += 1
        body = data if len(data) <= LARGEST_MESSAGE else None
        self._entries.append(_Entry(msgspec.structs.replace(message, number=self._count), body))
        self._bytes += len(body or b"")
        while len(self._entries) > MOST or self._bytes > MOST_BYTES:
            self._bytes -= len(self._entries.popleft().data or b"")

    def reader(self) -> Callable[[], list[LoggedMessage]]:
        """Return a function that reads the present messages, oldest first, in any thread."""
        entries = tuple(self._entries)
        return lambda: [self._read(each) for each in entries]

    def _read(self, entry: _Entry) -> LoggedMessage:
        def hide(text: str, name: str) -> str:
            return redact_text(self._covered(text), name)

        method = None if entry.message.method is None else hide(entry.message.method, "")
        text = None
        if entry.data is not None:
            value = redact_within(_decoded(entry.data), RedactionLimits(depth=32, text=hide))
            text = json.dumps(value, indent=2, ensure_ascii=False)
        return msgspec.structs.replace(entry.message, method=method, text=text)


class ConnectionMessages:
    """The messages of one connection. Matches answers to requests by id."""

    def __init__(self, log: MessageLog, number: int) -> None:
        self._log = log
        self._number = number
        self._open: dict[tuple[Direction, str | int], _Request] = {}

    def add(self, direction: Direction, message: Any, data: bytes) -> None:
        """Add a JSON-RPC message; `data` is its form on the wire."""
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
        return f"[{len(data)} bytes that are not JSON, or nested too deeply]"
