"""Schemas of strangers: what refers to itself many times over is refused before it is checked."""

from __future__ import annotations

from typing import Any

import pytest

from callgate.core.errors import ToolRegistrationError, ToolValidationError
from callgate.core.schema_sizes import size_of
from callgate.core.schemas import ArgumentSchema, ForeignSchema


def refer(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


def laughs(step: Any, **last: Any) -> dict[str, Any]:
    """`a0` is four times `a1`, which is four times `a2`, and so on."""
    parts = {f"a{number}": step(f"a{number + 1}") for number in range(30)}
    return {"type": "object", **refer("a0"), "$defs": {**parts, "a30": {"type": "object", **last}}}


def by_anchors() -> dict[str, Any]:
    parts: dict[str, Any] = {
        f"x{number}": {"$anchor": f"a{number}", "allOf": [{"$ref": f"#a{number + 1}"}] * 4} for number in range(30)
    }
    return {"type": "object", "$ref": "#a0", "$defs": {**parts, "z": {"$anchor": "a30"}}}


def by_addresses() -> dict[str, Any]:
    parts: dict[str, Any] = {
        f"x{number}": {"$id": f"https://x.example/a{number}", "allOf": [{"$ref": f"a{number + 1}"}] * 4}
        for number in range(30)
    }
    end = {"$id": "https://x.example/a30"}
    return {"type": "object", "$id": "https://x.example/", "$ref": "a0", "$defs": {**parts, "z": end}}


BOMBS = {
    "all of": laughs(lambda name: {"allOf": [refer(name)] * 4}),
    "any of": laughs(lambda name: {"anyOf": [refer(name)] * 4}, required=["never"]),
    "deeper": laughs(lambda name: {"properties": {"a": {"oneOf": [refer(name)] * 4}}}),
    "once more": laughs(lambda name: {"allOf": [refer(name)], "unevaluatedProperties": False}),
    "and back": laughs(
        lambda name: {"allOf": [refer(name)] * 4, "properties": {"b": refer("a0")}},
        properties={"b": refer("a29")},
    ),
    "anchors": by_anchors(),
    "addresses": by_addresses(),
    "itself": {"type": "object", "allOf": [{"$ref": "#"}]},
    "each other": {
        "type": "object",
        **refer("a"),
        "$defs": {"a": {"not": refer("b")}, "b": {"if": refer("a")}},
    },
    "a long way": {
        "type": "object",
        **refer("a0"),
        "$defs": {f"a{number}": refer(f"a{number + 1}") for number in range(5_000)},
    },
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_could_not_be_checked_to_its_end_is_no_tool_and_no_form(name: str) -> None:
    with pytest.raises(ToolRegistrationError):
        ArgumentSchema(BOMBS[name], "tool", foreign=True)
    with pytest.raises(ValueError):
        ForeignSchema(BOMBS[name], plain=True)


def test_a_form_that_refers_to_anything_is_refused() -> None:
    with pytest.raises(ValueError):
        ForeignSchema({"properties": {"a": {"$ref": "#"}}}, plain=True)
    assert ForeignSchema({"properties": {"$ref": {"type": "string"}}}, plain=True).is_valid({})


COMMENTS = {
    "type": "object",
    "$ref": "#/$defs/comment",
    "$defs": {
        "comment": {
            "anyOf": [
                {"required": [each], "properties": {"answers": {"items": refer("comment")}}}
                for each in ("text", "picture", "link")
            ]
        }
    },
}


def test_what_goes_deeper_into_the_arguments_may_come_back_to_itself() -> None:
    schema = ArgumentSchema(COMMENTS, "tool", foreign=True)
    said = {"text": "a", "answers": [{"link": "b", "answers": [{"picture": "c"}]}]}
    assert schema.check(said).arguments == said
    looked_into = {"type": "object", "if": {"items": {"$ref": "#"}}}
    assert size_of(looked_into).returns == 1


def test_arguments_that_are_wrong_far_down_are_refused_without_looking_for_every_reason() -> None:
    schema = ArgumentSchema(COMMENTS, "tool", foreign=True)
    said: dict[str, Any] = {}
    for _ in range(25):
        said = {"text": "a", "answers": [said]}
    with pytest.raises(ToolValidationError) as refused:
        schema.check(said)
    assert len(refused.value.validation_errors) == 1
    with pytest.raises(ToolValidationError) as refused:
        schema.check({"text": "a", "answers": [{}]})
    assert len(refused.value.validation_errors) == 1
