"""Short, safe texts of arguments and results, for records and for questions to a person.

Secrets are taken out first and only then is anything cut, so that no cut can leave half of
one behind. Of a long text the beginning and the end stay: the end of a command is where the
surprise is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from callgate.audit.names import Weight, weigh
from callgate.audit.redaction import redact
from callgate.audit.values import MASK

LONGEST = 240
MOST_ITEMS = 50
DEEPEST = 6
_BODIES = frozenset(
    {"content", "data", "body", "source", "newtext", "oldtext", "text", "old", "new"}
)
"""Arguments that hold a whole file or message: a record keeps their length."""

_encode = msgspec.json.Encoder().encode


def summarize(value: Any, *, limit: int = 2_000) -> str:
    """A value as bounded JSON text without secrets."""
    try:
        encoded = _encode(value)
    except (TypeError, ValueError, RecursionError, OverflowError):
        encoded = b""
    # The common case: a few short arguments, nothing that looks like a secret.
    if encoded and len(encoded) <= LONGEST:
        text = encoded.decode()
        if redact(text) == text and not (isinstance(value, dict) and _has_secret_name(value)):
            return text
    return cut(_as_text(shorten(redact_value(value))), limit)


def summarize_text(text: str, *, limit: int = LONGEST) -> str:
    return cut(redact(text), limit)


def cut(text: str, limit: int) -> str:
    """At most `limit` characters: the beginning, the end, and how much is missing between."""
    if len(text) <= limit:
        return text
    mark = f" ...[{len(text) - limit} more]... "
    room = max(limit - len(mark), 2)
    return text[: room // 2] + mark + text[len(text) - (room - room // 2) :]


def redact_value(value: Any, depth: int = 0) -> Any:
    """The same value without secrets; what lies too deep is masked altogether."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        if depth >= DEEPEST:
            return MASK
        return {
            redact(str(key)): MASK
            if weigh(str(key)) is Weight.SECRET and each not in (None, "", True, False)
            else redact_value(each, depth + 1)
            for key, each in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return MASK if depth >= DEEPEST else _redact_items(list(value), depth)
    if value is None or isinstance(value, bool | int | float):
        return value
    return redact(repr(value))


def _redact_items(items: list[Any], depth: int) -> list[Any]:
    """A list may be a command line: what follows `--password` is a secret too."""
    redacted = [redact_value(item, depth + 1) for item in items[: MOST_ITEMS + 1]]
    for at, item in enumerate(items[: len(redacted) - 1]):
        is_flag = isinstance(item, str) and item.startswith("-")
        if is_flag and isinstance(items[at + 1], str) and weigh(item.lstrip("-")) is Weight.SECRET:
            redacted[at + 1] = MASK
    return redacted


def shorten(value: Any, name: str = "") -> Any:
    if isinstance(value, str):
        if len(value) > LONGEST:
            if name.lower() in _BODIES:
                return f"[{len(value)} characters]"
            return cut(value, 4 * LONGEST)
        return value
    if isinstance(value, dict):
        kept = {key: shorten(each, key) for key, each in list(value.items())[:MOST_ITEMS]}
        if len(value) > MOST_ITEMS:
            kept["..."] = f"{len(value) - MOST_ITEMS} more"
        return kept
    if isinstance(value, list):
        items = [shorten(each, name) for each in value[:MOST_ITEMS]]
        return items if len(value) <= MOST_ITEMS else [*items, "[more]"]
    return value


def _has_secret_name(value: dict[Any, Any]) -> bool:
    return any(
        weigh(str(key)) is Weight.SECRET or isinstance(each, dict | list)
        for key, each in value.items()
    )


def _as_text(value: Any) -> str:
    try:
        return _encode(value).decode()
    except (UnicodeEncodeError, TypeError, ValueError, OverflowError):
        return repr(value)
