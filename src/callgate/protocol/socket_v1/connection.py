"""Both sides of one connection: lines in, requests, answers or faults out.

The server's side:

    line -> strict_json -> object -> type -> shape -> Request
                 |           |        |        |
                 +-----------+--------+--------+----> Fault, with the request id if one was read

A short call in the canonical spelling is read in one step; any other line is read in all steps,
with the same outcome. A request id is echoed only from unambiguous JSON and only if it is valid. A
fault repeats almost nothing of the input.

A request id belongs to one request from its arrival to its final answer; only then may the peer
reuse it. Events and results are sent only under ids in flight.

The client's side ignores unknown types and keys of a newer server. An answer without a request is
reported as `Passed`, and never assigned to another request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec
from msgspec import UNSET

from callgate.core.texts import escape
from callgate.protocol import strict_json
from callgate.protocol.socket_v1 import frames
from callgate.protocol.socket_v1.frames import ANSWERS, Code, Error, Reply, Request
from callgate.protocol.strict_json import MAX_LINE, Framer, Unsendable, line

_SHOWN = 160
_RULES = {
    "`$.protocol`": "only protocol 1 is spoken here",
    "`$.requestId`": "a requestId has 1 to 128 printable ASCII characters",
}
"""Messages that replace the decoder's, by the path at the end of the decoder's message."""
_REQUESTS: dict[object, type[Request]] = {
    "tool_call": frames.ToolCall,
    "list_tools": frames.ListTools,
    "cancel_tool_call": frames.CancelToolCall,
    "subscribe": frames.Subscribe,
    "unsubscribe": frames.Unsubscribe,
    "list_confirmations": frames.ListConfirmations,
    "answer_confirmation": frames.AnswerConfirmation,
    "check_alive": frames.CheckAlive,
    "list_hosts": frames.ListHosts,
    "renew_host": frames.RenewHost,
}
_is_request_id = re.compile(frames.REQUEST_ID).match
_CANONICAL = b'{"type":"tool_call","protocol":1,'
_SHORT = strict_json.MAX_DIGITS
"""Bytes up to which a line can violate no limit of the strict reader except the depth."""
_FLAT = 2 * strict_json.MAX_DEPTH
"""Bytes up to which a line cannot violate the depth limit either."""
_decode_call = msgspec.json.Decoder(frames.ToolCall).decode
_encode = msgspec.json.Encoder().encode
_loads = strict_json.loads
_convert = msgspec.convert


class Fault(msgspec.Struct, frozen=True):
    """A line that is not a request. The connection continues."""

    error: Error
    """The answer: encode the fault, and send it before anything else."""
    refusal: str
    """For logs: size, encoding, syntax, number, depth, keys, duplicate_key, object, type, shape
    or request_id."""


def fault(refusal: str, message: str, request_id: str | None = None) -> Fault:
    known = msgspec.UNSET if request_id is None else request_id
    return Fault(Error(request_id=known, message=message), refusal)


def read(line: bytes) -> Request | Fault:
    if line.startswith(_CANONICAL) and len(line) <= _SHORT and (call := _canonical(line)):
        return call
    try:
        value = _loads(line)
    except strict_json.StrictJsonError as error:
        return fault(error.refusal, f"The line is not accepted JSON: {_bounded(str(error))}")
    if type(value) is not dict:
        return fault("object", "A frame is a JSON object.")
    kind = value.get("type")
    frame = _REQUESTS.get(kind) if type(kind) is str else None
    if frame is None:
        return fault("type", _unknown(kind), _request_id(value))
    try:
        return _convert(value, frame)
    except msgspec.ValidationError as error:
        return fault("shape", f"Not a valid {kind}: {_shape(str(error))}", _request_id(value))


def _canonical(line: bytes) -> frames.ToolCall | None:
    """Parse a call in exactly our own form: it has no duplicate keys."""
    try:
        call = _decode_call(line)
        if _encode(call) != line:
            return None
    except (ValueError, RecursionError):  # the strict reader reports the error
        return None
    if len(line) > _FLAT and line.count(b"[") + line.count(b"{") > strict_json.MAX_DEPTH:
        return None
    return call


def _unknown(kind: object) -> str:
    if kind is None:
        return "A frame needs a type."
    if type(kind) is not str:
        return "The type of a frame is a text."
    return f"There is no request of type {_bounded(kind)!r}."


def _request_id(value: dict[str, Any]) -> str | None:
    id = value.get("requestId")
    return id if type(id) is str and _is_request_id(id) else None


def _shape(message: str) -> str:
    for field, rule in _RULES.items():
        if message.endswith(field):
            return rule
    return _bounded(message)


def _bounded(text: str) -> str:
    """Bound a message that may quote refused input: truncated, without invisible or look-alike
    characters."""
    shown = (char if " " <= char <= "~" else escape(char) for char in text[:_SHOWN])
    return "".join(shown)[:_SHOWN]


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
        """The requests without a final answer, each with the type of that answer."""
        return self._in_flight

    @property
    def hopeless(self) -> bool:
        """Whether a line is so long that the peer cannot be using this protocol."""
        return self._framer.longest > _HOPELESS

    @property
    def unfinished(self) -> int:
        """Bytes of an incomplete request."""
        return self._framer.unfinished

    def drop(self) -> None:
        """Drop a request that does not end."""
        self._framer.drop()

    def receive(self, data: bytes) -> list[Request | Fault]:
        """Return one item for each complete line that is not blank."""
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
        """Encode a reply as a line. Raises `ValueError` if it has no request, or is a second
        answer.

        A result that cannot be encoded becomes a failure, another answer an error; an event raises
        `Unsendable`.
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


class Passed(msgspec.Struct, frozen=True):
    """A line that was ignored."""

    why: Literal["too_long", "unreadable", "unknown_type", "not_asked"]
    frame: Reply | None = None
    """The unsolicited reply."""


_decode = msgspec.json.Decoder().decode
_UNRELATED = (Passed, frames.Event, frames.Closing)
_REPLIES: dict[object, type[Reply]] = {
    reply.__struct_config__.tag: reply for reply in get_args(Reply)
}


class ClientWire:
    __slots__ = ("_framer", "_in_flight")

    def __init__(self) -> None:
        self._framer = Framer()
        self._in_flight: dict[str, type] = {}
        """By request id: the frame that will answer it."""

    @property
    def in_flight(self) -> Mapping[str, type]:
        return self._in_flight

    def encode(self, request: Request) -> bytes:
        """Encode a request as a line. Raises `ValueError` if its id is invalid or in flight, or
        `Unsendable`."""
        id = request.request_id
        if id is UNSET:
            return line(request)
        if not _is_request_id(id):  # the server could not refer to the request
            raise ValueError("a request id has 1 to 128 printable ASCII characters")
        if isinstance(request, frames.CancelToolCall):
            return line(request)
        if id in self._in_flight:
            raise ValueError(f"request {id!r} is in flight")
        data = line(request)
        self._in_flight[id] = ANSWERS[type(request)]
        return data

    def receive(self, data: bytes) -> list[Reply | Passed]:
        """Return one item for each complete line that is not blank."""
        return [self._take(each) for each in self._framer.feed(data)]

    def _take(self, received: bytes | None) -> Reply | Passed:
        reply = Passed("too_long") if received is None else _read(received)
        if isinstance(reply, _UNRELATED) or reply.request_id is UNSET:
            return reply
        id = reply.request_id
        answer = self._in_flight.get(id)
        if isinstance(reply, frames.ToolEvent):
            return reply if answer is frames.ToolResult else Passed("not_asked", reply)
        if answer is None or type(reply) not in (answer, frames.Error):
            return Passed("not_asked", reply)
        del self._in_flight[id]
        return reply


def _read(received: bytes) -> Reply | Passed:
    # Converted one type at a time: a client that makes one call pays for no other.
    try:
        value = _decode(received)
        kind = value["type"]
        if kind not in _REPLIES:
            return Passed("unknown_type")
        return msgspec.convert(value, _REPLIES[kind])
    except (ValueError, TypeError, KeyError, RecursionError):
        return Passed("unreadable")
