"""What stands beside a type: words about it, bounds on it, and what it is if left out.

Notes in `Annotated[...]` may be plain strings, `msgspec.Meta`, annotated-types, `Doc` or
pydantic's `Field`. They are read by their attributes, so that no library has to be there.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any, NoReturn

import msgspec

from callgate.core.errors import ToolRegistrationError
from callgate.core.json_schema.validators import Validator
from callgate.sources.unions import types_of

Schema = dict[str, Any]

_WORDS = {
    "description": "description",
    "documentation": "description",
    "title": "title",
    "examples": "examples",
}
_BOUNDS = frozenset({"ge", "gt", "le", "lt", "min_length", "max_length", "pattern"})
_UNSAYABLE = frozenset({"multiple_of", "tz", "extra_json_schema", "func", "discriminator"})
_READ = frozenset({*_WORDS, *_BOUNDS, *_UNSAYABLE})
_LENGTHS = {"string": "Length", "array": "Items"}
_LIBRARIES = frozenset(
    {"annotated_types", "msgspec", "pydantic", "pydantic_core", "typing", "typing_extensions"}
)


def constrain(schema: Schema, notes: tuple[Any, ...], label: str) -> Schema:
    """The schema with what the notes say; a bound that it cannot say is refused."""
    result = dict(schema)
    for note in notes:
        if isinstance(note, str):
            result["description"] = note
        elif type(note).__module__.split(".")[0] in _LIBRARIES:
            found = dict(_attributes(note))
            for attribute, value in found.items():
                result.update(_say(attribute, value, schema, label))
            if not found:
                refuse(label, f"{note!r} cannot be said in a schema")
    return result


def _attributes(note: Any) -> Iterator[tuple[str, Any]]:
    for attribute in _READ:
        value = getattr(note, attribute, None)
        if value is not None:
            yield attribute, value
    for each in getattr(note, "metadata", None) or ():  # pydantic's Field holds its bounds there
        yield from _attributes(each)


def _say(attribute: str, value: Any, schema: Schema, label: str) -> Schema:
    if attribute in _WORDS:
        return {_WORDS[attribute]: value}
    kinds = [kind for kind in types_of(schema) if kind != "null"]
    if len(kinds) != 1:
        refuse(label, f"{attribute} needs one type beside it, not several")
    kind = kinds[0]
    if attribute == "pattern" and kind == "string":
        return {"pattern": getattr(value, "pattern", value)}
    if attribute in ("min_length", "max_length") and kind in _LENGTHS:
        return {attribute[:3] + _LENGTHS[kind]: value}
    if kind in ("integer", "number") and attribute in ("ge", "gt", "le", "lt"):
        return limit(attribute, value, kind, label)
    return refuse(label, f"{attribute} of a {kind} cannot be said in a schema")


def limit(attribute: str, value: Any, kind: str, label: str) -> Schema:
    """A bound of a number as an inclusive one, which is all that the subset knows."""
    keyword = "minimum" if attribute[0] == "g" else "maximum"
    if attribute[1] == "e":
        return {keyword: value}
    if kind == "integer" and isinstance(value, int):
        return {keyword: value + 1 if attribute == "gt" else value - 1}
    return refuse(label, f"{attribute} of a number cannot be said in a schema: use {attribute[0]}e")


def describe(schema: Schema, description: str | None, default: Any = msgspec.UNSET) -> Schema:
    """A property: its schema, what its author says of it, and what it is if left out."""
    result = dict(schema)
    if description:
        result.setdefault("description", description)
    if default is not msgspec.UNSET:
        as_json = _json_of(default)
        validator = Validator(result, draft7=True, formats=True)
        # A default outside its own schema (`name: str = None`) stays the function's business.
        if as_json is not msgspec.UNSET and validator.is_valid(as_json):
            result["default"] = as_json
    return result


def _json_of(default: Any) -> Any:
    """UNSET where a default has no JSON spelling."""
    try:
        value = msgspec.json.decode(msgspec.json.encode(default, enc_hook=_path_text))
    except (TypeError, ValueError, NotImplementedError, RecursionError):
        return msgspec.UNSET
    is_infinite = isinstance(default, float) and value is None
    return msgspec.UNSET if is_infinite else value


def _path_text(value: Any) -> str:
    if isinstance(value, pathlib.PurePath):
        return str(value)
    raise NotImplementedError


def refuse(label: str, problem: str) -> NoReturn:
    raise ToolRegistrationError(f"{label}: {problem}")
