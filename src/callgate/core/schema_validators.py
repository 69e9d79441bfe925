"""Validators of JSON Schema: linear patterns, and a bound on the work.

    Validator(schema) -> is_valid(value), iter_errors(value)
    nanoseconds(pattern) -> cost of one character, by the size of the compiled pattern
    Reach(schema).work(value) -> cost of all texts of a value that its patterns apply to

Only this module compiles a schema. A pattern that cannot be matched in linear time (look-around,
back references, too large) is refused with its schema. A match cannot be interrupted, so three
products are bounded to about 0.1 s each: the parts of a value, the parts times the parts of the
schema, and the cost of the patterns. The cost follows properties and items into the value; below
references and alternatives every pattern of the schema counts for every text. A text of more than
`LONGEST_TEXT` characters fits no pattern.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import jsonschema_rs

LARGEST_PATTERN = 1024 * 1024
"""Maximum bytes of one compiled pattern ..."""
LARGEST_PATTERNS = 8 * 1024 * 1024
"""... and of all patterns of a schema."""
_SMALLEST = 1024
_SMALL_NS = 10
_NS_PER_KIB = 200
"""Measured with worst-case patterns on two virtual cores: 90 to 130."""
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
"""Keywords that do not concern other parts of a value, or that `Reach` follows into them."""


def options(size: int = LARGEST_PATTERN) -> jsonschema_rs.RegexOptions:
    """Return options for linear time and bounded memory."""
    return jsonschema_rs.RegexOptions(size_limit=size, dfa_size_limit=_DFA)


@lru_cache(maxsize=1_000)
def size_of_pattern(pattern: str) -> int:
    """Return its bytes as a power of two. Raises `ValueError` if the pattern is not supported."""
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
        f"the pattern {pattern[:200]!r} is not supported: it has look-around or a back reference,"
        " which cannot be matched in linear time, or a repetition that takes too much memory"
    )


def nanoseconds(pattern: str) -> int:
    """Return an upper bound for the cost of one character."""
    size = size_of_pattern(pattern)
    return _SMALL_NS if size <= _SMALLEST else _NS_PER_KIB * size // 1024


class Reach:
    """Maps the patterns of a schema to the texts of a value."""

    __slots__ = ("_everywhere", "_here", "_items", "_properties")

    def __init__(self, schema: Any, everywhere: int) -> None:
        """`everywhere` is the cost of one character for all patterns together, in nanoseconds."""
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
        """Yield costs in nanoseconds. A text above `longest` characters is not matched."""
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
    """Yield the number of characters of each text, and of all keys of each object."""
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


LONGEST_TEXT = 8_192
"""Maximum characters of a text, or a key, that can match a pattern."""
MOST_PARTS = 150_000
"""Maximum parts of a value: texts, numbers, lists and so on."""
MOST_CHECKS = 10_000_000
"""Maximum product of schema parts and value parts."""
MOST_MATCHING_NS = 100_000_000
"""Maximum matching time in nanoseconds; estimated, not measured."""
_MOST_DETAILED = 200_000
"""Maximum product of schema parts and value parts for which every violation is listed."""
_NAMES_OF_SCHEMAS = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
"""Keywords whose members are schemas under arbitrary names."""
_DATA = frozenset({"enum", "const", "default", "examples"})
_TOO_MUCH = "it is too large to be checked against the schema"


class TooMuch(ValueError):
    """The validation of a value against a schema would take too long."""


class Validator:
    """Compiled schema. Raises `ValueError` for an invalid schema or an unsupported pattern."""

    __slots__ = ("_longest", "_native", "_part_limit", "_reach", "free_bytes", "is_quickly_valid")

    def __init__(
        self,
        schema: Mapping[str, Any],
        *,
        draft7: bool = False,
        formats: bool = False,
        part_limit: int | None = None,
    ) -> None:
        """`part_limit`: maximum number of schema parts that apply to one part of a value; default:
        all of them.
        """
        patterns = set(_patterns(schema))
        if sum(map(size_of_pattern, patterns)) > LARGEST_PATTERNS:
            raise ValueError("its patterns take too much memory")
        everywhere = sum(map(nanoseconds, patterns))
        self._part_limit = part_limit or sum(1 for _ in nodes(schema))
        refers = any(map(_refers_into_data, nodes(schema)))
        self._longest = float("inf") if refers else LONGEST_TEXT
        self._reach = Reach(schema, everywhere)
        make: Any = jsonschema_rs.Draft7Validator if draft7 else jsonschema_rs.validator_for
        self._native = make(
            _capped(schema) if patterns else schema,
            validate_formats=formats,
            mask="the value",
            offline=True,
            pattern_options=options(LARGEST_PATTERN),
        )
        self.free_bytes = min(
            MOST_PARTS,
            MOST_CHECKS // max(self._part_limit, 1),
            MOST_MATCHING_NS // max(everywhere, 1),
        )
        """A value whose JSON is not longer than this cannot be too much."""
        self.is_quickly_valid: Any = self._native.is_valid
        """For values of at most `free_bytes`."""

    def is_valid(self, value: Any) -> bool:
        """Return whether a value is valid. Raises `TooMuch`."""
        self._checks(value)
        return bool(self._native.is_valid(value))

    def iter_errors(self, value: Any) -> Iterable[Any]:
        """Return the violations, or none if the search would take too long."""
        if self._checks(value) > _MOST_DETAILED:
            return ()
        errors: Iterable[Any] = self._native.iter_errors(value)
        return errors

    def _checks(self, value: Any) -> int:
        """Return the number of schema parts times value parts. Raises `TooMuch`."""
        count = count_parts(value, min(MOST_PARTS, MOST_CHECKS // max(self._part_limit, 1)))
        matching = 0
        for each in self._reach.work(value, self._longest):
            matching += each
            if matching > MOST_MATCHING_NS:
                raise TooMuch(_TOO_MUCH)
        return count * self._part_limit


def count_parts(value: Any, most: int = MOST_PARTS) -> int:
    """Return the number of parts. Raises `TooMuch` if there are more than `most`."""
    count, waiting = 0, [value]
    while waiting:
        node = waiting.pop()
        count += 1
        if isinstance(node, dict):
            waiting += node.values()
        elif isinstance(node, list | tuple):
            waiting += node
        if count + len(waiting) > most:
            raise TooMuch(_TOO_MUCH)
    return count


def _patterns(schema: Any) -> Iterator[str]:
    for node in nodes(schema):
        if isinstance(node, dict):
            if isinstance(node.get("pattern"), str):
                yield node["pattern"]
            keys = node.get("patternProperties")
            if isinstance(keys, dict):
                yield from keys


def _refers_into_data(node: Any) -> bool:
    """Whether a reference leads into data, which `_capped` does not change."""
    references = node.items() if isinstance(node, dict) else ()
    return any(
        key.endswith("ef") and isinstance(text, str) and not _DATA.isdisjoint(text.split("/"))
        for key, text in references
    )


def nodes(schema: Any) -> Iterator[Any]:
    """Yield every node of a schema, including values."""
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, dict):
            waiting += node.values()
        elif isinstance(node, list | tuple):
            waiting += node


def _capped(schema: Any, *, named: bool = False) -> Any:
    """Return a schema that checks the length of a text before its pattern.

    `named`: the keys are names, not keywords.
    """
    if isinstance(schema, list | tuple):
        return [_capped(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    if named:
        return {name: _capped(each) for name, each in schema.items()}
    found = {
        key: each if key in _DATA else _capped(each, named=key in _NAMES_OF_SCHEMAS)
        for key, each in schema.items()
    }
    if isinstance(found.get("pattern"), str):
        bound = {"maxLength": LONGEST_TEXT}
        fits = {"if": bound, "then": {"pattern": found.pop("pattern")}}
        beside = found.get("allOf", [])
        found["allOf"] = [*(beside if isinstance(beside, list) else [beside]), bound, fits]
    return found
