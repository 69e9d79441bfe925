"""One schema for a choice of types, where the subset can say it without `anyOf`."""

from __future__ import annotations

from typing import Any, NoReturn

from callgate.core.errors import ToolRegistrationError

Schema = dict[str, Any]

_NULL = {"type": "null"}


def types_of(schema: Schema) -> list[str]:
    """The JSON types a schema names; none means: any."""
    declared = schema.get("type", [])
    return [declared] if isinstance(declared, str) else list(declared)


def join(members: list[Schema], label: str) -> Schema:
    """The schema that takes what any of `members` takes.

    Keywords other than `enum` bind one JSON type each, so members of different types can
    stand side by side under a list of types. Two members of one type cannot.
    """
    null = _NULL in members
    valued = [each for each in members if each != _NULL]
    if {"type": "number"} in valued:
        valued = [each for each in valued if each != {"type": "integer"}]
    if any(not types_of(each) for each in valued):  # Any takes the others as well
        return {}
    enums = sum("enum" in each for each in valued)
    if 0 < enums < len(valued):
        _refuse(label)
    joined: Schema = {}
    kinds: list[str] = []
    for each in valued:
        if not enums and {_numeric(kind) for kind in kinds} & set(map(_numeric, types_of(each))):
            _refuse(label)
        kinds += [kind for kind in types_of(each) if kind not in kinds]
        for keyword, value in each.items():
            if keyword == "enum":
                joined["enum"] = [*joined.get("enum", []), *value]
            elif keyword != "type":
                joined.setdefault(keyword, value)
    if null and "null" not in kinds:
        kinds.append("null")
        if enums:
            joined["enum"].append(None)
    return {"type": kinds[0] if len(kinds) == 1 else kinds, **joined}


def _numeric(kind: str) -> str:
    return "number" if kind == "integer" else kind


def _refuse(label: str) -> NoReturn:
    raise ToolRegistrationError(
        f"{label}: this union cannot be said in a schema; its members must differ in their "
        "JSON type (str | int, str | list[str], T | None)"
    )
