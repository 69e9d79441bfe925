"""A line from a peer as a request, or as the fault to answer it with.

    line -> strict_json -> object -> type -> shape -> Request
                 |           |        |        |
                 +-----------+--------+--------+----> Fault, with the request id if one was read

A short call in the canonical spelling is read in one step; any other line takes the long way,
with the same outcome. A request id is echoed only from JSON that can be read in one way and
only where it keeps the rules for ids itself. A fault repeats next to nothing of what was sent.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from callgate.core.text.characters import escape
from callgate.protocol import strict_json
from callgate.protocol.socket_v1 import frames
from callgate.protocol.socket_v1.frames import Error, Request

_SHOWN = 160
_RULES = {
    "`$.protocol`": "only protocol 1 is spoken here",
    "`$.requestId`": "a requestId has 1 to 128 printable ASCII characters",
}
"""Said in place of the decoder's words, by the place that these end with."""
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
"""Bytes: a line no longer than this can break no bound of the strict reader but depth."""
_FLAT = 2 * strict_json.MAX_DEPTH
"""Bytes: a line no longer than this cannot be nested too deep either."""
_decode_call = msgspec.json.Decoder(frames.ToolCall).decode
_encode = msgspec.json.Encoder().encode
_loads = strict_json.loads
_convert = msgspec.convert


class Fault(msgspec.Struct, frozen=True):
    """A line that is no request. The connection goes on."""

    error: Error
    """Its one answer: encode the fault, and send it before anything else."""
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
        return fault(error.refusal, f"The line is not JSON that is taken: {_bounded(str(error))}")
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
    """The call, if the line is exactly as we would write it: then no key stands in it twice."""
    try:
        call = _decode_call(line)
        if _encode(call) != line:
            return None
    except (ValueError, RecursionError):  # the strict reader says what is wrong
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
    """A message may repeat what was refused: cut, with nothing unseen and no look-alikes."""
    shown = (char if " " <= char <= "~" else escape(char) for char in text[:_SHOWN])
    return "".join(shown)[:_SHOWN]
