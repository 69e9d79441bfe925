"""Constraints next to a type, and Pydantic models as types.

A constraint is a description, a bound or a default. Notes in `Annotated[...]` may be plain strings,
`msgspec.Meta`, annotated-types, `Doc` or pydantic's `Field`. They are read by attribute, so no
library needs to be installed.

pydantic is never imported here. Its schema uses references and `anyOf`. The module translates it to
the subset, and refuses a field that the subset cannot express by name.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import msgspec

from callgate.core.errors import ToolRegistrationError
from callgate.core.schema_validators import Validator

Schema = dict[str, Any]

_NULL = {"type": "null"}


def types_of(schema: Schema) -> list[str]:
    """Return the JSON types in a schema; an empty list means any."""
    declared = schema.get("type", [])
    return [declared] if isinstance(declared, str) else list(declared)


def join(members: list[Schema], label: str) -> Schema:
    """Return the union of schemas.

    Every keyword except `enum` applies to one JSON type, so members of different types can share
    one schema with a list of types. Two members of one type cannot.
    """
    null = _NULL in members
    valued = [each for each in members if each != _NULL]
    if {"type": "number"} in valued:
        valued = [each for each in valued if each != {"type": "integer"}]
    if any(not types_of(each) for each in valued):  # Any includes all other members
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
        f"{label}: a schema cannot express this union; its members must differ in their "
        "JSON type (str | int, str | list[str], T | None)"
    )


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
    """Return the schema with the constraints in the notes; an inexpressible one is refused."""
    result = dict(schema)
    for note in notes:
        if isinstance(note, str):
            result["description"] = note
        elif type(note).__module__.split(".")[0] in _LIBRARIES:
            found = dict(_attributes(note))
            for attribute, value in found.items():
                result.update(_say(attribute, value, schema, label))
            if not found:
                refuse(label, f"a schema cannot express {note!r}")
    return result


def _attributes(note: Any) -> Iterator[tuple[str, Any]]:
    for attribute in _READ:
        value = getattr(note, attribute, None)
        if value is not None:
            yield attribute, value
    for each in getattr(note, "metadata", None) or ():  # pydantic's Field has its bounds there
        yield from _attributes(each)


def _say(attribute: str, value: Any, schema: Schema, label: str) -> Schema:
    if attribute in _WORDS:
        return {_WORDS[attribute]: value}
    kinds = [kind for kind in types_of(schema) if kind != "null"]
    if len(kinds) != 1:
        refuse(label, f"{attribute} needs exactly one type")
    kind = kinds[0]
    if attribute == "pattern" and kind == "string":
        return {"pattern": getattr(value, "pattern", value)}
    if attribute in ("min_length", "max_length") and kind in _LENGTHS:
        return {attribute[:3] + _LENGTHS[kind]: value}
    if kind in ("integer", "number") and attribute in ("ge", "gt", "le", "lt"):
        return limit(attribute, value, kind, label)
    return refuse(label, f"a schema cannot express {attribute} of a {kind}")


def limit(attribute: str, value: Any, kind: str, label: str) -> Schema:
    """Return a bound of a number as an inclusive one, the only kind that the subset supports."""
    keyword = "minimum" if attribute[0] == "g" else "maximum"
    if attribute[1] == "e":
        return {keyword: value}
    if kind == "integer" and isinstance(value, int):
        return {keyword: value + 1 if attribute == "gt" else value - 1}
    return refuse(label, f"a schema cannot express {attribute} of a number: use {attribute[0]}e")


def describe(schema: Schema, description: str | None, default: Any = msgspec.UNSET) -> Schema:
    """Return the schema of a property with its description and its default."""
    result = dict(schema)
    if description:
        result.setdefault("description", description)
    if default is not msgspec.UNSET:
        as_json = _json_of(default)
        validator = Validator(result, draft7=True, formats=True)
        # A default outside its own schema (`name: str = None`) is not put into the schema.
        if as_json is not msgspec.UNSET and validator.is_valid(as_json):
            result["default"] = as_json
    return result


def _json_of(default: Any) -> Any:
    """Return a default as JSON; UNSET if JSON cannot express it."""
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


_COPIED_KEYWORDS = frozenset(
    {
        "type",
        "enum",
        "required",
        "description",
        "format",
        "examples",
        "pattern",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
    }
)
_EXCLUSIVE = {"exclusiveMinimum": "gt", "exclusiveMaximum": "lt"}
_PATHS = frozenset({"path", "file-path", "directory-path"})
_REFERENCE = "#/$defs/"


def is_model(kind: type) -> bool:
    """Whether a class is a pydantic model or dataclass."""
    return "pydantic" in sys.modules and hasattr(kind, "__pydantic_core_schema__")


def model_schema(kind: Any, label: str) -> Schema:
    if not hasattr(kind, "model_json_schema"):
        refuse(label, f"{kind.__qualname__} is a pydantic dataclass: use a model or a dataclass")
    try:
        written = kind.model_json_schema()
    except Exception as error:  # pydantic is not imported, so its error classes are unknown
        refuse(label, f"pydantic has no schema for {kind.__qualname__}: {error}")
    return _Reader(written.get("$defs", {})).read(written, label, ())


def build_model(kind: Any, value: Any) -> Any:
    """Return a validated instance. Raises `ValueError` with a message for the agent."""
    try:
        return kind.model_validate_json(msgspec.json.encode(value))
    except ValueError as error:
        problems = getattr(error, "errors", None)
        if problems is None:
            raise
        lines = [
            ": ".join(filter(None, [".".join(map(str, each["loc"])), each["msg"]]))
            for each in problems(include_url=False, include_input=False, include_context=False)
        ]
        raise ValueError("; ".join(lines)) from None


class _Reader:
    """Reads the schema of one model, with the definitions next to it."""

    def __init__(self, definitions: dict[str, Schema]) -> None:
        self.definitions = definitions

    def read(self, schema: Schema, label: str, inside: tuple[str, ...]) -> Schema:
        keywords = {k: v for k, v in schema.items() if k not in ("title", "$defs", "default")}
        result: Schema = {}
        if reference := keywords.pop("$ref", None):
            result = self._referred(reference, label, inside)
        elif members := keywords.pop("anyOf", None):
            result = join([self.read(each, label, inside) for each in members], label)
        for keyword, value in keywords.items():
            result.update(self._keyword(keyword, value, schema, label, inside))
        if "default" in schema:
            return describe(result, None, schema["default"])
        return result

    def _referred(self, reference: str, label: str, inside: tuple[str, ...]) -> Schema:
        name = reference.removeprefix(_REFERENCE)
        if name in inside:
            refuse(label, f"{name} contains itself, which a schema cannot express")
        return self.read(self.definitions[name], label, (*inside, name))

    def _keyword(
        self, keyword: str, value: Any, schema: Schema, label: str, inside: tuple[str, ...]
    ) -> Schema:
        if keyword == "format" and value in _PATHS:
            refuse(
                label,
                "a Path inside another value is invisible to the workspace boundary: "
                "make it a parameter",
            )
        if keyword in _COPIED_KEYWORDS or (
            keyword == "additionalProperties" and isinstance(value, bool)
        ):
            return {keyword: value}
        if keyword == "const":
            return {"enum": [value]}
        if keyword == "properties":
            return {
                "properties": {
                    name: self.read(each, f"{label}.{name}", inside) for name, each in value.items()
                }
            }
        if keyword == "items" and isinstance(value, dict):
            return {"items": self.read(value, f"{label}[]", inside)}
        if keyword in _EXCLUSIVE:
            return limit(_EXCLUSIVE[keyword], value, schema.get("type", ""), label)
        return refuse(label, f"a schema cannot express {keyword} here")
