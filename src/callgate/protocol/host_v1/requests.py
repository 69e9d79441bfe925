"""A line with a method as a request, or as the fault to answer it with.

    object -> id -> version -> method -> params -> Request
               |       |         |         |
               +-------+---------+---------+-----> Fault

Both sides read requests: a host those of the runtime, the runtime those of a host. A fault
echoes an id only where the id keeps its rule and belongs to no other request; else its id is
null, so that no complaint is ever taken for the answer to something else.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, Literal

import msgspec

from callgate.protocol import strict_json
from callgate.protocol.host_v1.excerpts import excerpt
from callgate.protocol.host_v1.frames import (
    MAX_ID,
    VERSION,
    Answer,
    ExecuteTool,
    Failed,
    Failure,
    Request,
)
from callgate.protocol.ndjson import Unsendable, line

Refusal = Literal["size", "json", "object", "kind", "version", "id", "method", "params", "call"]

PROTOCOL_ERROR = "ProtocolError"
METHOD_NOT_FOUND = "MethodNotFound"

_CANONICAL = b'{"v":1,"id":"'
_SHORT = strict_json.MAX_DIGITS
"""Bytes: a line no longer than this can break no bound of the strict reader but depth."""
_FLAT = 2 * strict_json.MAX_DEPTH
"""Bytes: a line no longer than this cannot be nested too deep either."""
_decode_execute = msgspec.json.Decoder(Request[ExecuteTool]).decode
_encode = msgspec.json.Encoder().encode


def is_request_id(id: str) -> bool:
    return 0 < len(id) <= MAX_ID and id.isascii() and id.isprintable()


class Fault(msgspec.Struct, frozen=True):
    """A line that asked for something and cannot be met. The process goes on."""

    failed: Failed
    """Its one answer: encode the fault, and send it."""
    refusal: Refusal


def fault(
    refusal: Refusal, detail: str, id: str | None = None, type: str = PROTOCOL_ERROR
) -> Fault:
    return Fault(Failed(id=id, error=Failure(type=type, detail=detail)), refusal)


def read(
    value: dict[str, Any], methods: Mapping[str, type[Any]], taken: Container[str]
) -> Request[Any] | Fault:
    """`taken` are the ids in flight in this direction."""
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


def canonical(received: bytes) -> Request[Any] | None:
    """A short `execute_tool` exactly as we would write it: then no key stands in it twice."""
    size = len(received)
    if size > _SHORT or not received.startswith(_CANONICAL):
        return None
    try:
        request = _decode_execute(received)
        if _encode(request) != received or request.method != "execute_tool":
            return None
    except (ValueError, RecursionError):  # the long way says what is wrong
        return None
    if size > _FLAT and received.count(b"[") + received.count(b"{") > strict_json.MAX_DEPTH:
        return None
    return request if is_request_id(request.id) else None


def sendable(answer: Answer) -> bytes:
    """The answer's line; of one that cannot be sent, a failure that says so."""
    try:
        return line(answer)
    except Unsendable as error:
        detail = f"The answer cannot be sent: {error}"
        return line(Failed(id=answer.id, error=Failure(type="Unsendable", detail=detail)))
