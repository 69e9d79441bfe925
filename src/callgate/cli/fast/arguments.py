"""The arguments of a usual call, read as `arguments.read_arguments` reads them, but lightly.

Only what can be read in one way is read here: texts, small numbers, booleans, and a short flat
object. For everything else `arguments` is loaded, with its strict reader and its errors.
"""

from __future__ import annotations

import io
import sys

from callgate.cli.json_texts import loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_MOST_BYTES = 8 * 1024 * 1024 + 1
_SHORT = 400
_DIGITS = 15


def read(words: Sequence[str], given: str | None, schema: dict[str, Any]) -> Any:
    """What `key=value` words and `--args` say together. Raises a `ToolError`."""
    from_words = _read_words(words, schema)
    if from_words is not None and given is None:
        return from_words
    text = _stdin() if given == "-" else given
    document = None if text is None else _flat(text)
    if from_words is not None and document is not None and not document.keys() & from_words.keys():
        return document | from_words
    from callgate.cli.arguments import read_arguments  # lazy: heavy, for unusual arguments  # noqa: PLC0415

    return read_arguments(words, given, schema)


def _read_words(words: Sequence[str], schema: dict[str, Any]) -> dict[str, Any] | None:
    properties = schema.get("properties", {})
    values: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key or key in values:
            return None
        declared = properties.get(key, {"type": "string"})
        kind = declared.get("type") if isinstance(declared, dict) else None
        if kind == "string":
            values[key] = text
        elif kind in ("integer", "number") and _is_whole_number(text):
            values[key] = int(text)
        elif kind == "boolean" and text in ("true", "false"):
            values[key] = text == "true"
        else:
            return None
    return values


def _is_whole_number(text: str) -> bool:
    short = text.isascii() and text.isdecimal() and len(text) <= _DIGITS
    return short and (text == "0" or text[0] != "0")


def _flat(text: str) -> dict[str, Any] | None:
    """An object without objects, escapes, fractions or large numbers, and no key in it twice."""
    if len(text) > _SHORT or not text.isascii() or "\\" in text:
        return None
    try:
        value = loads(text)
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


def _stdin() -> str | None:
    """The text of stdin, which stays readable for `read_arguments`; None if it is not ASCII."""
    data = sys.stdin.buffer.read(_MOST_BYTES)
    sys.stdin = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8")
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        return None
