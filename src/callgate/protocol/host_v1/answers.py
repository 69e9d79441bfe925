"""A line that answers a request: read for the method that was asked, or why it breaks it.

A host that says it failed has failed, however it words it; a host that says it did what was
asked has to say so exactly.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import msgspec
from msgspec import UNSET

from callgate.protocol import strict_json
from callgate.protocol.host_v1.frames import (
    VALUES,
    VERSION,
    Emitted,
    Event,
    Failed,
    Failure,
    Init,
    Object,
    Result,
    Returned,
)

Breach = Literal["too_long", "json", "version", "shape", "value"]
"""How an answer broke the rules: `version` means that the host speaks another protocol."""

_CANONICAL = b'{"v":1,"id":"'
_SHORT = strict_json.MAX_DIGITS
"""Bytes: a line no longer than this can break no bound of the strict reader but depth."""
_FLAT = 2 * strict_json.MAX_DEPTH
"""Bytes: a line no longer than this cannot be nested too deep either."""
_SPEAKING = frozenset({"v", "ok", "event", "result", "error"})
_HEAD = 4_096
_LENIENT = 65_536
"""Bytes up to which a line that cannot be read is read once more, by a reader less strict."""
# The id of a line that is not JSON: before anything nested, and not in a request.
_NAMED = re.compile(rb'\{(?:[^{}\[\]"]|"(?:[^"\\]|\\.)*")*?"id"\s*:\s*"([ -~]{1,128}?)"')
_convert = msgspec.convert


_decode_returned = msgspec.json.Decoder(Returned).decode
_decode_emitted = msgspec.json.Decoder(Emitted).decode
_encode = msgspec.json.Encoder().encode


def canonical(line: bytes) -> Returned | Emitted | None:
    """A short success or event exactly as we would write it: no key stands in it twice."""
    size = len(line)
    if size > _SHORT or not line.startswith(_CANONICAL):
        return None
    try:
        frame = (_decode_returned if b'"ok":true' in line else _decode_emitted)(line)
        if _encode(frame) != line:
            return None
    except (ValueError, RecursionError):  # the long way says what is wrong
        return None
    if size > _FLAT and line.count(b"[") + line.count(b"{") > strict_json.MAX_DEPTH:
        return None
    return frame


def is_answer(value: dict[str, Any]) -> bool:
    """Whether a line tries to answer: not one that a logger wrote or that repeats a request."""
    if "ok" in value or "event" in value:
        return True
    return "method" not in value and not _SPEAKING.isdisjoint(value)


def read(value: dict[str, Any]) -> Returned | Failed | Emitted | Breach:
    """What a line says whose id is in flight."""
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
    """The answer, if its value is one that the method can have."""
    if expected is Init:
        return Returned(id=returned.id, result=_begun(returned.result))
    if expected in VALUES:
        try:
            _convert(returned.result.value, VALUES[expected])
        except msgspec.ValidationError:
            return "value"
    return returned


def _begun(result: Result) -> Result:
    """The state of a host that gave it as the value, or none."""
    state: Object = {}
    if result.state is not UNSET:
        state = result.state
    elif type(result.value) is dict:
        state = result.value
    return Result(value=result.value, state=state, host=result.host)


def named(line: bytes) -> str | None:
    """The one id that a line not fit to be read was about, if it was to be an answer."""
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
    """Of no matter, however many digits it has."""


_members = json.JSONDecoder(object_pairs_hook=list, parse_int=_number, parse_float=_number).decode
