"""The one place where a JSON Schema becomes a validator: linear patterns, and a bound on the work.

    Validator(schema) -> is_valid(value), iter_errors(value)

Patterns are matched in linear time; one that cannot be (look-around, back references, too large)
is refused with the schema. Linear can still be long, and nothing can interrupt it, so three things
are bounded: the parts of a value, these times the parts of the schema, and what the patterns take
for the texts that they are about (`pattern_costs`). The bounds are for about 0.1 s each. A text of
more than `LONGEST_TEXT` characters fits no pattern.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jsonschema_rs

from callgate.core.json_schema.pattern_costs import (
    LARGEST_PATTERN,
    LARGEST_PATTERNS,
    Reach,
    nanoseconds,
    options,
    size_of_pattern,
)

LONGEST_TEXT = 8_192
"""Characters of a text, or a key, that is to fit a pattern."""
MOST_PARTS = 150_000
"""Of a value: texts, numbers, lists and the like."""
MOST_CHECKS = 10_000_000
"""Parts of a schema times parts of a value."""
MOST_MATCHING_NS = 100_000_000
"""Nanoseconds that patterns take at most, as reckoned and not as measured."""
_MOST_DETAILED = 200_000
"""Parts of a schema times parts of a value, of which every violation is listed."""
_NAMES_OF_SCHEMAS = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
"""Keywords whose members are schemas under names of their own."""
_DATA = frozenset({"enum", "const", "default", "examples"})
_TOO_MUCH = "there is too much in it to be checked against the schema"


class TooMuch(ValueError):
    """A value and a schema that take too long together."""


class Validator:
    """Raises `ValueError` where the schema is none, or has a pattern that is not taken."""

    __slots__ = ("_longest", "_native", "_parts", "_reach", "free_bytes", "is_quickly_valid")

    def __init__(
        self,
        schema: Mapping[str, Any],
        *,
        draft7: bool = False,
        formats: bool = False,
        parts: int | None = None,
    ) -> None:
        """`parts`: how many parts of the schema are about one part of a value, at most; all of
        them where left out."""
        patterns = set(_patterns(schema))
        if sum(map(size_of_pattern, patterns)) > LARGEST_PATTERNS:
            raise ValueError("its patterns take too much memory")
        everywhere = sum(map(nanoseconds, patterns))
        self._parts = parts or sum(1 for _ in nodes(schema))
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
            MOST_PARTS, MOST_CHECKS // max(self._parts, 1), MOST_MATCHING_NS // max(everywhere, 1)
        )
        """A value whose JSON is no longer than this cannot be too much."""
        self.is_quickly_valid: Any = self._native.is_valid
        """For a value of no more than `free_bytes`."""

    def is_valid(self, value: Any) -> bool:
        """Raises `TooMuch`."""
        self._checks(value)
        return bool(self._native.is_valid(value))

    def iter_errors(self, value: Any) -> Iterable[Any]:
        """What is wrong; nothing where there is too much of it to list."""
        if self._checks(value) > _MOST_DETAILED:
            return ()
        errors: Iterable[Any] = self._native.iter_errors(value)
        return errors

    def _checks(self, value: Any) -> int:
        """How many parts of the schema meet how many of the value. Raises `TooMuch`."""
        count = count_parts(value, min(MOST_PARTS, MOST_CHECKS // max(self._parts, 1)))
        matching = 0
        for each in self._reach.work(value, self._longest):
            matching += each
            if matching > MOST_MATCHING_NS:
                raise TooMuch(_TOO_MUCH)
        return count * self._parts


def count_parts(value: Any, most: int = MOST_PARTS) -> int:
    """Raises `TooMuch` where there are more."""
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
    """Whether a reference leads into a value, where `_capped` changes nothing."""
    references = node.items() if isinstance(node, dict) else ()
    return any(
        key.endswith("ef") and isinstance(text, str) and not _DATA.isdisjoint(text.split("/"))
        for key, text in references
    )


def nodes(schema: Any) -> Iterator[Any]:
    """All that is in a schema, values included."""
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, dict):
            waiting += node.values()
        elif isinstance(node, list | tuple):
            waiting += node


def _capped(schema: Any, *, named: bool = False) -> Any:
    """With a bound on the length of each text beside its pattern, which is checked first.
    `named`: its keys are names, and not keywords."""
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
