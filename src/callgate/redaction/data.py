"""Takes secrets out of data: a telling name masks whatever it holds.

In text a name must be followed by something that could be a secret; here there is no doubt
about what belongs to what, so under `password` everything is masked, also `"changeme"`. Names
count wherever data has them: as keys, beside a `value`, and as flags in a list of arguments.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from callgate.redaction.names import Weight, holds_many, identifies, weigh
from callgate.redaction.programs import FLAGGED, LISTED, attached_options, is_attached
from callgate.redaction.suspicion import suspicious
from callgate.redaction.texts import thoroughly
from callgate.redaction.values import MASK, looks_random, words

_NAMING = ("name", "key", "header", "field", "variable", "k")
_NAMED = words("value val v content default data")
_SMALL = 999
"""A number up to this is a count, not a secret."""
_LARGEST_BITS = 2_048
"""Larger integers are not spelled out: the interpreter's limit may be as low as 640 digits, which
are 2,126 bits."""
_SHORT_NAME = 16
_MOST_WORDS = 100
_BEGIN = re.compile(r"-h?p|-[Pw]|[\w.-]{1,64}[:=]")
_COMMANDS = FLAGGED.union(LISTED)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a value is kept."""

    depth: int
    items: int | None = None
    text: Callable[[str, str], str]
    """What becomes of a text, given the name under which it stands."""


def redact_value(value: Any) -> Any:
    """JSON-like data with every secret in it masked; the original is left alone."""
    return redact_within(value, _DEFAULT_LIMITS)


def redact_within(value: Any, limits: Limits) -> Any:
    return _walk(value, limits, 0, "", Weight.NONE)


def redact_text(text: str, name: str = "") -> str:
    """A text that stands under a name. Under an `id` a random text is no secret."""
    if suspicious(text):
        text = thoroughly(text, bare=not (name and identifies(name)))
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


_DEFAULT_LIMITS = Limits(depth=16, text=redact_text)


def _walk(value: Any, limits: Limits, depth: int, name: str, weight: Weight) -> Any:
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return _walk_text(value, limits, name, weight)
    if isinstance(value, int):
        return MASK if weight is Weight.SECRET and abs(value) > _SMALL else _number(value)
    if isinstance(value, float):
        return float(value) if value - value == 0 else None  # neither NaN nor infinite
    if isinstance(value, bytes | bytearray | memoryview):
        return f"[{len(value)} bytes]"
    if depth >= limits.depth:
        return MASK
    if isinstance(value, Mapping):
        return _walk_mapping(value, limits, depth, weight)
    if isinstance(value, list | tuple | set | frozenset):
        return _walk_list(value, limits, depth, name, weight)
    return _walk_object(value, limits, depth, name, weight)


def _walk_text(value: str, limits: Limits, name: str, weight: Weight) -> str:
    if weight is Weight.SECRET:
        return MASK if value else value
    if weight is Weight.HINT and looks_random(value):
        return MASK
    return limits.text(value, name)


def _walk_mapping(
    value: Mapping[Any, Any], limits: Limits, depth: int, weight: Weight
) -> dict[str, Any]:
    named = _named_weight(value)
    shown: dict[str, Any] = {}
    for number, (key, child) in enumerate(value.items()):
        if number == limits.items:
            shown["…"] = f"[{len(value) - number} more]"
            break
        name = key if isinstance(key, str) else _key_text(key)
        child_weight = weigh(name)
        if named and name.lower() in _NAMED:
            child_weight = max(child_weight, named)
        elif holds_many(name) and not isinstance(child, str | Mapping):
            child_weight = Weight.SECRET
        elif weight and not child_weight:
            child_weight = Weight.HINT  # inside of something secret
        plain = len(name) < _SHORT_NAME and name.isascii()
        shown[name if plain else limits.text(name, "")] = _walk(
            child, limits, depth + 1, name, child_weight
        )
    return shown


def _named_weight(value: Mapping[Any, Any]) -> Weight:
    """In a table of names and values, the name stands beside the secret."""
    for naming in _NAMING:
        name = value.get(naming)
        if isinstance(name, str) and len(name) <= 96:
            return weigh(name)
    return Weight.NONE


def _walk_list(
    value: Iterable[Any], limits: Limits, depth: int, name: str, weight: Weight
) -> list[Any]:
    shown: list[Any] = []
    items = _masked_command(list(value))
    attached = _attached_options(items)
    before: Any = None
    for number, item in enumerate(items):
        if number == limits.items:
            shown.append(f"[{len(items) - number} more]")
            break
        child_weight, child = weight, item
        is_flag = isinstance(before, str) and before.startswith("-")
        if is_flag and isinstance(item, str) and not is_attached(before, attached):
            child, child_weight = _after_flag(before, item, weight)
        shown.append(_walk(child, limits, depth + 1, name, child_weight))
        before = item
    return shown


def _masked_command(items: list[Any]) -> list[Any]:
    """A command as a list of words, without those that are secrets on a command line."""
    if not 1 < len(items) <= _MOST_WORDS or not all(isinstance(each, str) for each in items):
        return items
    if not any(os.path.basename(each) in _COMMANDS for each in items[:3]):
        return items
    masked = thoroughly(shlex.join(items), bare=False)
    return [each if shlex.quote(each) in masked else _masked_word(each) for each in items]


def _attached_options(items: list[Any]) -> tuple[str, ...]:
    """The options that are one word with their value, where the items are a command."""
    names = (os.path.basename(each) for each in items[:3] if isinstance(each, str))
    return tuple(option for name in names if name in FLAGGED for option in attached_options(name))


def _masked_word(word: str) -> str:
    """A word that is masked on a command line; a name or an option that it begins with stays."""
    begin = _BEGIN.match(word)
    return f"{begin.group() if begin else ''}{MASK}"


def _after_flag(flag: str, item: str, weight: Weight) -> tuple[str, Weight]:
    """`["--password", "x"]` and `["-u", "alice:x"]`, as a command's arguments are listed."""
    if flag in ("-u", "--user", "--proxy-user"):
        user, colon, password = item.partition(":")
        return (f"{user}:{MASK}" if colon and password else item), weight
    if "=" in flag or item.startswith("-") or (flag.startswith("-u") and ":" in flag):
        return item, weight
    return item, max(weight, weigh(flag.strip("-")))


def _walk_object(value: Any, limits: Limits, depth: int, name: str, weight: Weight) -> Any:
    try:
        if isinstance(value, msgspec.Raw):
            plain = msgspec.json.decode(value)
        else:
            plain = msgspec.to_builtins(value, str_keys=True)
    except Exception:  # an object of anybody's class may do anything when it is looked at
        return _kind(value)
    return _kind(value) if type(plain) is type(value) else _walk(plain, limits, depth, name, weight)


def _number(value: int) -> int | str:
    """An integer as it is, or its size where the interpreter may refuse to spell it."""
    size = value.bit_length()
    return int(value) if size <= _LARGEST_BITS else f"[integer of {size} bits]"


def _key_text(key: Any) -> str:
    if isinstance(key, int):
        return str(_number(key))
    return str(key) if key is None or isinstance(key, float) else _kind(key)


def _kind(value: Any) -> str:
    return f"<{type(value).__name__}>"
