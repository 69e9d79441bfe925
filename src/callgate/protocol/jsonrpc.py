"""JSON-RPC 2.0 over lines, without I/O: parse each line, and encode ours.

    Reader.feed(bytes) ---> Request | Notification | Response | Invalid, one for each line

Lines are read strictly (`strict_json`), so that no other reader sees a different message in the
same bytes. Batches are not supported: an array is one invalid message. Every error becomes an
`Invalid` with the id and the code of its answer; the next line is not affected. Answers quote at
most a few words of the input, in printable characters.
"""

from __future__ import annotations

import re
from typing import Any, TypeGuard

import msgspec

from callgate.core.texts import escape, is_seen
from callgate.protocol.strict_json import MAX_LINE, Framer, StrictJsonError, line, loads

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

Id = str | int

MAX_ID = 256
"""Maximum characters. A longer id is invalid, because the answer would have to repeat it."""
_MAX_MESSAGE = 1_000
_SHOWN = 80
_INT64 = range(-(2**63), 2**63)
_INT32 = range(-(2**31), 2**31)

# The beginning of an unreadable message, if its id is unambiguous.
_HEAD = 1_024
_BEGINS = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?'
    rb'"id"\s*:\s*(-?(?:0|[1-9]\d{0,17})|"[ !#-\[\]-~]{0,%d}")\s*,\s*'
    rb'(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"(method|result|error)"\s*:' % MAX_ID
)


class RpcError(Exception):
    """The error of a request, sent or received.

    The peer sees `message` and `data`.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message
        self.data = data
        """A JSON value, or None."""


class Request(msgspec.Struct, frozen=True):
    id: Id
    method: str
    params: dict[str, Any] | list[Any] | None = None
    """None if there are none."""


class Notification(msgspec.Struct, frozen=True):
    method: str
    params: dict[str, Any] | list[Any] | None = None


class Response(msgspec.Struct, frozen=True):
    id: Id | None
    """None if the peer could not identify the request."""
    result: Any = None
    error: RpcError | None = None
    """If set, there is no result."""


class Invalid(msgspec.Struct, frozen=True):
    """A line that is not a message. It is answered, and changes nothing."""

    id: Id | None
    code: int
    message: str


Message = Request | Notification | Response | Invalid


class Reader:
    __slots__ = ("_framer",)

    def __init__(self, max_line: int = MAX_LINE) -> None:
        self._framer = Framer(max_line, _HEAD)

    def feed(self, data: bytes) -> list[Message]:
        """Return one message for each complete line that is not blank."""
        return [
            _too_long(self._framer.heads.popleft()) if each is None else read(each)
            for each in self._framer.feed(data)
        ]


def read(data: bytes) -> Message:
    """Parse one line."""
    try:
        value = loads(data, max_bytes=len(data))
    except StrictJsonError as error:
        id, answers = _begins(data[:_HEAD])
        message = shown(str(error))
        if answers:
            failed = RpcError(INTERNAL_ERROR, f"the answer cannot be read: {message}")
            return Response(id, error=failed)
        if error.refusal == "duplicate_key":  # the duplicate may be the id
            id = None
        return Invalid(id, PARSE_ERROR, f"Parse error: {message}")
    if type(value) is not dict:
        kind = "an array: batches are not supported" if type(value) is list else "no object"
        return Invalid(None, INVALID_REQUEST, f"Invalid request: this is {kind}")
    if "method" not in value and ("result" in value or "error" in value):
        return _response(value)
    problem = _problem(value)
    if problem is not None:
        id = value.get("id")
        return Invalid(id if is_id(id) else None, INVALID_REQUEST, f"Invalid request: {problem}")
    method, params = value["method"], value.get("params")
    if "id" in value:
        return Request(value["id"], method, params)
    return Notification(method, params)


def _problem(value: dict[str, Any]) -> str | None:
    """Return the error in the envelope of a request or a notification."""
    if value.get("jsonrpc") != "2.0":
        return 'jsonrpc has to be "2.0"'
    if type(value.get("method")) is not str:
        return "method has to be a text"
    if "result" in value or "error" in value:
        return "a request has neither result nor error"
    if "id" in value and not is_id(value["id"]):
        return "id has to be a text or an integer"
    if not isinstance(value.get("params"), dict | list | None):
        return "params has to be an object"
    return None


def _response(value: dict[str, Any]) -> Response:
    """Parse a response. Never an `Invalid`: its answer would use our own id as theirs."""
    id = value.get("id")
    if not is_id(id):
        id = None
    if value.get("jsonrpc") != "2.0" or ("result" in value and "error" in value):
        return Response(id, error=_senseless())
    if "result" in value:
        return Response(id, value["result"])
    error = value["error"] if type(value["error"]) is dict else {}
    code, message = error.get("code"), error.get("message")
    if type(code) is not int or code not in _INT32 or type(message) is not str:
        return Response(id, error=_senseless())
    return Response(id, error=RpcError(code, message, error.get("data")))


def _senseless() -> RpcError:
    return RpcError(INTERNAL_ERROR, "the answer is invalid")


def _begins(head: bytes) -> tuple[Id | None, bool]:
    """Find the id of an unreadable message, and whether it answers our request: otherwise the
    caller would wait forever."""
    begins = _BEGINS.match(head)
    if begins is None:
        return None, False
    return msgspec.json.decode(begins[1]), begins[2] != b"method"


def _too_long(head: bytes) -> Message:
    id, answers = _begins(head)
    if answers:
        return Response(id, error=RpcError(INTERNAL_ERROR, "the answer is too long"))
    return Invalid(id, INVALID_REQUEST, "Invalid request: the line is too long")


def is_id(value: Any) -> TypeGuard[Id]:
    """Whether a value is a valid id: neither a fraction nor `true`, which equals an integer."""
    if type(value) is int:
        return value in _INT64
    return type(value) is str and len(value) <= MAX_ID


def shown(text: str, length: int = _SHOWN) -> str:
    """Quote foreign text: truncated and printable."""
    seen = "".join(char if is_seen(char) else escape(char) for char in text[:length])
    return seen if len(text) <= length and len(seen) <= length else f"{seen[:length]}..."


# Our lines. All functions raise `Unsendable` for values without JSON spelling or above the limit.


def request(id: Id, method: str, params: Any) -> bytes:
    return line({"jsonrpc": "2.0", "id": id, "method": method, "params": params})


def notification(method: str, params: Any) -> bytes:
    return line({"jsonrpc": "2.0", "method": method, "params": params})


def result(id: Id, value: Any) -> bytes:
    return line({"jsonrpc": "2.0", "id": id, "result": value})


def failure(id: Id | None, error: RpcError | Invalid) -> bytes:
    body: dict[str, Any] = {"code": error.code, "message": shown(error.message, _MAX_MESSAGE)}
    if isinstance(error, RpcError) and error.data is not None:
        body["data"] = error.data
    return line({"jsonrpc": "2.0", "id": id, "error": body})
