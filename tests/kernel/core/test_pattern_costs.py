"""What a check may cost is reckoned before it begins: by the sizes of patterns, texts and values."""

from __future__ import annotations

from typing import Any

import pytest

from callgate.core.errors import ToolRegistrationError, ToolValidationError
from callgate.core.schema_validators import LARGEST_PATTERNS, LONGEST_TEXT, MOST_PARTS, TooMuch, Validator, nanoseconds
from callgate.core.schemas import MAX_BYTES, ArgumentSchema

SLUG = "^[a-z0-9-]{1,63}$"
SLOW = "(?:a?){10000}[b-y]"
"""A state for each repetition, and all of them at work at each character."""


def taken(schema: dict[str, Any], value: Any) -> bool:
    try:
        Validator(schema).is_valid(value)
    except TooMuch:
        return False
    return True


def test_a_large_pattern_meets_short_texts_only() -> None:
    assert nanoseconds(SLOW) > 1_000 * nanoseconds("^a+$")
    assert taken({"pattern": SLOW}, "a" * 400)
    assert not taken({"pattern": SLOW}, "a" * LONGEST_TEXT)
    assert taken({"pattern": "^(a+)+$"}, "a" * LONGEST_TEXT)


@pytest.mark.parametrize(
    "schema",
    [
        {"items": {"pattern": SLOW}},
        {"allOf": [{"items": {"pattern": SLOW}}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"pattern": SLOW}}}},
        {"items": {"additionalProperties": {"pattern": SLOW}}},
        {"prefixItems": [{"pattern": SLOW}]},
        {"unheard-of": {}, "items": {"pattern": SLOW}},
        {"items": {"patternProperties": {SLOW: {}}}},
        {"contains": {"propertyNames": {"pattern": SLOW}}},
    ],
)
def test_a_pattern_counts_wherever_the_schema_hides_it(schema: dict[str, Any]) -> None:
    text = "a" * LONGEST_TEXT
    assert not taken(schema, [text, {text: text}])


def test_a_pattern_counts_for_the_texts_that_it_is_about_and_no_others() -> None:
    schema = {
        "properties": {
            "name": {"pattern": SLUG},
            "rows": {"items": {"properties": {"text": {"type": "string"}}}},
        }
    }
    rows = [{"text": "a" * 1_000}] * 2_000
    assert taken(schema, {"name": "a", "rows": rows})
    schema["properties"]["rows"]["items"]["properties"]["text"]["pattern"] = SLUG  # type: ignore[index]
    assert not taken(schema, {"name": "a", "rows": rows})


def test_many_patterns_that_are_large_together_are_refused_with_the_schema() -> None:
    count = LARGEST_PATTERNS // (1024 * 1024) + 1
    patterns = [f"(?:{chr(97 + number)}?){{10000}}" for number in range(count)]
    Validator({"anyOf": [{"pattern": each} for each in patterns[:2]]})
    with pytest.raises(ValueError, match="too much memory"):
        Validator({"anyOf": [{"pattern": each} for each in patterns]})


def test_arguments_of_too_many_parts_are_refused_and_long_texts_are_not() -> None:
    listed = {"type": "object", "properties": {"a": {"type": "array"}, "b": {"type": "string"}}}
    schema = ArgumentSchema(listed, "t")
    assert schema.check({"a": [1] * (MOST_PARTS - 10)})
    assert schema.check({"b": "1," * (MAX_BYTES // 4)})
    for value in ({"a": [1] * MOST_PARTS}, {"a": [[]] * MOST_PARTS}, {"a": [{"b": 1}] * MOST_PARTS}):
        with pytest.raises(ToolValidationError, match="too large"):
            schema.check(value)


def test_what_is_no_linear_pattern_is_refused_with_the_schema() -> None:
    for pattern in ("(?=a)b", r"(a)\1", "(", "(?:.{1000}){1000}"):
        with pytest.raises(ToolRegistrationError):
            one = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
            ArgumentSchema(one, "t")
