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
    filled: list[Note] = []
    if not strict and (named := _named(value)) is not None:
        filled.append(Note("named_call", "a call has a type and parameters", None, index))
        value = named
    kind = value.get("type")
    if type(kind) is not str:
        raise Unfit("type is missing" if "type" not in value else "type is not a text")
    if kind not in types:
        raise Unfit(f"there is no type {kind[:_SHOWN]!a}")
    call = FoundCall(
        id=_id(value, index, strict, filled),
        type=kind,
        operation=_operation(value, kind, index, strict, filled),
        parameters=_parameters(value, index, strict, filled),
        priority=_priority(value, index, strict, filled),
        index=index,
    )
    return call, filled


def looks_like_call(value: Any, *, named: bool) -> bool:
    """Whether an object that stands alone was meant as a call; `named`: in any spelling."""
    if type(value) is not dict:
        return False
    is_ours = "type" in value and ("parameters" in value or "operation" in value)
    return is_ours or (named and _named(value) is not None)


def _named(value: dict[str, Any]) -> dict[str, Any] | None:
    """A call as models that have tool calling of their own write it, in the form asked for:
    `name` with `arguments` or `parameters`, alone or as `function`. None if it is not so."""
    inner = value
    if "type" in value:
        if value["type"] not in ("function", "function_call"):
            return None
        if type(value.get("function")) is dict:
            inner = value["function"]
    arguments = [key for key in ("arguments", "parameters") if key in inner]
    if type(inner.get("name")) is not str or len(arguments) != 1:
        return None
    others: dict[str, Any] = {
        key: value[key] for key in ("id", "operation", "priority") if key in value
    }
    return {**others, "type": inner["name"], "parameters": inner[arguments[0]]}


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


def _priority(value: dict[str, Any], index: int, strict: bool, filled: list[Note]) -> int | float:
    given = value.get("priority", 0)
    if type(given) is int or type(given) is float:
        return given
    if given is None and not strict:
        filled.append(Note("priority", "a priority of null is 0", None, index))
        return 0
    raise Unfit("priority is not a number")
