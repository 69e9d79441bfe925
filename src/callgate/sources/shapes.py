"""JSON Schema of Python types and docstrings, in the subset that every model provider accepts.

A type that the subset cannot express is refused at the definition of the tool, with the name of the
parameter, because a schema that omits a requirement of the function would make its calls fail.

Three docstring styles describe parameters:

    Args:                    Parameters                :param name: What it is.
        name (str): What         ----------            :type name: str
            it is.               name : str
                                     What it is.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import enum
import inspect
import pathlib
import re
import types
import typing
import uuid
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from callgate.sources.constraints import constrain, describe, is_model, join, model_schema, refuse

_PARAMETER_SECTIONS = frozenset(
    {
        "args",
        "arguments",
        "parameters",
        "params",
        "keyword args",
        "keyword arguments",
        "other parameters",
        "attributes",
    }
)
_SECTIONS = _PARAMETER_SECTIONS | frozenset(
    {"returns", "return", "yields", "yield", "raises", "warns", "receives", "see also"}
)
_GOOGLE_ENTRY = re.compile(r"\*{0,2}(\w+)(?:\s*\([^)]*\))?\s*:\s*(.*)")
_NUMPY_ENTRY = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")
_SPHINX_FIELD = re.compile(r":(\w+)(?:\s+([^:]*))?:\s*(.*)")
_SPHINX_PARAMETER = frozenset({"param", "parameter", "arg", "argument", "key", "keyword"})


class Docstring(msgspec.Struct, frozen=True):
    description: str = ""
    """Text before the first section, with its paragraphs."""
    parameters: dict[str, str] = {}


def parse_docstring(text: str | None) -> Docstring:
    lines = inspect.cleandoc(text or "").splitlines()
    start = next((n for n in range(len(lines)) if _opens_section(lines, n)), len(lines))
    return Docstring("\n".join(lines[:start]).strip(), dict(_parameters(lines, start)))


def _opens_section(lines: list[str], number: int) -> bool:
    return bool(_SPHINX_FIELD.match(lines[number])) or _section(lines, number) is not None


def _section(lines: list[str], number: int) -> str | None:
    """Return the lower-case title of the section whose heading is in this line."""
    line = lines[number]
    title = line.rstrip(" :").lower()
    if title not in _SECTIONS:
        return None
    is_underlined = number + 1 < len(lines) and _is_rule(lines[number + 1])
    return title if is_underlined or line.rstrip().endswith(":") else None


def _is_rule(line: str) -> bool:
    return set(line.strip()) == {"-"}


def _parameters(lines: list[str], number: int) -> Iterator[tuple[str, str]]:
    while number < len(lines):
        if field := _SPHINX_FIELD.match(lines[number]):
            words, number = _indented(lines, number + 1)
            if field[1] in _SPHINX_PARAMETER and field[2]:
                yield field[2].split()[-1].lstrip("*"), _joined(field[3], words)
            continue
        title = _section(lines, number)
        number += 1
        if title not in _PARAMETER_SECTIONS:
            continue
        if number < len(lines) and _is_rule(lines[number]):
            number += 1
            while number < len(lines) and _section(lines, number) is None:
                entry = _NUMPY_ENTRY.match(lines[number])
                words, number = _indented(lines, number + 1)
                for name in entry[1].split(",") if entry else ():
                    yield name.strip(" *"), _joined("", words)
        else:
            body, number = _indented(lines, number)
            yield from _google_entries(body)


def _google_entries(body: list[str]) -> Iterator[tuple[str, str]]:
    lines = inspect.cleandoc("\n".join(["", *body])).splitlines()
    number = 0
    while number < len(lines):
        entry = _GOOGLE_ENTRY.match(lines[number])
        words, number = _indented(lines, number + 1)
        if entry:
            yield entry[1], _joined(entry[2], words)


def _indented(lines: list[str], number: int) -> tuple[list[str], int]:
    """Return the indented or blank lines from here on, and the index after them."""
    end = number
    while end < len(lines) and (not lines[end] or lines[end][0].isspace()):
        end += 1
    return lines[number:end], end


def _joined(first: str, continuation: list[str]) -> str:
    return " ".join(line.strip() for line in (first, *continuation) if line.strip())


Schema = dict[str, Any]

_PLAIN: dict[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    None: {"type": "null"},
    types.NoneType: {"type": "null"},
    Any: {},
    object: {},
}
_CONVERTED: dict[Any, Schema] = {
    datetime.datetime: {"type": "string", "format": "date-time"},
    datetime.date: {"type": "string", "format": "date"},
    uuid.UUID: {"type": "string", "format": "uuid"},
}
_LISTS = frozenset({list, collections.abc.Sequence})
_MAPPINGS = frozenset({dict, collections.abc.Mapping})
_ALIAS = getattr(typing, "TypeAliasType", ())
_UNIONS = frozenset({typing.Union, types.UnionType})
_JSON_TYPES = {str: "string", bool: "boolean", int: "integer", types.NoneType: "null"}


class Shape(msgspec.Struct, frozen=True):
    schema: Schema
    plain: bool = True
    """Whether the function takes the decoded JSON unchanged; otherwise it is converted first."""
    paths: bool = False
    """Whether it contains a `pathlib.Path`, which the workspace boundary must check."""


def shape_of(annotation: Any, label: str, inside: tuple[Any, ...] = ()) -> Shape:
    """Return the shape of a type. `label` names it in errors, `inside` lists the classes around
    it."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        shape = shape_of(arguments[0], label, inside)
        return msgspec.structs.replace(shape, schema=constrain(shape.schema, arguments[1:], label))
    if origin is Literal:
        return Shape(_enumeration(arguments, label))
    if origin in _UNIONS:
        return _union([shape_of(each, label, inside) for each in arguments], label)
    kind = origin or annotation
    if not isinstance(kind, collections.abc.Hashable):
        refuse(label, f"{annotation!r} is not a type")
    if kind in _PLAIN:
        return Shape(dict(_PLAIN[kind]))
    if kind in _CONVERTED:
        return Shape(dict(_CONVERTED[kind]), plain=False)
    if kind in _LISTS:
        return _array(arguments[0] if arguments else Any, label, inside)
    if kind is tuple:
        return _tuple(arguments, label, inside)
    if kind in _MAPPINGS:
        return _mapping(arguments, label)
    if isinstance(annotation, type):
        return _class(annotation, label, inside)
    if isinstance(annotation, typing.NewType):
        return shape_of(annotation.__supertype__, label, inside)
    if isinstance(annotation, _ALIAS):
        return shape_of(annotation.__value__, label, inside)
    return refuse(label, f"type {_name(annotation)} cannot be a tool's argument")


def _name(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) else repr(annotation)


def _enumeration(values: tuple[Any, ...], label: str) -> Schema:
    found: list[str] = []
    for value in values:
        if type(value) not in _JSON_TYPES:
            refuse(label, f"the choice {value!r} is neither text, nor a whole number, nor a bool")
        found.append(_JSON_TYPES[type(value)])
    kinds = list(dict.fromkeys(found))
    return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": list(values)}


def _union(members: list[Shape], label: str) -> Shape:
    plain = all(each.plain for each in members)
    schema = join([each.schema for each in members], label)
    return Shape(schema, plain, any(each.paths for each in members))


def _array(item: Any, label: str, inside: tuple[Any, ...]) -> Shape:
    shape = shape_of(item, f"{label}[]", inside)
    if shape.paths and shape.schema["type"] != "string":
        refuse(label, "a Path must be a parameter, or an item of a list parameter")
    schema: Schema = {"type": "array"}
    if shape.schema:
        schema["items"] = shape.schema
    return Shape(schema, shape.plain, shape.paths)


def _tuple(items: tuple[Any, ...], label: str, inside: tuple[Any, ...]) -> Shape:
    if len(items) == 2 and items[1] is Ellipsis:
        items = items[:1]
    elif items and all(each == items[0] for each in items):
        array = _array(items[0], label, inside)
        length = {"minItems": len(items), "maxItems": len(items)}
        return Shape({**array.schema, **length}, plain=False, paths=array.paths)
    elif items:
        refuse(label, "a tuple must have items of one type, as tuple[int, ...] or tuple[int, int]")
    array = _array(items[0] if items else Any, label, inside)
    return msgspec.structs.replace(array, plain=False)


def _mapping(arguments: tuple[Any, ...], label: str) -> Shape:
    key, value = arguments or (str, Any)
    if key is not str:
        refuse(label, "the keys of a JSON object are text: use dict[str, Any]")
    if value is not Any and value is not object:
        refuse(
            label,
            f"the values of a dict cannot be described as {_name(value)}: "
            "use dict[str, Any], a TypedDict or a list",
        )
    return Shape({"type": "object", "additionalProperties": True})


def _class(kind: type, label: str, inside: tuple[Any, ...]) -> Shape:
    if kind in inside:
        refuse(label, f"{_name(kind)} contains itself, which a schema cannot express")
    if issubclass(kind, enum.Enum):
        return Shape(_enum(kind, label), plain=False)
    if kind is pathlib.Path:
        if inside:
            refuse(
                label,
                "a Path inside another value is invisible to the workspace boundary: "
                "make it a parameter",
            )
        return Shape({"type": "string"}, plain=False, paths=True)
    if is_model(kind):
        return Shape(model_schema(kind, label), plain=False)
    fields = _fields(kind, label)
    if fields is None:
        refuse(label, f"type {_name(kind)} cannot be a tool's argument")
    properties: dict[str, Schema] = {}
    plain = typing.is_typeddict(kind)
    described = parse_docstring(kind.__doc__).parameters
    for field in fields:
        shape = shape_of(field.annotation, f"{label}.{field.name}", (*inside, kind))
        properties[field.name] = describe(shape.schema, described.get(field.name), field.default)
        plain = plain and shape.plain
    schema: Schema = {"type": "object", "properties": properties}
    if required := [field.name for field in fields if field.required]:
        schema["required"] = required
    return Shape(schema, plain)


def _enum(kind: type[enum.Enum], label: str) -> Schema:
    values = tuple(member.value for member in kind)
    if issubclass(kind, enum.Flag) or len({type(value) for value in values} & {str, int}) != 1:
        refuse(label, f"the values of {_name(kind)} must all be text or all be whole numbers")
    return _enumeration(values, label)


class _Field(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    annotation: Any
    required: bool
    default: Any = msgspec.UNSET


def _fields(kind: type, label: str) -> list[_Field] | None:
    """Return the fields of a dataclass, a TypedDict or a Struct; None for any other class."""
    try:
        if typing.is_typeddict(kind):
            return list(_typed_dict_fields(kind))
        if dataclasses.is_dataclass(kind):
            return list(_dataclass_fields(kind))
        if issubclass(kind, msgspec.Struct) and not kind.__struct_config__.array_like:
            return list(_struct_fields(kind))
    except NameError as error:
        refuse(label, f"{_name(kind)}: {error}; its annotations must use names of its module")
    return None


def _typed_dict_fields(kind: Any) -> Iterator[_Field]:
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        # `__required_keys__` ignores the marks if annotations are strings.
        required = name in kind.__required_keys__
        annotation = hint
        while (mark := typing.get_origin(annotation)) in (typing.Required, typing.NotRequired):
            required = mark is typing.Required
            annotation = typing.get_args(annotation)[0]
        yield _Field(name=name, annotation=annotation, required=required)


def _dataclass_fields(kind: Any) -> Iterator[_Field]:
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        if field.init:
            given = field.default is not dataclasses.MISSING
            has_factory = field.default_factory is not dataclasses.MISSING
            yield _Field(
                name=field.name,
                annotation=hints[field.name],
                required=not (given or has_factory),
                default=field.default if given else msgspec.UNSET,
            )


def _struct_fields(kind: Any) -> Iterator[_Field]:
    for field in msgspec.structs.fields(kind):
        default = field.default
        yield _Field(
            name=field.encode_name,
            annotation=field.type,
            required=field.required,
            default=msgspec.UNSET if default is msgspec.NODEFAULT else default,
        )
