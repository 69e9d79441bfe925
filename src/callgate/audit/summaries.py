"""Short, safe texts of arguments and results, for records and for questions to a person.

Secrets are taken out first and only then is anything cut, so that no cut can leave half of
one behind. Of a long text the beginning and the end stay: the end of a command is where the
surprise is.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from callgate.audit.data import Limits, redact_text, redact_value, redact_within
from callgate.audit.names import Weight, weigh
from callgate.audit.redaction import suspicious
from callgate.audit.values import words

__all__ = ["LONGEST", "cut", "redact_value", "summarize", "summarize_text"]

LONGEST = 240
"""Characters of one text within a value."""
_BODIES = words(
    "content data body source text newtext oldtext old new old_text new_text old_string new_string"
    " patch diff base64 blob"
)
"""Arguments that hold a whole file or message: a record keeps their length."""
_WINDOW = 8_192
"""Of a longer text only the ends are shown, so only they are looked at."""

_LONGEST_NAME = 15
_PLAIN = 65_536
"""Up to this length a value without anything suspicious in it is not taken apart."""
_NUMBERS = frozenset({int, float, bool, type(None)})
_TOO_SHORT = 6
"""No text below this length holds both a name and a secret."""

_encode = msgspec.json.Encoder().encode


def summarize(value: Any, *, limit: int = 2_000) -> str:
    """A value as bounded text without secrets: a text as it is, anything else as JSON."""
    if isinstance(value, str):
        return summarize_text(value, limit=limit)
    if type(value) is dict and limit >= LONGEST:
        # The common case: a few short arguments, nothing that looks like a secret.
        if _only_numbers(value):
            return _encode(value).decode()
        try:
            text = _encode(value).decode()
        except (TypeError, ValueError, RecursionError):  # no JSON, or no Unicode
            text = ""
        if 0 < len(text) <= _PLAIN and not suspicious(text) and not _has_bodies(text):
            return cut(text, limit)
    return cut(_as_text(redact_within(value, _SHORT)), limit)


def _as_text(value: Any) -> str:
    try:
        return _encode(value).decode()
    except UnicodeEncodeError:  # lone surrogates are written as the escapes they came from
        return json.dumps(value)


def _only_numbers(arguments: dict[Any, Any]) -> bool:
    for name, held in arguments.items():
        if type(held) not in _NUMBERS or type(name) is not str or len(name) > _LONGEST_NAME:
            return False
        if not name.isidentifier() or weigh(name) is not Weight.NONE:
            return False
    return len(arguments) < 8


def _has_bodies(text: str) -> bool:
    """Whether a long text stands under one of the names of bodies."""
    if len(text) <= LONGEST:
        return False
    low = text.lower()
    return any(f'"{name}":"' in low for name in _BODIES)


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
