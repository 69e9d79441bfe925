"""What a function's signature says: the schema of its arguments and how to fill them.

Everything is worked out once, when the tool is defined. A call then costs what its
parameters need: nothing where all of them are plain JSON.
"""

from __future__ import annotations

import copy
import inspect
import pathlib
import types
import typing
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from callgate.core.errors import ToolValidationError
from callgate.core.tools import ToolContext
from callgate.sources.constraints import describe, refuse
from callgate.sources.docstrings import Docstring, parse_docstring
from callgate.sources.pydantic_models import build_model, is_model
from callgate.sources.shapes import shape_of

Prepare = Callable[[dict[str, Any], ToolContext], dict[str, Any]]

TEXT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
}


_UNNAMED = {
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only",
    inspect.Parameter.VAR_POSITIONAL: "stands for any number of arguments",
    inspect.Parameter.VAR_KEYWORD: "stands for any number of arguments",
}


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    description: str
    schema: dict[str, Any]
    paths: tuple[str, ...]
    """The parameters annotated as `pathlib.Path`."""
    prepare: Prepare | None
    """From validated arguments to the function's keywords; None where they are the same."""


class _Parameter(msgspec.Struct, frozen=True):
    name: str
    annotation: Any
    default: Any
    label: str
    """How an error names it."""


def read_signature(
    function: Callable[..., Any], name: str, takes: Literal["object", "text"] = "object"
) -> Signature:
    """Raises `ToolRegistrationError` naming the tool and the parameter at fault."""
    parameters = _parameters(function, name)
    contexts = [each for each in parameters if _is_context(each.annotation)]
    for extra in contexts[1:]:
        refuse(extra.label, "a function gets only one ToolContext")
    context = contexts[0].name if contexts else None
    arguments = [each for each in parameters if each not in contexts]
    docstring = parse_docstring(inspect.getdoc(function))
    if takes == "text":
        return _text_signature(arguments, docstring, context, name)
    return _object_signature(arguments, docstring, context)


def _object_signature(
    arguments: list[_Parameter], docstring: Docstring, context: str | None
) -> Signature:
    properties: dict[str, Any] = {}
    required: list[str] = []
    paths: list[str] = []
    conversions: list[tuple[str, Any]] = []
    for each in arguments:
        shape = shape_of(each.annotation, each.label)
        properties[each.name] = describe(
            shape.schema, docstring.parameters.get(each.name), each.default
        )
        if each.default is msgspec.UNSET:
            required.append(each.name)
        if shape.paths:
            paths.append(each.name)
        if not shape.plain:
            _check_convertible(each)
            conversions.append((each.name, each.annotation))
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return Signature(
        description=docstring.description,
        schema=schema,
        paths=tuple(paths),
        prepare=_preparation(tuple(conversions), context),
    )


def _text_signature(
    arguments: list[_Parameter], docstring: Docstring, context: str | None, name: str
) -> Signature:
    shapes = [shape_of(each.annotation, each.label) for each in arguments]
    bare = [{**each.schema, "description": ""} for each in shapes if each.plain]
    if len(shapes) != 1 or bare != [{"type": "string", "description": ""}]:
        refuse(name, "a tool that takes text has one parameter of type str, and no other")
    parameter = arguments[0].name

    def prepare(given: dict[str, Any], tool_context: ToolContext) -> dict[str, Any]:
        keywords: dict[str, Any] = {parameter: given["text"]}
        if context is not None:
            keywords[context] = tool_context
        return keywords

    return Signature(
        description=docstring.description,
        schema=copy.deepcopy(TEXT_SCHEMA),
        paths=(),
        prepare=prepare,
    )


def _parameters(function: Callable[..., Any], name: str) -> list[_Parameter]:
    try:
        found = inspect.signature(function).parameters.values()
    except (ValueError, TypeError, NameError) as error:
        refuse(name, f"its signature cannot be read: {error}")
    return [_parameter(each, function, f"{name}: parameter {each.name}") for each in found]


def _parameter(
    parameter: inspect.Parameter, function: Callable[..., Any], label: str
) -> _Parameter:
    if parameter.kind in _UNNAMED:
        refuse(label, f"{_UNNAMED[parameter.kind]}; arguments are passed by name")
    if parameter.annotation is inspect.Parameter.empty:
        hint = " (of a method, decorate the bound one)" if parameter.name in ("self", "cls") else ""
        refuse(label, f"has no annotation{hint}")
    default = parameter.default
    return _Parameter(
        parameter.name,
        _resolved(parameter.annotation, function, label),
        msgspec.UNSET if default is inspect.Parameter.empty else default,
        label,
    )


def _resolved(annotation: Any, function: Callable[..., Any], label: str) -> Any:
    """One annotation at a time, so that an error names its parameter."""

    def carrier() -> None: ...

    carrier.__annotations__ = {"it": annotation}
    names = {"ToolContext": ToolContext, **getattr(inspect.unwrap(function), "__globals__", {})}
    try:
        return typing.get_type_hints(carrier, globalns=names, include_extras=True)["it"]
    except Exception as error:  # an annotation is the author's code
        refuse(
            label,
            f"its annotation {annotation!r} cannot be resolved ({error}); "
            "use names that the function's module defines at run time",
        )


def _is_context(annotation: Any) -> bool:
    if typing.get_origin(annotation) in (typing.Annotated, typing.Union, types.UnionType):
        return any(_is_context(each) for each in typing.get_args(annotation))
    return isinstance(annotation, type) and issubclass(annotation, ToolContext)


def _preparation(conversions: tuple[tuple[str, Any], ...], context: str | None) -> Prepare | None:
    if conversions:

        def convert(given: dict[str, Any], tool_context: ToolContext) -> dict[str, Any]:
            keywords = {
                **given,
                **{
                    name: _convert(given[name], kind, name)
                    for name, kind in conversions
                    if name in given
                },
            }
            if context is not None:
                keywords[context] = tool_context
            return keywords

        return convert
    if context is not None:
        # Last, so that no argument can stand in for the context.
        return lambda given, tool_context: {**given, context: tool_context}
    return None


def _convert(value: Any, kind: Any, name: str) -> Any:
    try:
        return msgspec.convert(value, kind, dec_hook=_from_json)
    except msgspec.ValidationError as error:
        raise ToolValidationError(
            f"Invalid arguments: {name}: {error}", validation_errors=[f"{name}: {error}"]
        ) from None


def _from_json(kind: Any, value: Any) -> Any:
    """What msgspec does not know how to build."""
    if kind is pathlib.Path:
        return pathlib.Path(value)
    if is_model(kind):
        return build_model(kind, value)
    return value


def _check_convertible(parameter: _Parameter) -> None:
    try:
        msgspec.json.Decoder(parameter.annotation, dec_hook=_from_json)
    except TypeError as error:
        refuse(parameter.label, str(error))
