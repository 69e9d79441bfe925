"""Redact structured data, and summarize it for records and questions.

A telling name masks its whole value. In text, a name must be followed by a likely secret. In data
the relation is certain, so everything under `password` is masked, `"changeme"` too. Names are keys,
the `name` of a pair with `value`, and flags in a list of arguments.

A summary is redacted first and truncated afterwards, so that truncation leaves no half of a secret.
A long text retains its beginning and its end: a harmful part of a command is often at its end.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec
from msgspec.structs import replace

from callgate.redaction.names import (
    MASK,
    Weight,
    holds_many,
    identifies,
    looks_random,
    weigh,
    words,
)
from callgate.redaction.suspicion import (
    ESCAPE,
    FLAGGED,
    LISTED,
    attached_options,
    is_attached,
    is_likely,
    may_hold_secret,
    suspicious,
)
from callgate.redaction.texts import thoroughly

_NAMING = ("name", "key", "header", "field", "variable", "k")
_NAMED = words("value val v content default data")
_SMALL = 999
"""Numbers up to this are counts, not secrets."""
_LARGEST_BITS = 2_048
"""Larger integers are not printed: the interpreter's limit may be 640 digits (2,126 bits)."""
_SHORT_NAME = 16
_MOST_WORDS = 100
_SQUARE = bytes.maketrans(b"{}", b"[]")
_NO_STRUCTURE = bytes(set(range(256)) - set(b",[]{}"))
_ESCAPES = (
    ("\\\\", "\0"),
    ("\\n", "\n"),
    ("\\t", "\t"),
    ("\\r", "\r"),
    ("\\b", "\b"),
    ("\\f", "\f"),
    ('\\"', '"'),
    ("\0", "\\"),
)
"""Escapes of JSON in the order of their removal. JSON has no NUL, which replaces a backslash."""
_BEGIN = re.compile(r"-h?p|-[Pw]|[\w.-]{1,64}[:=]")
_COMMANDS = FLAGGED.union(LISTED)


class RedactionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a redacted value."""

    depth: int
    items: int | None = None
    text: Callable[[str, str], str]
    """Redact a text, given its name."""
    longest: int | None = None
    """Maximum characters of a text that `text` returns whole if it has no secret."""
    is_json: bool = False
    """Whether the value was decoded from JSON, so that its encoding shows all of it."""
    is_bounded: bool = False
    """Whether the value is within the limits, so that the walk replaces only secrets."""
    innermost: re.Pattern[bytes] = re.compile(rb"\[,*\]")
    """Matches an innermost container in the bare structure of JSON, with few items."""


def redact_value(value: Any) -> Any:
    """Return a copy of JSON-like data in which every secret is masked."""
    return redact_within(value, _DEFAULT_LIMITS)


def redact_within(value: Any, limits: RedactionLimits) -> Any:
    return _walk(value, limits, 0, "", Weight.NONE)


def redact_text(text: str, name: str = "") -> str:
    """Redact the text of a named value. With a name like `id`, a random text is no secret."""
    if suspicious(text):
        text = thoroughly(text, bare=not (name and identifies(name)))
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


_DEFAULT_LIMITS = RedactionLimits(depth=16, text=redact_text)


def _walk(value: Any, limits: RedactionLimits, depth: int, name: str, weight: Weight) -> Any:
    if value is None or value is True or value is False:
        return value
    kind = type(value)
    if kind is not dict and kind is not list:
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
    if limits.is_json and weight is Weight.NONE:
        inner = _limits_of_part(value, limits, depth)
        if inner is None:
            return value
        limits = inner
    if kind is dict or (kind is not list and isinstance(value, Mapping)):
        return _walk_mapping(value, limits, depth, weight)
    if kind is list or isinstance(value, list | tuple | set | frozenset):
        return _walk_list(value, limits, depth, name, weight)
    return _walk_object(value, limits, depth, name, weight)


def _limits_of_part(value: Any, limits: RedactionLimits, depth: int) -> RedactionLimits | None:
    """Return the limits for a walk of this part; None if the walk would return it unchanged.

    One suspicious text then costs the walk from the root to it, not the walk of the whole tree.
    """
    if limits.items is not None and len(value) > limits.items:
        return limits
    try:
        encoded = _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return limits  # the walk handles lone surrogates, large integers and deep nesting
    if not limits.is_bounded:
        if not _is_bounded(encoded, limits, limits.depth - depth):
            return limits
        limits = replace(limits, is_bounded=True)
    return None if _has_no_secret(encoded.decode()) else limits


def _has_no_secret(text: str) -> bool:
    """Whether one scan of the JSON excludes secrets in all texts and names."""
    if "\\" in text:
        if ESCAPE in text:
            return False
        for escaped, plain in _ESCAPES:
            text = text.replace(escaped, plain)
    return not may_hold_secret(text) or not is_likely(text)


def _is_bounded(encoded: bytes, limits: RedactionLimits, levels: int) -> bool:
    """Whether JSON has at most `levels` of nesting, and neither a container with too many items
    nor a text that is too long."""
    if b"\\" in encoded:
        encoded = encoded.replace(b"\\\\", b"..").replace(b'\\"', b"..")
    outside = encoded.split(b'"')
    texts = outside[1::2]
    if limits.longest is not None and max(map(len, texts), default=0) > limits.longest:
        return False
    structure = b"".join(outside[::2]).translate(_SQUARE, _NO_STRUCTURE)
    for _ in range(levels):
        structure = limits.innermost.sub(b"", structure)
        if not structure:
            return True
    return False


def _walk_text(value: str, limits: RedactionLimits, name: str, weight: Weight) -> str:
    if weight is Weight.NONE:
        if limits.is_bounded and not may_hold_secret(value):
            return value
    elif weight is Weight.SECRET:
        return MASK if value else value
    elif looks_random(value):
        return MASK
    return limits.text(value, name)


def _walk_mapping(
    value: Mapping[Any, Any], limits: RedactionLimits, depth: int, weight: Weight
) -> dict[str, Any]:
    named = _named_weight(value)
    shown: dict[str, Any] = {}
    has_too_many = limits.items is not None and len(value) > limits.items
    if has_too_many and limits.is_json and not named and not weight:
        few = dict(islice(value.items(), limits.items))
        inner = _limits_of_part(few, limits, depth)
        if inner is None:
            few["…"] = f"[{len(value) - len(few)} more]"
            return few
        limits = inner
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
        if (len(name) >= _SHORT_NAME or not name.isascii()) and not (
            limits.is_bounded and not may_hold_secret(name)
        ):
            name_shown = limits.text(name, "")
        else:
            name_shown = name
        shown[name_shown] = _walk(child, limits, depth + 1, name, child_weight)
    return shown


def _named_weight(value: Mapping[Any, Any]) -> Weight:
    """Return the weight of the name in a pair of `name` and `value`."""
    for naming in _NAMING:
        if naming in value:
            name = value[naming]
            if isinstance(name, str) and len(name) <= 96:
                return weigh(name)
    return Weight.NONE


def _walk_list(
    value: Iterable[Any], limits: RedactionLimits, depth: int, name: str, weight: Weight
) -> list[Any]:
    shown: list[Any] = []
    items = list(value)
    attached: tuple[str, ...] = ()
    if not _COMMANDS.isdisjoint(programs := _programs(items)):
        items = _masked_command(items)
        attached = _attached_options(programs)
    elif limits.items is not None and len(items) > limits.items and limits.is_json and not weight:
        few = items[: limits.items]
        inner = _limits_of_part(few, limits, depth)
        if inner is None:
            return [*few, f"[{len(items) - len(few)} more]"]
        limits = inner
    before: Any = None
    for number, item in enumerate(items):
        if number == limits.items:
            shown.append(f"[{len(items) - number} more]")
            break
        child_weight, child = weight, item
        is_flag = isinstance(before, str) and before[:1] == "-"
        if is_flag and isinstance(item, str) and not is_attached(before, attached):
            child, child_weight = _after_flag(before, item, weight)
        shown.append(_walk(child, limits, depth + 1, name, child_weight))
        before = item
    return shown


def _masked_command(items: list[Any]) -> list[Any]:
    """Mask the secret words of a command line."""
    if not 1 < len(items) <= _MOST_WORDS or not all(isinstance(each, str) for each in items):
        return items
    masked = thoroughly(shlex.join(items), bare=False)
    return [each if shlex.quote(each) in masked else _masked_word(each) for each in items]


def _attached_options(programs: list[str]) -> tuple[str, ...]:
    """Return the options that contain their value, of the programs of a command."""
    flagged = FLAGGED.intersection(programs)
    return tuple(option for name in flagged for option in attached_options(name))


def _programs(items: list[Any]) -> list[str]:
    """Names of programs with which a command may begin."""
    return [each.rpartition("/")[2] for each in items[:3] if isinstance(each, str)]


def _masked_word(word: str) -> str:
    """Mask a word of a command line, except for a name or option at its beginning."""
    begin = _BEGIN.match(word)
    return f"{begin.group() if begin else ''}{MASK}"


def _after_flag(flag: str, item: str, weight: Weight) -> tuple[str, Weight]:
    """Mask `["--password", "x"]` and `["-u", "alice:x"]`, a command's arguments as a list."""
    if flag in ("-u", "--user", "--proxy-user"):
        user, colon, password = item.partition(":")
        return (f"{user}:{MASK}" if colon and password else item), weight
    if "=" in flag or item.startswith("-") or (flag.startswith("-u") and ":" in flag):
        return item, weight
    return item, max(weight, weigh(flag.strip("-")))


def _walk_object(value: Any, limits: RedactionLimits, depth: int, name: str, weight: Weight) -> Any:
    try:
        if isinstance(value, msgspec.Raw):
            plain = msgspec.json.decode(value)
        else:
            plain = msgspec.to_builtins(value, str_keys=True)
    except Exception:  # an object of anybody's class may do anything when it is looked at
        return _kind(value)
    return _kind(value) if type(plain) is type(value) else _walk(plain, limits, depth, name, weight)


def _number(value: int) -> int | str:
    """Return an integer, or its size if the interpreter may refuse to print it."""
    size = value.bit_length()
    return int(value) if size <= _LARGEST_BITS else f"[integer of {size} bits]"


def _key_text(key: Any) -> str:
    if isinstance(key, int):
        return str(_number(key))
    return str(key) if key is None or isinstance(key, float) else _kind(key)


def _kind(value: Any) -> str:
    return f"<{type(value).__name__}>"


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
"""Maximum characters of a summary."""
LONGEST = 240
"""Maximum characters of one text within a value."""
_BODIES = words(
    "content data body source text newtext oldtext old new old_text new_text old_string new_string"
    " patch diff base64 blob"
)
"""Arguments with a whole file or message: a record has only their length."""
_MAIN = ("command", "path", "pattern", "query", "url", "name")
"""The most informative arguments, which appear without a name."""
_WINDOW = 8_192
"""Only the ends of a longer text are checked and included."""

_NUMBERS = frozenset({"integer", "number", "boolean", "null"})
_OPENING = words(
    "patternProperties unevaluatedProperties allOf anyOf oneOf $ref if dependentSchemas"
)
"""Where a schema may allow names that its properties do not list."""
_NUMBER = 32
"""Maximum characters of a number of 64 bits in JSON, with its punctuation."""
_TOO_SHORT = 6
"""Shorter texts cannot contain both a name and a secret."""

_encode = msgspec.json.Encoder().encode


def summarize(value: Any, *, limit: int = _MOST) -> str:
    """Return a value as bounded text without secrets: a text unchanged, others as JSON."""
    if isinstance(value, str):
        return summarize_text(value, limit=limit)
    return cut(_as_text(redact_within(value, _SHORT)), limit)


def in_words(arguments: Any) -> str:
    """Return the arguments in one line, without secrets, the most informative one first."""
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
    """Summaries of one tool's arguments; the facts from its schema are computed once."""

    __slots__ = ("_has_bodies", "_is_plain")

    def __init__(self, schema: Mapping[str, Any]) -> None:
        names = dict(_properties(schema))
        self._has_bodies = any(name.lower() in _BODIES for name in names)
        only_numbers = all(
            kinds and kinds <= _NUMBERS and weigh(name) is Weight.NONE
            for name, kinds in names.items()
        )
        self._is_plain = only_numbers and sum(len(name) + _NUMBER for name in names) < _MOST
        """Whether the schema allows only a few numbers, none of which is a secret."""

    def of(self, arguments: dict[str, Any], canonical: bytes) -> str:
        """Return the summary of validated arguments, whose canonical JSON is available."""
        if self._is_plain:
            return canonical.decode()
        size = len(canonical)
        if size <= LONGEST or (size <= _MOST and not self._has_bodies):
            text = canonical.decode()
            if _has_no_secret(text):
                return text
        limits = _SHORT_JSON
        if _is_bounded(canonical, limits, limits.depth):
            limits = _SHORT_BOUNDED
        return cut(_as_text(_walk_mapping(arguments, limits, 0, Weight.NONE)), _MOST)


def _properties(schema: Mapping[str, Any]) -> Iterator[tuple[str, frozenset[str]]]:
    """Return all names in a schema with their possible types; none if any value is allowed."""
    closed = schema.get("additionalProperties") is False or schema.get("properties")
    other = schema.get("additionalProperties", False)
    if not closed or other is not False or not _OPENING.isdisjoint(schema):
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
    """Redact, then truncate: half of a secret would not be recognized."""
    if len(text) < _TOO_SHORT and not name:
        return text
    if len(text) <= 2 * _WINDOW:
        return cut(redact_text(text, name), limit)
    head, tail = text[:_WINDOW], text[-_WINDOW:]
    # The window may have cut a secret in two, or a value from its name: drop that piece.
    head = head[: max(head.rfind("\n"), head.rfind(" "), 0)]
    line = tail.find("\n", 0, _WINDOW // 2)
    begin = line if line >= 0 else tail.find(" ", _WINDOW // 4)
    tail = tail[begin:] if begin >= 0 else ""
    return cut(redact_text(head, name) + redact_text(tail, name), limit, of=len(text))


def cut(text: str, limit: int, *, of: int | None = None) -> str:
    """Return at most `limit` characters: the beginning, the end, and the original length."""
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


_SHORT = RedactionLimits(depth=6, items=50, text=_shorten)
_SHORT_JSON = replace(_SHORT, longest=LONGEST, is_json=True, innermost=re.compile(rb"\[,{0,49}\]"))
_SHORT_BOUNDED = replace(_SHORT_JSON, is_bounded=True)
