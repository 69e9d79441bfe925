"""What arguments a tool gets to see, and what is said about the others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.core.errors import ToolValidationError
from callgate.core.schemas import MAX_DEPTH, ArgumentSchema, canonical_json
from tests.function_calls import count_function_calls

ITEM = {"type": "object", "properties": {"n": {"type": "integer"}, "tag": {"enum": ["a", "b"]}}}
SCHEMA = {
    "type": "object",
    "properties": {
        "count": {"type": "integer"},
        "maybe": {"type": ["integer", "null"]},
        "ratio": {"type": "number"},
        "day": {"type": "string", "format": "date"},
        "items": {"type": "array", "items": ITEM},
        "free": {"type": "object"},
        "open": {"type": "object", "properties": {}, "additionalProperties": True},
        "limit": {"type": "integer", "default": 10},
    },
    "required": ["count"],
}
schema = ArgumentSchema(SCHEMA, "probe")


def violations(arguments: Any, against: ArgumentSchema = schema) -> dict[str, str]:
    with pytest.raises(ToolValidationError) as caught:
        against.check(arguments)
    assert len(caught.value.validation_errors) == len(caught.value.details["errors"])
    return {each["path"]: each["message"] for each in caught.value.details["errors"]}


@pytest.mark.spec("T-19")
@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({"count": 1.0}, {"count": 1}),
        ({"count": 1, "maybe": 2.0}, {"count": 1, "maybe": 2}),
        ({"count": 1, "items": [{"n": 3.0}]}, {"count": 1, "items": [{"n": 3}]}),
        ({"count": 1, "ratio": 2.0}, {"count": 1, "ratio": 2.0}),
        ({"count": 1e3}, {"count": 1000}),
    ],
)
def test_where_the_schema_says_integer_the_tool_gets_an_int(given: Any, taken: Any) -> None:
    checked = schema.check(given).arguments
    assert checked == {**taken, "limit": 10}
    assert repr(checked["count"]) == repr(taken["count"])


@pytest.mark.spec("T-19")
@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53).map(float))
def test_whatever_a_whole_number_looks_like_in_json_the_tool_gets_an_int(number: float) -> None:
    deep = {"count": 1, "items": [{"n": number}], "ratio": number}
    if not number.is_integer():
        assert set(violations(deep)) == {"items[0].n"}
        return
    checked = schema.check(deep).arguments
    assert type(checked["items"][0]["n"]) is int
    assert checked["items"][0]["n"] == number
    assert type(checked["ratio"]) is float


def test_plain_arguments_are_checked_in_few_function_calls() -> None:
    plain = ArgumentSchema({"type": "object", "properties": {"a": {"type": "integer"}}}, "plain")
    assert count_function_calls(lambda: plain.check({"a": 19})) <= 12


@pytest.mark.spec("T-19")
def test_a_default_is_filled_in_before_anyone_is_asked() -> None:
    checked = schema.check({"count": 1})
    assert checked.arguments == {"count": 1, "limit": 10}
    assert checked.canonical == b'{"count":1,"limit":10}'


@pytest.mark.spec("S4-13")
def test_every_violation_is_listed_with_its_path() -> None:
    assert set(violations({"maybe": "x", "items": [{"n": "y"}, {"tag": "z"}], "extra": 1})) == {
        "",
        "maybe",
        "items[0].n",
        "items[1].tag",
        "extra",
    }


@pytest.mark.spec("T-19")
def test_formats_are_checked() -> None:
    assert set(violations({"count": 1, "day": "tomorrow"})) == {"day"}


@pytest.mark.spec("T38")
@pytest.mark.parametrize(
    ("key", "near"), [("Count", "count"), ("cuont", "count"), ("maxime", None), ("\u017fcount", "count")]
)
def test_an_unknown_key_is_refused_and_the_nearest_known_one_named(key: str, near: str | None) -> None:
    message = violations({"count": 1, key: 1})[key]
    assert (f"did you mean {near!r}?" if near else "known: count") in message


def test_unknown_keys_are_refused_below_the_top_as_well() -> None:
    assert set(violations({"count": 1, "items": [{"m": 1}]})) == {"items[0].m"}


def test_where_the_schema_allows_other_keys_they_are_taken() -> None:
    arguments = {"count": 1, "free": {"x": [1]}, "open": {"y": 2}, "limit": 1}
    assert schema.check(arguments).arguments == arguments


@pytest.mark.parametrize("arguments", [None, [], "text", 3, [("count", 1)]])
def test_arguments_must_be_an_object(arguments: Any) -> None:
    assert set(violations(arguments)) == {""}


@pytest.mark.spec("T37")
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 500, 100_000])
def test_deep_nesting_is_refused_and_never_crashes(depth: int) -> None:
    nested: Any = 1
    for _ in range(depth):
        nested = [nested]
    assert set(violations({"count": 1, "free": {"x": nested}})) == {""}


def test_nesting_up_to_the_bound_is_taken() -> None:
    nested: Any = 1
    for _ in range(MAX_DEPTH - 3):
        nested = [nested]
    schema.check({"count": 1, "free": {"x": nested}})


@pytest.mark.spec("T39")
@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_are_not_json_are_refused(number: float) -> None:
    violations({"count": 1, "ratio": number})
    violations({"count": 1, "maybe": number})
    violations({"count": 1, "free": {"x": [number]}})


@pytest.mark.spec("T40")
@pytest.mark.parametrize("text", ["\ud800", "a\udfff", {"\ud800": 1}])
def test_lone_surrogates_are_refused(text: Any) -> None:
    violations({"count": 1, "free": {"x": text}})


@pytest.mark.parametrize("value", [object(), lambda: 1, {1, object()}])
def test_what_is_not_json_is_refused(value: Any) -> None:
    violations({"count": 1, "free": {"x": value}})


def test_arguments_over_the_bound_are_refused() -> None:
    small = ArgumentSchema({"type": "object", "properties": {"a": {"type": "string"}}}, "p", max_bytes=100)
    assert set(violations({"a": "x" * 100}, small)) == {""}
    small.check({"a": "x" * 90})


@pytest.mark.spec("T43")
def test_a_complaint_does_not_repeat_the_value() -> None:
    with pytest.raises(ToolValidationError) as caught:
        schema.check({"count": "hunter2hunter2"})
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(caught.value.details)


def test_the_schema_of_the_author_is_left_as_it_was() -> None:
    before = repr(SCHEMA)
    ArgumentSchema(SCHEMA, "probe").check({"count": 1})
    assert repr(SCHEMA) == before


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(json_values)
def test_what_is_taken_is_exactly_its_canonical_bytes(value: Any) -> None:
    try:
        checked = schema.check({"count": 1, "free": {"x": value}})
    except ToolValidationError:
        pytest.fail("plain JSON must be taken")
    assert canonical_json(checked.arguments) == checked.canonical
    assert checked.sha256 == schema.check(checked.arguments).sha256


@given(st.dictionaries(st.text(max_size=8), json_values, max_size=6))
def test_anything_is_either_taken_or_refused_with_words(arguments: dict[str, Any]) -> None:
    try:
        schema.check(arguments)
    except ToolValidationError as error:
        assert error.validation_errors
