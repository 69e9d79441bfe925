"""JSON-RPC 2.0 over lines, without the lines' way: what each line is, and how ours are written.

    Reader.feed(bytes) ---> Request | Notification | Response | Invalid, one for each line

Read strictly (`strict_json`), so that no other reader sees a different message in the same
bytes. There are no batches: an array is one invalid message. Whatever is wrong becomes an
`Invalid` with the id and the code to answer it by; the next line is read as if nothing had
happened. What goes back repeats at most a few words of what came, in printable characters.
"""

from __future__ import annotations

import re
from typing import Any, TypeGuard

import msgspec

from callgate.core.text.characters import escape, is_seen
from callgate.protocol.ndjson import MAX_LINE, Framer, line
from callgate.protocol.strict_json import StrictJsonError, loads

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

Id = str | int

MAX_ID = 256
"""Characters. A longer one is no id: it would have to be repeated in the answer."""
_MAX_MESSAGE = 1_000
_SHOWN = 80
_INT64 = range(-(2**63), 2**63)
_INT32 = range(-(2**31), 2**31)

# The beginning of a message that cannot be read, where it says beyond doubt whose it is.
_HEAD = 1_024
_BEGINS = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?'
    rb'"id"\s*:\s*(-?(?:0|[1-9]\d{0,17})|"[ !#-\[\]-~]{0,%d}")\s*,\s*'
    rb'(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"(method|result|error)"\s*:' % MAX_ID
)


class RpcError(Exception):
    """A request that failed: one that we answer with it, or that was answered so.

    `message` and `data` are seen by the peer.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code
        self.message = message
        self.data = data
        """JSON, or None for nothing."""


class Request(msgspec.Struct, frozen=True):
    id: Id
    method: str
    params: dict[str, Any] | list[Any] | None = None
    """None where there are none."""


class Notification(msgspec.Struct, frozen=True):
    method: str
    params: dict[str, Any] | list[Any] | None = None


class Response(msgspec.Struct, frozen=True):
    id: Id | None
    """None where the peer could not tell which request it was."""
    result: Any = None
    error: RpcError | None = None
    """Then there is no result."""


class Invalid(msgspec.Struct, frozen=True):
    """A line that is no message. It is answered, and changes nothing."""

    id: Id | None
    code: int
    message: str


Message = Request | Notification | Response | Invalid


class Reader:
    __slots__ = ("_framer",)

    def __init__(self, max_line: int = MAX_LINE) -> None:
        self._framer = Framer(max_line, _HEAD)

    def feed(self, data: bytes) -> list[Message]:
        """What the bytes complete: one for each line that is not blank."""
        return [
            _too_long(self._framer.heads.popleft()) if each is None else read(each)
            for each in self._framer.feed(data)
        ]


def read(data: bytes) -> Message:
    """What one line says."""
    try:
        value = loads(data, max_bytes=len(data))
    except StrictJsonError as error:
        id, answers = _begins(data[:_HEAD])
        message = shown(str(error))
        if answers:
            failed = RpcError(INTERNAL_ERROR, f"the answer cannot be read: {message}")
            return Response(id, error=failed)
        if error.refusal == "duplicate_key":  # it may be the id
            id = None
        return Invalid(id, PARSE_ERROR, f"Parse error: {message}")
    if type(value) is not dict:
        kind = "an array: batches are not taken" if type(value) is list else "no object"
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
    """What is wrong with the envelope of a request or a notification."""
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
    """Never an `Invalid`: the id would be one of ours, and in an answer it would be theirs."""
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
    return RpcError(INTERNAL_ERROR, "the answer makes no sense")


def _begins(head: bytes) -> tuple[Id | None, bool]:
    """Whose a message is that cannot be read, and whether it answers one of ours: who asked would
    wait for ever."""
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
    """Neither a fraction nor true, which would be equal to an integer."""
    if type(value) is int:
        return value in _INT64
    return type(value) is str and len(value) <= MAX_ID


def shown(text: str, length: int = _SHOWN) -> str:
    """A few words of what somebody else wrote, to say them again: cut, and printable."""
    seen = "".join(char if is_seen(char) else escape(char) for char in text[:length])
    return seen if len(text) <= length and len(seen) <= length else f"{seen[:length]}..."


# Lines of ours. All raise `Unsendable` for what has no JSON spelling or is too long.


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
