"""Signature of a function as a tool: its arguments, and the output from its return value.

The signature is analysed once, when the tool is defined. A call pays only for the conversions
of its parameters; plain JSON needs none.

The return value becomes the output of the tool:

    str, None, blocks          -> unchanged
any other JSON-like value  -> its JSON as `value`, and as text
ok_result, error_result    -> the only envelopes: a dict with a key `ok` is data
"""

from __future__ import annotations

import copy
import inspect
import json
import pathlib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NoReturn

import msgspec

from callgate.core.calls import Diagnostic
from callgate.core.content import ContentBlock, ImageBlock, JsonBlock, TextBlock
from callgate.core.errors import ToolExecutionError, ToolValidationError, add_details
from callgate.core.tools import ToolContext, ToolOutput
from callgate.sources.constraints import build_model, describe, is_model, refuse
from callgate.sources.shapes import Docstring, parse_docstring, shape_of

Prepare = Callable[[dict[str, Any], ToolContext], dict[str, Any]]

TEXT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
}


_UNNAMED = {
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only",
    inspect.Parameter.VAR_POSITIONAL: "takes any number of arguments",
    inspect.Parameter.VAR_KEYWORD: "takes any number of arguments",
}


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    description: str
    schema: dict[str, Any]
    paths: tuple[str, ...]
    """The parameters annotated as `pathlib.Path`."""
    prepare: Prepare | None
    """Converts validated arguments to the function's keywords; None if they are equal."""


class _Parameter(msgspec.Struct, frozen=True):
    name: str
    annotation: Any
    default: Any
    label: str
    """Its name in errors."""


def read_signature(
    function: Callable[..., Any], name: str, takes: Literal["object", "text"] = "object"
) -> Signature:
    """Analyse a function. Raises `ToolRegistrationError`, which names tool and parameter."""
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
        hint = (
            " (for a method, decorate the bound method)"
            if parameter.name in ("self", "cls")
            else ""
        )
        refuse(label, f"has no annotation{hint}")
    default = parameter.default
    return _Parameter(
        parameter.name,
        _resolved(parameter.annotation, function, label),
        msgspec.UNSET if default is inspect.Parameter.empty else default,
        label,
    )


def _resolved(annotation: Any, function: Callable[..., Any], label: str) -> Any:
    """Resolve one annotation at a time, so that an error names its parameter."""

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
        # Last, so that no argument can replace the context.
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
    """Build a value of a type that msgspec does not support."""
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


_BLOCKS = (TextBlock, ImageBlock, JsonBlock)
_BLOCK_TYPES: frozenset[type] = frozenset(_BLOCKS)
_PLAIN = frozenset({bool, int, float, dict})
_INTEGERS = frozenset({bool, int})
_LARGE = 1 << 63
_BYTES = (bytes, bytearray, memoryview)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def ok_result(
    value: Any = None,
    *,
    content: ContentBlock | Iterable[ContentBlock] | None = None,
    diagnostics: Iterable[str | Diagnostic | Mapping[str, str]] = (),
    meta: Mapping[str, Any] | None = None,
    files_modified: Iterable[str] | None = None,
) -> ToolOutput:
    """Return a success with separate content, diagnostics or metadata."""
    output = as_output(value)
    if content is not None:
        output.content = _as_blocks(content)
    output.metadata = _as_json(dict(meta))[0] if meta else {}
    if notes := [msgspec.to_builtins(note) for note in diagnostics]:
        output.metadata["diagnostics"] = notes
    if files_modified is not None:
        output.files_modified = list(files_modified)
    return output


def error_result(
    message: str,
    *,
    code: str | None = None,
    reason: str | None = None,
    details: Any = None,
) -> ToolOutput:
    """Return a failure that the tool detected itself, with a message for the agent.

    Args:
        code: for programs: one of the socket's codes (`VALIDATION_ERROR`, ...) or the tool's own,
            which becomes part of the details.
        reason: which of the known ways it failed.
        details: any JSON value, for programs.
    """
    _check_text(message)
    metadata: dict[str, Any] = {}
    if reason is not None:
        metadata["reason"] = reason
    if code is not None:
        details = add_details(details, code=code)
    if details is not None:
        metadata["details"] = _as_json(details)[0]
    return ToolOutput(content=[TextBlock(message)], success=False, metadata=metadata, value=None)


def as_output(result: Any) -> ToolOutput:
    """Convert a return value. Raises `ToolExecutionError` if JSON cannot express it."""
    kind = type(result)
    if kind is str:
        _check_text(result)
        return ToolOutput(content=[TextBlock(result)], value=result)
    if result is None:
        return ToolOutput(content=[TextBlock("")], value=None)
    if kind is int and -_LARGE < result < _LARGE:
        return ToolOutput(content=[TextBlock(str(result))], value=result)
    if kind not in _PLAIN:
        if isinstance(result, ToolOutput):
            return result
        if isinstance(result, _BLOCKS):
            return ToolOutput(content=_as_blocks(result))
        if isinstance(result, (list, tuple)) and not _BLOCK_TYPES.isdisjoint(map(type, result)):
            return ToolOutput(content=_as_blocks(result))
    value, written = _as_json(result)
    text = value if isinstance(value, str) else written.decode()
    return ToolOutput(content=[TextBlock(text)], value=value)


def _as_json(result: Any) -> tuple[Any, bytes]:
    """Return the result as decoded JSON (text keys, lists, no tuples), and as bytes."""
    try:
        if type(result) in _INTEGERS:
            return result, _encode(result)
        builtins = msgspec.to_builtins(
            result, str_keys=True, builtin_types=_BYTES, enc_hook=_unknown_to_msgspec
        )
        written = _encode(builtins)
        value = _decode(written)
        # msgspec writes NaN as null and bytes as base64: then the decoded value differs.
        if value != builtins:
            json.dumps(builtins, allow_nan=False)
    except UnicodeEncodeError:
        _refuse("its text has a lone surrogate")
    except NotImplementedError as error:
        _refuse(str(error))
    except (TypeError, ValueError):
        _refuse("NaN, infinity, bytes or another value that JSON cannot express")
    except RecursionError:
        _refuse("it is nested too deeply")
    return value, written


def _unknown_to_msgspec(value: Any) -> Any:
    if isinstance(value, pathlib.PurePath):
        return str(value)
    if is_model(type(value)):
        return value.model_dump(mode="json")
    raise NotImplementedError(f"a {type(value).__name__}")


def _as_blocks(content: ContentBlock | Iterable[ContentBlock]) -> list[ContentBlock]:
    blocks = [content] if isinstance(content, _BLOCKS) else [*content]
    for block in blocks:
        if not isinstance(block, _BLOCKS):
            _refuse(f"a {type(block).__name__} among content blocks")
        if isinstance(block, TextBlock):
            _check_text(block.text)
        elif isinstance(block, JsonBlock):
            _as_json(block.value)
    return blocks


def _check_text(text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            _refuse("its text has a lone surrogate")


def _refuse(why: str) -> NoReturn:
    raise ToolExecutionError(
        f"The tool returned something that is not JSON: {why}.", reason="not_json"
    )
