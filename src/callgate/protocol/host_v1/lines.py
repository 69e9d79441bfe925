"""Parse a line with a method, or a line that answers a request by its method.

A line with a method is a request, or a fault to answer:

    object -> id -> version -> method -> params -> Request
               |       |         |         |
               +-------+---------+---------+-----> Fault

Both sides read requests: a host reads the runtime's, the runtime reads a host's. A fault repeats
an id only if the id is valid and belongs to no other request. Otherwise its id is null, so that no
fault is ever taken for the answer to another request.

A failure of a host counts as a failure in any form; a success must have exactly the required form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Mapping
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from callgate.protocol import strict_json
from callgate.protocol.host_v1.frames import (
    MAX_ID,
    VALUES,
    VERSION,
    Answer,
    Emitted,
    Event,
    ExecuteTool,
    Failed,
    Failure,
    Init,
    Object,
    Request,
    Result,
    Returned,
    excerpt,
)
from callgate.protocol.strict_json import Unsendable, line

Refusal = Literal["size", "json", "object", "kind", "version", "id", "method", "params", "call"]

PROTOCOL_ERROR = "ProtocolError"
METHOD_NOT_FOUND = "MethodNotFound"

_CANONICAL = b'{"v":1,"id":"'
_SHORT = strict_json.MAX_DIGITS
"""Bytes up to which a line can violate no limit of the strict reader except the depth."""
_FLAT = 2 * strict_json.MAX_DEPTH
"""Bytes up to which a line cannot violate the depth limit either."""
_decode_execute = msgspec.json.Decoder(Request[ExecuteTool]).decode
_encode = msgspec.json.Encoder().encode


def is_request_id(id: str) -> bool:
    return 0 < len(id) <= MAX_ID and id.isascii() and id.isprintable()


class Fault(msgspec.Struct, frozen=True):
    """An invalid request. The process continues."""

    failed: Failed
    """The answer: encode the fault, and send it."""
    refusal: Refusal


def fault(
    refusal: Refusal, detail: str, id: str | None = None, type: str = PROTOCOL_ERROR
) -> Fault:
    return Fault(Failed(id=id, error=Failure(type=type, detail=detail)), refusal)


def read_request(
    value: dict[str, Any], methods: Mapping[str, type[Any]], taken: Container[str]
) -> Request[Any] | Fault:
    """Parse a line. `taken`: the ids in flight in this direction."""
    id = value.get("id")
    if type(id) is not str or not is_request_id(id):
        return fault("id", "An id has 1 to 128 printable ASCII characters.")
    if id in taken:
        return fault("id", f"The id {excerpt(id)} is in flight.")
    version = value.get("v")
    if type(version) is not int or version != VERSION:
        return fault("version", "Only version 1 is spoken here.", id)
    method = value.get("method")
    if type(method) is not str:
        return fault("kind", "A line names a method, or answers one.", id)
    kind = methods.get(method)
    if kind is None:
        return fault("method", f"There is no method {excerpt(method)}.", id, METHOD_NOT_FOUND)
    try:
        params = msgspec.convert(value.get("params", {}), kind)
    except msgspec.ValidationError as error:
        return fault("params", f"Not the params of {method}: {excerpt(str(error))}", id)
    return Request(id=id, method=method, params=params)


def canonical_request(received: bytes) -> Request[Any] | None:
    """Parse a short `execute_tool` in exactly our own form: it has no duplicate keys."""
    size = len(received)
    if size > _SHORT or not received.startswith(_CANONICAL):
        return None
    try:
        request = _decode_execute(received)
        if _encode(request) != received or request.method != "execute_tool":
            return None
    except (ValueError, RecursionError):  # the full reader reports the error
        return None
    if size > _FLAT and received.count(b"[") + received.count(b"{") > strict_json.MAX_DEPTH:
        return None
    return request if is_request_id(request.id) else None


def sendable(answer: Answer) -> bytes:
    """Encode an answer as a line; an answer that cannot be encoded becomes a failure."""
    try:
        return line(answer)
    except Unsendable as error:
        detail = f"The answer cannot be sent: {error}"
        return line(Failed(id=answer.id, error=Failure(type="Unsendable", detail=detail)))


Breach = Literal["too_long", "json", "version", "shape", "value"]
"""Violation of the rules by an answer; `version`: the host uses another protocol."""

"""Bytes up to which a line can violate no limit of the strict reader except the depth."""
"""Bytes up to which a line cannot violate the depth limit either."""
_SPEAKING = frozenset({"v", "ok", "event", "result", "error"})
_HEAD = 4_096
_LENIENT = 65_536
"""Bytes up to which an unreadable line is read again by a more lenient reader."""
# The id of a line that is not JSON: before any nested value, and not in a request.
_NAMED = re.compile(rb'\{(?:[^{}\[\]"]|"(?:[^"\\]|\\.)*")*?"id"\s*:\s*"([ -~]{1,128}?)"')
_convert = msgspec.convert


_decode_returned = msgspec.json.Decoder(Returned).decode
_decode_emitted = msgspec.json.Decoder(Emitted).decode


def canonical_answer(line: bytes) -> Returned | Emitted | None:
    """Parse a short success or event in exactly our own form: it has no duplicate keys."""
    size = len(line)
    if size > _SHORT or not line.startswith(_CANONICAL):
        return None
    try:
        frame = (_decode_returned if b'"ok":true' in line else _decode_emitted)(line)
        if _encode(frame) != line:
            return None
    except (ValueError, RecursionError):  # the full reader reports the error
        return None
    if size > _FLAT and line.count(b"[") + line.count(b"{") > strict_json.MAX_DEPTH:
        return None
    return frame


def is_answer(value: dict[str, Any]) -> bool:
    """Whether a line is meant as an answer: not a log line, and not a repeated request."""
    if "ok" in value or "event" in value:
        return True
    return "method" not in value and not _SPEAKING.isdisjoint(value)


def read_answer(value: dict[str, Any]) -> Returned | Failed | Emitted | Breach:
    """Parse a line whose id is in flight."""
    version = value.get("v")
    if type(version) is not int or version != VERSION:
        return "version"
    try:
        if "event" in value and "ok" not in value:
            return Emitted(id=value["id"], event=_convert(value["event"], Event))
        if "event" in value:
            return "shape"
        if value["ok"] is True and value.get("error") is None:
            return Returned(id=value["id"], result=_result(value))
        if value["ok"] is False and value.get("result") is None:
            return Failed(id=value["id"], error=_failure(value.get("error")))
    except (msgspec.ValidationError, KeyError):
        pass
    return "shape"


def _result(value: dict[str, Any]) -> Result:
    result = value["result"]
    if type(result) is dict:  # absent and null are the same
        result = {key: each for key, each in result.items() if each is not None}
    return _convert(result, Result)


def _failure(error: Any) -> Failure:
    if type(error) is not dict:
        return Failure(detail=error) if type(error) is str else Failure()
    try:
        return _convert(error, Failure)
    except msgspec.ValidationError:
        texts = {key: error[key] for key in ("type", "detail") if type(error.get(key)) is str}
        return Failure(**texts)


def fitting(returned: Returned, expected: type) -> Returned | Breach:
    """Return the answer, if its value is valid for the method."""
    if expected is Init:
        return Returned(id=returned.id, result=_begun(returned.result))
    if expected in VALUES:
        try:
            _convert(returned.result.value, VALUES[expected])
        except msgspec.ValidationError:
            return "value"
    return returned


def _begun(result: Result) -> Result:
    """Return the result of `init`, with a state that the host returned as the value."""
    state: Object = {}
    if result.state is not UNSET:
        state = result.state
    elif type(result.value) is dict:
        state = result.value
    return Result(value=result.value, state=state, host=result.host)


def named(line: bytes) -> str | None:
    """Return the only id in an unreadable line, if the line looks like an answer."""
    if not line.startswith(b"{"):
        return None
    if len(line) <= _LENIENT:
        try:
            members = _members(line.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            pass
        else:
            ids = [value for key, value in members if key == "id"]
            if len(ids) != 1 or type(ids[0]) is not str or not is_answer(dict(members)):
                return None
            return ids[0]
    head = line[:_HEAD]
    match = _NAMED.match(head)
    return None if match is None or b'"method"' in head else match[1].decode()


def _number(written: str) -> None:
    """Ignore a number of any length."""


_members = json.JSONDecoder(object_pairs_hook=list, parse_int=_number, parse_float=_number).decode
