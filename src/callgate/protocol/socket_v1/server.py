"""The server's side of one connection: requests in, answers out, each request id its own.

A request id belongs to one request from its arrival to its final answer; only then may the
peer use it again. Events and results go out under ids in flight and under no others.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET

from callgate.protocol.ndjson import MAX_LINE, Framer, Unsendable, line
from callgate.protocol.socket_v1 import frames
from callgate.protocol.socket_v1.frames import ANSWERS, Code, Reply, Request
from callgate.protocol.socket_v1.requests import Fault, fault, read

_HOPELESS = 2 * MAX_LINE
_WITHOUT_ANSWER = (Fault, frames.CancelToolCall)
_WITHOUT_REQUEST = (frames.Event, frames.Closing)


class ServerWire:
    __slots__ = ("_framer", "_in_flight")

    def __init__(self) -> None:
        self._framer = Framer()
        self._in_flight: dict[str, type] = {}
        """By request id: the frame that will answer it."""

    @property
    def in_flight(self) -> Mapping[str, type]:
        """The requests that have no final answer yet, each with the frame that will be it."""
        return self._in_flight

    @property
    def hopeless(self) -> bool:
        """A line has gone on for so long that the peer cannot be speaking this protocol."""
        return self._framer.longest > _HOPELESS

    @property
    def unfinished(self) -> int:
        """Bytes of a request that has not ended."""
        return self._framer.unfinished

    def drop(self) -> None:
        """Let go of a request that will not end."""
        self._framer.drop()

    def receive(self, data: bytes) -> list[Request | Fault]:
        """What the bytes complete: for each line that is not blank exactly one of these."""
        return [self._take(each) for each in self._framer.feed(data)]

    def _take(self, received: bytes | None) -> Request | Fault:
        if received is None:
            return fault("size", f"A frame has at most {MAX_LINE} bytes.")
        request = read(received)
        if isinstance(request, _WITHOUT_ANSWER):
            return request
        id = request.request_id
        if id is not UNSET:
            if id in self._in_flight:
                return fault("request_id", "This requestId is in flight on this connection.", id)
            self._in_flight[id] = ANSWERS[type(request)]
        return request

    def encode(self, reply: Reply | Fault) -> bytes:
        """The reply's line. `ValueError` if it answers what was not asked or has been answered.

        A result that cannot be sent becomes a failure, another answer an error; an event
        raises `Unsendable`.
        """
        if isinstance(reply, frames.ToolResult):
            return self._result(reply)
        if isinstance(reply, Fault):
            return line(reply.error)
        if isinstance(reply, _WITHOUT_REQUEST):
            return line(reply)
        id = reply.request_id
        if isinstance(reply, frames.ToolEvent):
            self._expect(reply.request_id, frames.ToolResult)
            return line(reply)
        if id is not UNSET and isinstance(reply, frames.Error):
            if self._in_flight.get(id, frames.ToolResult) is frames.ToolResult:
                raise ValueError(f"request {id!r} cannot be answered by an error frame")
        elif id is not UNSET:
            self._expect(id, type(reply))
        data = _answer(reply)
        if id is not UNSET:
            del self._in_flight[id]
        return data

    def _result(self, reply: frames.ToolResult) -> bytes:
        self._expect(reply.request_id, frames.ToolResult)
        try:
            data = line(reply)
        except Unsendable as error:
            data = line(_unsent(reply.request_id, str(error)))
        del self._in_flight[reply.request_id]
        return data

    def _expect(self, id: str, answer: type) -> None:
        if self._in_flight.get(id) is not answer:
            raise ValueError(f"no request {id!r} waits for a {answer.__name__}")


def _answer(reply: Reply) -> bytes:
    try:
        return line(reply)
    except Unsendable as error:
        id = getattr(reply, "request_id", UNSET)
        return line(frames.Error(request_id=id, message=f"The answer cannot be sent: {error}"))


def _unsent(request_id: str, why: str) -> frames.ToolResult:
    failure = frames.Failure(
        code=Code.TOOL_FAILED,
        message=f"The tool ran, but its result cannot be sent: {why}",
        details={"errorClass": "execution_error", "reason": "unsendable_result"},
    )
    result = frames.Envelope(ok=False, error=failure)
    return frames.ToolResult(request_id=request_id, result=result)
