"""How long the patterns of a JSON Schema take at most, before any is matched.

    nanoseconds(pattern) -> for one character, by the size of the compiled pattern
    Reach(schema).work(value) -> for all texts of a value that its patterns are about

Matching takes linear time: the length of the text times the size of the pattern, where the pattern
is made for it. What a schema says of properties and items is followed into the value; below
anything else (references, alternatives), every pattern of the schema counts for every text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import jsonschema_rs

LARGEST_PATTERN = 1024 * 1024
"""Bytes of one compiled pattern ..."""
LARGEST_PATTERNS = 8 * 1024 * 1024
"""... and of all those of a schema."""
_SMALLEST = 1024
_SMALL_NS = 10
_NS_PER_KIB = 200
"""Measured with patterns made for it, on two virtual cores: 90 to 130."""
_DFA = 64 * 1024
_SIMPLE = frozenset(
    {
        "type",
        "enum",
        "const",
        "required",
        "format",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "multipleOf",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "uniqueItems",
        "title",
        "description",
        "default",
        "examples",
        "$schema",
        "$id",
        "$comment",
        "pattern",
        "properties",
        "items",
        "additionalProperties",
    }
)
"""Keywords that say nothing of other parts of a value, or are followed into them."""


def options(size: int = LARGEST_PATTERN) -> jsonschema_rs.RegexOptions:
    """Linear time, and a bound on memory."""
    return jsonschema_rs.RegexOptions(size_limit=size, dfa_size_limit=_DFA)


@lru_cache(maxsize=1_000)
def size_of_pattern(pattern: str) -> int:
    """Bytes, as a power of two. Raises `ValueError` for what is not taken."""
    size = _SMALLEST
    while size <= LARGEST_PATTERN:
        try:
            jsonschema_rs.Draft7Validator({"pattern": pattern}, pattern_options=options(size))
        except ValueError:
            size *= 2
            continue
        return size
    try:
        jsonschema_rs.Draft7Validator({"pattern": pattern})
    except ValueError:
        raise ValueError(f"{pattern[:200]!r} is not a regular expression") from None
    raise ValueError(
        f"the pattern {pattern[:200]!r} is not taken: it has look-around or a back reference, which"
        " cannot be matched in linear time, or a repetition that takes too much memory"
    )


def nanoseconds(pattern: str) -> int:
    """At most, for one character."""
    size = size_of_pattern(pattern)
    return _SMALL_NS if size <= _SMALLEST else _NS_PER_KIB * size // 1024


class Reach:
    """Which patterns are about which texts of a value."""

    __slots__ = ("_everywhere", "_here", "_items", "_properties")

    def __init__(self, schema: Any, everywhere: int) -> None:
        """`everywhere`: nanoseconds for a character of all patterns together."""
        found = schema if isinstance(schema, Mapping) else {}
        properties, items = found.get("properties", {}), found.get("items", True)
        is_simple = (
            _SIMPLE.issuperset(found)
            and isinstance(properties, Mapping)
            and isinstance(items, Mapping | bool)
            and isinstance(found.get("additionalProperties", True), bool)
        )
        self._everywhere = 0 if is_simple else everywhere
        self._here = 0
        self._properties: dict[str, Reach] = {}
        self._items: Reach | None = None
        if not is_simple:
            return
        if isinstance(found.get("pattern"), str):
            self._here = nanoseconds(found["pattern"])
        below = {name: Reach(each, everywhere) for name, each in properties.items()}
        self._properties = {name: each for name, each in below.items() if each}
        self._items = None if isinstance(items, bool) else Reach(items, everywhere) or None

    def __bool__(self) -> bool:
        return bool(self._everywhere or self._here or self._properties or self._items)

    def work(self, value: Any, longest: float) -> Iterator[int]:
        """Nanoseconds, bit by bit. A text above `longest` characters is not matched."""
        if self._everywhere:
            yield from (self._everywhere * each for each in _lengths(value, longest))
        elif isinstance(value, str):
            yield self._here * len(value) if len(value) <= longest else 0
        elif isinstance(value, dict):
            for name, reach in self._properties.items():
                if name in value:
                    yield from reach.work(value[name], longest)
        elif isinstance(value, list) and self._items is not None:
            for each in value:
                yield from self._items.work(each, longest)


def _lengths(value: Any, longest: float) -> Iterator[int]:
    """Characters of each text and key in a value."""
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, str):
            yield len(node) if len(node) <= longest else 0
        elif isinstance(node, dict):
            waiting += node.values()
            yield sum(map(len, node))
        elif isinstance(node, list):
            waiting += node
