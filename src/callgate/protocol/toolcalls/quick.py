"""A document in exactly the form asked for, read in one go: most replies, and long ones too.

Anything unusual, wrong or not, is left to the long way, which gives the same calls and says
what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from types import GenericAlias
from typing import Annotated, Any

import msgspec

from callgate.protocol.strict_json import MAX_DIGITS, MAX_KEYS
from callgate.protocol.toolcalls.values import MAX_ID, FoundCall

_USUAL_DEPTH = 5
"""Levels in a parameter. What is deeper, though it may be allowed, goes the long way."""
_LONG = 2048
"""Characters of a text that is left out where colons are counted."""
_STEP = MAX_DIGITS // 8
_DIGITS = bytes(ord("0") if byte in b"0123456789" else 0 for byte in range(256))
_UNSET = msgspec.UNSET
_ESCAPED_COLON = re.compile(rb"\\u003")


def _nested(depth: int) -> Any:
    """The type of parameters, so many levels deep: what breaks a limit, msgspec then refuses."""
    annotated: Any = Annotated
    few = msgspec.Meta(max_length=MAX_KEYS)
    plain: Any = type(None) | bool | int | float | str
    value = plain
    for _ in range(depth):
        members = annotated[GenericAlias(dict, (str, value)), few]
        value = plain | GenericAlias(list, value) | members
    return annotated[GenericAlias(dict, (str, value)), few]


class _Call(msgspec.Struct, omit_defaults=True, gc=False):
    id: Annotated[str, msgspec.Meta(max_length=MAX_ID)]
    type: str
    operation: str
    parameters: _nested(_USUAL_DEPTH)  # type: ignore[valid-type]
    priority: int | float | msgspec.UnsetType = _UNSET


class _Document(msgspec.Struct):
    calls: list[_Call] = msgspec.field(name="toolCalls")


class _RawCall(msgspec.Struct):
    parameters: dict[str, msgspec.Raw]


class _RawDocument(msgspec.Struct):
    calls: list[_RawCall] = msgspec.field(name="toolCalls")


_decode = msgspec.json.Decoder(_Document).decode
_decode_call = msgspec.json.Decoder(_Call).decode
_decode_raw = msgspec.json.Decoder(_RawDocument).decode
_encode = msgspec.json.Encoder().encode


def read(text: str, types: Collection[str]) -> tuple[FoundCall, ...] | None:
    """The calls, if there is nothing to say about the text; None: look closer."""
    try:
        data = text.encode()
        calls = _decode(data).calls
    except (ValueError, RecursionError):
        return None
    kinds = [call.type for call in calls]
    ids = {call.id for call in calls}
    if len(ids) != len(calls) or kinds.count("end_turn") > 1:
        return None
    if not all(kind in types for kind in set(kinds)):
        return None
    data, shorter = _without_long_texts(data, calls)
    if not _is_plain(data, _encode(_Document(shorter))):
        return None
    return tuple(
        [
            FoundCall(
                id=call.id,
                type=call.type,
                operation=call.operation,
                parameters=call.parameters,
                priority=0 if call.priority is _UNSET else call.priority,
                index=index,
            )
            for index, call in enumerate(calls)
        ]
    )


def read_call(text: str, types: Collection[str], index: int) -> FoundCall | None:
    """One call, if there is nothing to say about it."""
    try:
        data = text.encode()
        call = _decode_call(data)
    except (ValueError, RecursionError):
        return None
    if call.type not in types or not _is_plain(data, _encode(call)):
        return None
    return FoundCall(
        id=call.id,
        type=call.type,
        operation=call.operation,
        parameters=call.parameters,
        priority=0 if call.priority is _UNSET else call.priority,
        index=index,
    )


def _is_plain(data: bytes, written: bytes) -> bool:
    """No key stands twice or is unknown, and no number can be too long.

    What was dropped, because it stood twice or is not known, took its colon with it; only an
    escaped colon could make up for that.
    """
    if written.count(b":") != data.count(b":"):
        return False
    if b"\\" in data and _ESCAPED_COLON.search(data):
        return False
    # So many digits in a row would be met eight times by steps of this length.
    return len(data) <= MAX_DIGITS or b"00000000" not in data[::_STEP].translate(_DIGITS)


def _without_long_texts(data: bytes, calls: list[_Call]) -> tuple[bytes, list[_Call]]:
    """The same document with long texts left out on both sides: they have no members in them."""
    if len(data) < _LONG * (len(calls) + 1):
        return data, calls
    escapes = b"\\" in data
    raws: list[Any] = _decode_raw(data).calls if escapes else calls
    chunks: list[bytes] = []
    shorter: list[_Call] = []
    at = 0
    for call, raw in zip(calls, raws, strict=True):
        parameters = dict(call.parameters)
        for key, value in call.parameters.items():
            if type(value) is not str or len(value) < _LONG:
                continue
            as_written = bytes(raw.parameters[key]) if escapes else f'"{value}"'.encode()
            start = _find_text(data, as_written, at)
            if start is not None:
                chunks.append(data[at : start + 1])
                at = start + len(as_written) - 1
                parameters[key] = ""
        shorter.append(msgspec.structs.replace(call, parameters=parameters))
    chunks.append(data[at:])
    return b"".join(chunks), shorter


def _find_text(data: bytes, text: bytes, at: int) -> int | None:
    """Where a text stands, quotation marks and all."""
    start = data.find(text[:64], at)
    # Behind a backslash it would not be the mark that a text begins with.
    if start < 1 or data[start - 1] == 0x5C or not data.startswith(text, start):
        return None
    return start
