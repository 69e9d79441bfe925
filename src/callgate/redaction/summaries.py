"""Short, safe texts of arguments and results, for records and for questions to a person.

Secrets are taken out first and only then is anything cut, so that no cut can leave half of
one behind. Of a long text the beginning and the end stay: the end of a command is where the
surprise is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from callgate.redaction.data import Limits, redact_text, redact_value, redact_within
from callgate.redaction.names import Weight, weigh
from callgate.redaction.suspicion import ESCAPE, is_likely, may_hold_secret
from callgate.redaction.values import words

__all__ = [
    "LONGEST",
    "ArgumentSummary",
    "cut",
    "in_words",
    "redact_value",
    "summarize",
    "summarize_text",
]

_MOST = 2_000
"""Characters of a whole summary."""
LONGEST = 240
"""Characters of one text within a value."""
_BODIES = words(
    "content data body source text newtext oldtext old new old_text new_text old_string new_string"
    " patch diff base64 blob"
)
"""Arguments that hold a whole file or message: a record keeps their length."""
_MAIN = ("command", "path", "pattern", "query", "url", "name")
"""Arguments that say most, and need no name before them."""
_WINDOW = 8_192
"""Of a longer text only the ends are shown, so only they are looked at."""

_NUMBERS = frozenset({"integer", "number", "boolean", "null"})
_OPENING = words(
    "patternProperties unevaluatedProperties allOf anyOf oneOf $ref if dependentSchemas"
)
"""Where a schema may allow names that its properties do not list."""
_TOO_SHORT = 6
"""No text below this length holds both a name and a secret."""

_encode = msgspec.json.Encoder().encode


def summarize(value: Any, *, limit: int = _MOST) -> str:
    """A value as bounded text without secrets: a text as it is, anything else as JSON."""
    if isinstance(value, str):
        return summarize_text(value, limit=limit)
    return cut(_as_text(redact_within(value, _SHORT)), limit)


def in_words(arguments: Any) -> str:
    """Arguments in one line, without secrets, the one that says most first."""
    summary = summarize(arguments)
    try:
        given = msgspec.json.decode(summary, type=dict[str, Any])
    except (ValueError, RecursionError):  # it was cut, or is no object
        return summary
    main = next((key for key in _MAIN if isinstance(given.get(key), str)), None)
    texts = [] if main is None else [str(given.pop(main))]
    for key, value in given.items():
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        texts.append(f"{key}={text}")
    return " ".join(texts)


class ArgumentSummary:
    """Summaries of one tool's arguments: what its schema says need not be looked for again."""

    __slots__ = ("_has_bodies", "_only_numbers")

    def __init__(self, schema: Mapping[str, Any]) -> None:
        names = dict(_properties(schema))
        self._has_bodies = any(name.lower() in _BODIES for name in names)
        self._only_numbers = all(
            kinds and kinds <= _NUMBERS and weigh(name) is Weight.NONE
            for name, kinds in names.items()
        )

    def of(self, arguments: dict[str, Any], canonical: bytes) -> str:
        """The summary of checked arguments, whose canonical JSON is at hand."""
        size = len(canonical)
        if size <= _MOST:
            if self._only_numbers:
                return canonical.decode()
            if size <= LONGEST or not self._has_bodies:
                text = canonical.decode()
                if not may_hold_secret(text) or (ESCAPE not in text and not is_likely(text)):
                    return text
        return summarize(arguments)


def _properties(schema: Mapping[str, Any]) -> Iterator[tuple[str, frozenset[str]]]:
    """Every name in a schema and the types it may hold; none where it may hold anything."""
    closed = schema.get("additionalProperties") is False or schema.get("properties")
    if not closed or schema.get("additionalProperties") or not _OPENING.isdisjoint(schema):
        yield "*", frozenset()
    for name, below in schema.get("properties", {}).items():
        declared = below.get("type", ())
        yield name, frozenset([declared] if isinstance(declared, str) else declared)
        for part in (below, below.get("items")):
            if isinstance(part, (dict, Mapping)) and "object" in str(part.get("type")):
                yield from _properties(part)


def _as_text(value: Any) -> str:
    try:
        return _encode(value).decode()
    except UnicodeEncodeError:  # lone surrogates are written as the escapes they came from
        import json  # lazy: rarely needed  # noqa: PLC0415

        return json.dumps(value)


def summarize_text(text: str, *, limit: int = LONGEST, name: str = "") -> str:
    """Redact, then cut: half a secret would not be recognised any more."""
    if len(text) < _TOO_SHORT and not name:
        return text
    if len(text) <= 2 * _WINDOW:
        return cut(redact_text(text, name), limit)
    head, tail = text[:_WINDOW], text[-_WINDOW:]
    # The window may have cut something in two, or a value from its name: that piece goes.
    head = head[: max(head.rfind("\n"), head.rfind(" "), 0)]
    line = tail.find("\n", 0, _WINDOW // 2)
    begin = line if line >= 0 else tail.find(" ", _WINDOW // 4)
    tail = tail[begin:] if begin >= 0 else ""
    return cut(redact_text(head, name) + redact_text(tail, name), limit, of=len(text))


def cut(text: str, limit: int, *, of: int | None = None) -> str:
    """At most `limit` characters: the beginning, the end, and how long it was."""
    if of is None and len(text) <= limit:
        return text
    mark = f" …[{len(text) if of is None else of} characters]… "[: max(limit, 0)]
    room = limit - len(mark)
    tail = room // 3
    return text[: room - tail] + mark + text[len(text) - tail :]


def _shorten(text: str, name: str) -> str:
    if len(text) > LONGEST and name.lower() in _BODIES:
        return f"[{len(text)} characters]"
    return summarize_text(text, limit=LONGEST, name=name)


_SHORT = Limits(depth=6, items=50, text=_shorten)
