"""The one place where a JSON Schema becomes a validator: linear patterns, and a bound on the work.

    Validator(schema) -> is_valid(value), iter_errors(value)

Patterns are matched in linear time; one that cannot be (look-around, back references, too large)
is refused with the schema. Linear can still be long, and nothing can interrupt it, so two products
are bounded: parts of the schema times parts of the value, and patterns times the characters of the
texts that they could be about. A text of more than `LONGEST_TEXT` characters fits no pattern.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jsonschema_rs

LONGEST_TEXT = 8_192
"""Characters of a text, or a key, that is to fit a pattern."""
MOST_CHECKS = 10_000_000
"""Parts of a schema times parts of a value."""
MOST_CHARACTERS = 2_000_000
"""That patterns are matched with, one after another."""
_MOST_DETAILED = 200_000
"""Parts of a schema times parts of a value, of which every violation is listed."""
_LARGEST_PATTERNS = 64 * 1024 * 1024
"""Bytes of all compiled patterns of a schema."""
_LARGEST_PATTERN = 1024 * 1024
_SMALL_PATTERN = 64 * 1024
_LARGE_WEIGHT = 16
"""How much longer a large pattern takes for a character than a small one."""
_DFA = 64 * 1024
_NAMES_OF_SCHEMAS = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
"""Keywords whose members are schemas under names of their own."""
_DATA = frozenset({"enum", "const", "default", "examples"})


class TooMuch(ValueError):
    """A value and a schema that take too long together."""


class Validator:
    """Raises `ValueError` where the schema is none, or has a pattern that is not taken."""

    __slots__ = ("_native", "_parts", "_patterns", "_texts_count", "free_bytes", "is_quickly_valid")

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
        self._patterns = sum(map(_weight, patterns))
        self._parts = parts or sum(1 for _ in nodes(schema))
        self._texts_count = any(map(_refers_into_data, nodes(schema)))
        options = _options(max(_LARGEST_PATTERNS // max(len(patterns), 1), _SMALL_PATTERN))
        make: Any = jsonschema_rs.Draft7Validator if draft7 else jsonschema_rs.validator_for
        self._native = make(
            _capped(schema) if patterns else schema,
            validate_formats=formats,
            mask="the value",
            offline=True,
            pattern_options=options,
        )
        self.free_bytes = min(
            MOST_CHECKS // max(self._parts, 1), MOST_CHARACTERS // max(self._patterns, 1)
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
        count = characters = 0
        waiting, longest = [value], float("inf") if self._texts_count else LONGEST_TEXT
        while waiting:
            node = waiting.pop()
            count += 1
            if isinstance(node, str):
                characters += len(node) if len(node) <= longest else 0
            elif isinstance(node, dict):
                waiting += node.values()
                characters += sum(map(len, node))
            elif isinstance(node, list):
                waiting += node
            if count * self._parts > MOST_CHECKS or characters * self._patterns > MOST_CHARACTERS:
                raise TooMuch("there is too much in it to be checked against the schema")
        return count * self._parts


def _options(size: int) -> jsonschema_rs.RegexOptions:
    return jsonschema_rs.RegexOptions(
        size_limit=min(size, _LARGEST_PATTERN), dfa_size_limit=_DFA
    )


def _weight(pattern: str) -> int:
    """How long it takes for one character. Raises `ValueError` for what is not taken."""
    for size, weight in ((_SMALL_PATTERN, 1), (_LARGEST_PATTERN, _LARGE_WEIGHT)):
        try:
            jsonschema_rs.Draft7Validator({"pattern": pattern}, pattern_options=_options(size))
        except ValueError:
            continue
        return weight
    try:
        jsonschema_rs.Draft7Validator({"pattern": pattern})
    except ValueError:
        raise ValueError(f"{pattern[:200]!r} is not a regular expression") from None
    raise ValueError(
        f"the pattern {pattern[:200]!r} is not taken: it has look-around or a back reference, which"
        " cannot be matched in linear time, or a repetition that takes too much memory"
    )


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
