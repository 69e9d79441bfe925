"""Conversion of command-line words to a tool's arguments, by the tool's schema.

    limit=20      20 if the type is integer, "20" if it is string
    deep=true     a boolean if the type is boolean
    tag=a tag=b   ["a", "b"] if the type is array; tag='["a", "b"]' is the same
    at='{"x":1}'  an object if the type is object

If the schema permits a string, the value is the text itself; `--args` can express other types.
A text that fits no permitted type is passed on unchanged, so that the schema reports all errors.

The module is light to import, for calls through an instance. It parses simple values itself, and
imports `strict_json` for others.
"""

from __future__ import annotations

import io
import sys

from callgate.protocol import json_texts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

_TEXT: Mapping[str, Any] = {"type": "string"}
_MOST_BYTES = 8 * 1024 * 1024 + 1
"""Read limit of stdin: one byte more than `strict_json` accepts."""
_LITERALS = {"true": True, "false": False, "null": None}
_SHORT = 400
_DIGITS = 15


def read_arguments(words: Sequence[str], given: str | None, schema: Mapping[str, Any]) -> Any:
    """Return the arguments of `key=value` words and `--args` together. Raises a `ToolError`."""
    from_words = _read_words(words, schema)
    if given is None:
        return from_words
    document = _document(given)
    if not from_words:
        return document
    if not isinstance(document, dict):
        raise _invalid("--args must be an object if key=value is also given")
    if twice := sorted(document.keys() & from_words.keys()):
        raise _invalid(f"given both in --args and as key=value: {', '.join(twice)}")
    return document | from_words


def _document(given: str) -> Any:
    data = _stdin() if given == "-" else given
    plain = _plain_object(data)
    if plain is not None:
        return plain
    from callgate.core.errors import ToolParseError  # lazy: only for errors  # noqa: PLC0415
    from callgate.protocol import strict_json  # lazy: heavy, most documents are plain  # noqa: PLC0415

    try:
        return strict_json.loads(data)
    except strict_json.StrictJsonError as error:
        source = "stdin" if given == "-" else "--args"
        raise ToolParseError(f"{source} is not JSON: {error}", reason=error.refusal) from None


def _stdin() -> bytes:
    """Read stdin, and replace it with a copy: a fallback to another runtime reads it again."""
    data = sys.stdin.buffer.read(_MOST_BYTES)
    sys.stdin = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8")
    return data


def _plain_object(data: str | bytes) -> dict[str, Any] | None:
    """Parse a short, unambiguous object; return None if `strict_json` must parse it.

    Such an object has no nested values, escapes, fractions, large numbers or duplicate keys.
    """
    if len(data) > _SHORT or not data.isascii():
        return None
    text = data.decode() if isinstance(data, bytes) else data
    try:
        value = None if "\\" in text else json_texts.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    texts = 0
    for each in value.values():
        if isinstance(each, str):
            texts += 1
        elif each is not None and not (isinstance(each, int) and abs(each) < 10**_DIGITS):
            return None
    # Each text has two quotes, so a key that was dropped as a duplicate is missed here.
    return value if text.count('"') == 2 * (len(value) + texts) else None


def _read_words(words: Sequence[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    texts: dict[str, list[str]] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise _invalid(f"{word!r} is not key=value")
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
        raise _invalid(f"{key} is given {len(texts)} times")
    text = texts[0]
    if "string" in types:
        return text
    value = _json(text)
    return value if _fits(value, types, schema) else text


def _types(schema: Mapping[str, Any]) -> set[str]:
    """Return the permitted types; none for an enumeration without strings."""
    declared = schema.get("type")
    if declared is not None:
        return {declared} if isinstance(declared, str) else set(declared)
    if branches := schema.get("anyOf") or schema.get("oneOf"):
        return set().union(*map(_types, filter(_is_schema, branches)))
    choices = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return {"string"} if not choices or any(isinstance(c, str) for c in choices) else set()


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict)


def _json(text: str) -> Any:
    """Return the JSON value, or the text itself if it is not JSON."""
    if text in _LITERALS:
        return _LITERALS[text]
    if _is_whole_number(text):
        return int(text)
    from callgate.protocol import strict_json  # lazy: heavy, most values are plain  # noqa: PLC0415

    try:
        return strict_json.loads(text)
    except strict_json.StrictJsonError:
        return text


def _is_whole_number(text: str) -> bool:
    short = text.isascii() and text.isdecimal() and len(text) <= _DIGITS
    return short and (text == "0" or text[0] != "0")


def _fits(value: Any, types: set[str], schema: Mapping[str, Any]) -> bool:
    if not types:  # an enumeration without strings
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


def _invalid(message: str) -> Exception:
    from callgate.core.errors import ToolValidationError  # lazy: only for errors  # noqa: PLC0415

    return ToolValidationError(message)
