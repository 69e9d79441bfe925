"""From words of a command line to a tool's arguments, read by the tool's own schema.

    limit=20      20 where the schema says integer, "20" where it says string
    deep=true     a boolean where it says boolean
    tag=a tag=b   ["a", "b"] where it says array; tag='["a", "b"]' is the same
    at='{"x":1}'  an object where it says object

Where a text is allowed it is taken as it is written; `--args` can say anything else. What
does not fit is passed on as text, so that one place, the schema, finds all that is wrong.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from callgate.core.errors import ToolParseError, ToolValidationError
from callgate.protocol.strict_json import MAX_BYTES, StrictJsonError, loads

_TEXT: Mapping[str, Any] = {"type": "string"}


def read_arguments(words: Sequence[str], given: str | None, schema: Mapping[str, Any]) -> Any:
    """What `key=value` words and `--args` say together. Raises a `ToolError`."""
    from_words = _read_words(words, schema)
    if given is None:
        return from_words
    document = _document(given)
    if not from_words:
        return document
    if not isinstance(document, dict):
        raise ToolValidationError("--args must be an object where key=value is given beside it")
    if twice := sorted(document.keys() & from_words.keys()):
        raise ToolValidationError(f"given twice, in --args and as key=value: {', '.join(twice)}")
    return document | from_words


def _document(given: str) -> Any:
    try:
        return loads(sys.stdin.buffer.read(MAX_BYTES + 1) if given == "-" else given)
    except StrictJsonError as error:
        source = "stdin" if given == "-" else "--args"
        raise ToolParseError(f"{source} is not JSON: {error}", reason=error.refusal) from None


def _read_words(words: Sequence[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    texts: dict[str, list[str]] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise ToolValidationError(f"{word!r} is not key=value")
        texts.setdefault(key, []).append(text)
    properties = {
        key: each for key, each in schema.get("properties", {}).items() if _is_schema(each)
    }
    return {key: _value(key, found, properties.get(key, _TEXT)) for key, found in texts.items()}


def _value(key: str, texts: list[str], schema: Mapping[str, Any]) -> Any:
    types = _types(schema)
    if "array" in types and "string" not in types:
        items = _json(texts[0]) if len(texts) == 1 else None
        if isinstance(items, list):
            return items
        return [_value(key, [text], schema.get("items", _TEXT)) for text in texts]
    if len(texts) > 1:
        raise ToolValidationError(f"{key} is given {len(texts)} times")
    text = texts[0]
    if "string" in types:
        return text
    value = _json(text)
    return value if _fits(value, types, schema) else text


def _types(schema: Mapping[str, Any]) -> set[str]:
    """Empty for an enumeration of values none of which is a text."""
    declared = schema.get("type")
    if declared is not None:
        return {declared} if isinstance(declared, str) else set(declared)
    if branches := schema.get("anyOf") or schema.get("oneOf"):
        return set().union(*map(_types, filter(_is_schema, branches)))
    choices = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return {"string"} if not choices or any(isinstance(c, str) for c in choices) else set()


def _is_schema(value: Any) -> bool:
    return isinstance(value, Mapping)


def _json(text: str) -> Any:
    """The value, or the text itself where it is not JSON."""
    try:
        return loads(text)
    except StrictJsonError:
        return text


def _fits(value: Any, types: set[str], schema: Mapping[str, Any]) -> bool:
    if not types:  # an enumeration of values that are no texts
        return value in schema.get("enum", [schema.get("const")])
    kinds = {
        bool: {"boolean"},
        int: {"integer", "number"},
        float: {"integer", "number"},
        list: {"array"},
        dict: {"object"},
        type(None): {"null"},
    }
    return bool(types & kinds.get(type(value), set()))
