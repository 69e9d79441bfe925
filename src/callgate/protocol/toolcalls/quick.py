"""A document in exactly the form asked for, read in one go: most replies, and long ones too.

Anything unusual, wrong or not, is left to the long way, which gives the same calls and says
what is wrong.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from callgate.protocol.strict_json import MAX_DIGITS, MAX_KEYS
from callgate.protocol.toolcalls.values import MAX_DEPTH, MAX_ID, FoundCall

_CONTAINERS = frozenset({dict, list})
_PARAMETERS_DEPTH = 4
_DIGITS = bytes(ord("0") if byte in b"0123456789" else 0 for byte in range(256))
_TOO_MANY_DIGITS = b"0" * (MAX_DIGITS + 1)


class _Call(msgspec.Struct, omit_defaults=True, gc=False):
    id: str
    type: str
    operation: str
    parameters: dict[str, Any]
    priority: int | float = 0


class _Document(msgspec.Struct):
    calls: list[_Call] = msgspec.field(name="toolCalls")


_decode = msgspec.json.Decoder(_Document).decode
_encode = msgspec.json.Encoder().encode


def read(text: str, types: Collection[str]) -> tuple[FoundCall, ...] | None:
    """The calls, if there is nothing to say about the text; None: look closer."""
    try:
        data = text.encode()
        calls = _decode(data).calls
    except (ValueError, RecursionError):
        return None
    if not _is_plain(data, calls):
        return None
    ids = {call.id for call in calls}
    if len(ids) != len(calls) or not {call.type for call in calls} <= set(types):
        return None
    if any(len(id) > MAX_ID for id in ids):
        return None
    if sum(call.type == "end_turn" for call in calls) > 1:
        return None
    return tuple([
        FoundCall(
            id=call.id,
            type=call.type,
            operation=call.operation,
            parameters=call.parameters,
            priority=call.priority,
            index=index,
        )
        for index, call in enumerate(calls)
    ])  # fmt: skip


def _is_plain(data: bytes, calls: list[_Call]) -> bool:
    """No key stands twice or is unknown, and no limit can be broken."""
    members = data.count(b":")
    if members > MAX_KEYS or b"\\u003" in data:  # the second may be a colon
        return False
    if len(data) > MAX_DIGITS and _TOO_MANY_DIGITS in data.translate(_DIGITS):
        return False
    # What was dropped, because it stood twice or is not known, took its colon with it.
    return _encode(_Document(calls)).count(b":") == members and not _is_deep(calls)


def _is_deep(calls: list[_Call]) -> bool:
    level: list[Any] = [
        value
        for call in calls
        for value in call.parameters.values()
        if type(value) in _CONTAINERS
    ]
    depth = _PARAMETERS_DEPTH
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            return True
        level = [
            child
            for each in level
            for child in (each.values() if type(each) is dict else each)
            if type(child) in _CONTAINERS
        ]
    return False
