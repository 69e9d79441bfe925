"""One call, judged on its own: is it one that may be handed over, and what is missing in it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from callgate.protocol import strict_json
from callgate.protocol.toolcalls.values import MAX_DEPTH, MAX_ID, FoundCall, Note

_SHOWN = 64
_encode = msgspec.json.Encoder().encode


class Unfit(Exception):
    """The call cannot be taken; `str(error)` says why."""


def judge(
    value: Any, types: Collection[str], index: int, *, strict: bool
) -> tuple[FoundCall, list[Note]]:
    """The call that a value is, and what was filled in; raises `Unfit` if it is none."""
    if type(value) is not dict:
        raise Unfit("a call is an object")
    kind = value.get("type")
    if type(kind) is not str:
        raise Unfit("type is missing" if "type" not in value else "type is not a text")
    if kind not in types:
        raise Unfit(f"there is no type {kind[:_SHOWN]!a}")
    filled: list[Note] = []
    call = FoundCall(
        id=_id(value, index, strict, filled),
        type=kind,
        operation=_operation(value, kind, index, strict, filled),
        parameters=_parameters(value, index, strict, filled),
        priority=_priority(value),
        index=index,
    )
    return call, filled


def looks_like_call(value: Any) -> bool:
    """Whether an object that stands alone was meant as a call."""
    return type(value) is dict and "type" in value and (
        "parameters" in value or "operation" in value
    )  # fmt: skip


def _id(value: dict[str, Any], index: int, strict: bool, filled: list[Note]) -> str:
    given = value.get("id")
    if type(given) is str:
        if len(given) > MAX_ID:
            raise Unfit(f"id is longer than {MAX_ID} characters")
        return given
    if not strict and "id" not in value:
        filled.append(Note("id", "a call without an id was given one", None, index))
        return f"auto_{index + 1}"
    if not strict and type(given) in (int, float):
        filled.append(Note("id", "a number was taken as the text of an id", None, index))
        written = _encode(given).decode()
        if len(written) <= MAX_ID:
            return written
    raise Unfit("id is missing" if "id" not in value else "id is not a text")


def _operation(
    value: dict[str, Any], kind: str, index: int, strict: bool, filled: list[Note]
) -> str:
    given = value.get("operation")
    if type(given) is str:
        return given
    if strict or "operation" in value:
        raise Unfit("operation is not a text" if "operation" in value else "operation is missing")
    filled.append(Note("operation", "a missing operation is the type", None, index))
    return kind


def _parameters(
    value: dict[str, Any], index: int, strict: bool, filled: list[Note]
) -> dict[str, Any]:
    given = value.get("parameters")
    if type(given) is dict:
        return given
    if not strict and given is None:
        filled.append(Note("parameters", "missing parameters are none", None, index))
        return {}
    if not strict and type(given) is str:
        try:
            # Written as text they were one level; as an object they stand three deep.
            read = strict_json.loads(given, max_depth=MAX_DEPTH - 3)
        except strict_json.StrictJsonError:
            read = None
        if type(read) is dict:
            filled.append(Note("parameters", "parameters were JSON in a text", None, index))
            return read
    raise Unfit("parameters are not an object" if "parameters" in value else "no parameters")


def _priority(value: dict[str, Any]) -> int | float:
    given = value.get("priority", 0)
    if type(given) is int or type(given) is float:
        return given
    raise Unfit("priority is not a number")
