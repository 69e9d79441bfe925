"""Edits of other programs' JSON keep all that stands there."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.features.agents.hooks.jsonc_edits import (
    NotJson,
    parse,
    value_of,
    with_first_member,
    with_item,
    without_items,
)

PATH = ("hooks", "Pre")
ITEM = {"ours": True, "hooks": [{"command": 'a "quoted" // word'}]}


def is_ours(value: object) -> bool:
    return isinstance(value, dict) and "ours" in value


@pytest.mark.parametrize(
    "text",
    [
        '{"hooks": {"Pre": [{"a": 1}]}}',
        '{\n  // note\n  "hooks": {\n    "Pre": [\n      {"a": 1}, // last\n    ],\n  },\n}\n',
        '{\n\t"hooks": {\n\t\t"Pre": [\n\t\t\t{"a": 1}\n\t\t]\n\t}\n}',
        '{"x": "/* no comment */", "hooks": {"Pre": [{"a": "]}"}, {"b": 2}]}}',
    ],
)
def test_an_item_comes_and_goes_and_leaves_the_text_as_it_was(text: str) -> None:
    added = with_item(text, PATH, ITEM)
    assert value_of(added, parse(added))["hooks"]["Pre"][-1] == ITEM
    assert without_items(added, PATH, is_ours) == text


def test_what_is_missing_is_made() -> None:
    for text in ("", "{}", '{"a": 1}', '{"hooks": {}}', '{"hooks": {"Pre": []}}'):
        added = with_item(text, PATH, ITEM)
        assert value_of(added, parse(added))["hooks"]["Pre"] == [ITEM]


def test_comments_survive() -> None:
    text = '{\n  "a": 1, // one\n  /* two */\n  "b": [1, 2,],\n}\n'
    added = with_item(text, PATH, ITEM)
    assert "// one" in added
    assert "/* two */" in added


@pytest.mark.parametrize(
    "text",
    [
        "[",
        "{]",
        '{"a" 1}',
        '{"a": 1} x',
        "nope",
        '{"hooks": 1}',
        '{"hooks": {"Pre": {}}}',
        "[]",
        '{"a": "\\q"}',
        '{"\\q": 1}',
        '{"a": 1.2.3}',
        '{"a": 01}',
    ],
)
def test_what_cannot_be_edited_is_refused(text: str) -> None:
    with pytest.raises(NotJson):
        with_item(text, PATH, ITEM)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(
    before=st.dictionaries(st.text(max_size=4).filter(lambda key: key != "hooks"), _JSON, max_size=4),
    items=st.lists(_JSON.filter(lambda each: not is_ours(each)), max_size=3),
    indent=st.sampled_from([None, 2, "\t"]),
)
def test_any_document_keeps_its_meaning(before: dict[str, object], items: list[object], indent: object) -> None:
    document = {**before, "hooks": {"Pre": items}}
    text = json.dumps(document, indent=indent)  # type: ignore[arg-type]
    added = with_item(text, PATH, ITEM)
    assert value_of(added, parse(added)) == {**before, "hooks": {"Pre": [*items, ITEM]}}
    removed = without_items(added, PATH, is_ours)
    assert value_of(removed, parse(removed)) == document


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ('{"hooks": {"Pre": [1 /* a, b */, {"ours": 1}, 2]}}', [1, 2]),
        ('{"hooks": {"Pre": [1 // a, b\n, {"ours": 1} /* c, */, // d\n 2,]}}', [1, 2]),
        ('{"hooks": {"Pre": [1, // a, b\n {"ours": 1}]}}', [1]),
        ('{"hooks": {"Pre": [1, // a, b\n {"ours": 1} // c\n]}}', [1]),
        ('{"hooks": {"Pre": [// a, b\n {"ours": 1}]}}', []),
        ('{"hooks": {"Pre": [/* a, b */ {"ours": 1}, 2]}}', [2]),
        ('{"hooks": {"Pre": [{"ours": 1} // a, b\n, 2]}}', [2]),
        ('{"hooks": {"Pre": [\r\n  1, // a, b\r\n  {"ours": 1}\r\n]}}', [1]),
    ],
)
def test_comments_around_an_item_that_goes_stay_and_are_no_commas(text: str, rest: list[int]) -> None:
    removed = without_items(text, PATH, is_ours)
    assert value_of(removed, parse(removed))["hooks"]["Pre"] == rest
    for comment in ("a, b", "c", "d"):
        assert (f"/ {comment}" in removed or f"* {comment}" in removed) is (
            f"/ {comment}" in text or f"* {comment}" in text
        )


@pytest.mark.parametrize(
    "text", ["{ // note\n}", "{\n  /* note */\n}", '{"hooks": { // note\n }}', '{"hooks": {"Pre": [ // note\n ]}}']
)
def test_a_comment_in_what_is_empty_stays(text: str) -> None:
    added = with_item(text, PATH, ITEM)
    assert value_of(added, parse(added))["hooks"]["Pre"] == [ITEM]
    assert "note" in added
    removed = without_items(added, PATH, is_ours)
    assert value_of(removed, parse(removed))["hooks"]["Pre"] == []
    assert "note" in removed


def test_of_an_item_that_stays_only_what_is_ours_goes() -> None:
    text = '{"hooks": {"Pre": [{"hooks": [{"a": 1}, {"ours": 1}, {"b": 2}]}, {"ours": 1}, {"hooks": 3}, 4]}}'
    removed = without_items(text, PATH, is_ours, "hooks")
    assert value_of(removed, parse(removed))["hooks"]["Pre"] == [{"hooks": [{"a": 1}, {"b": 2}]}, {"hooks": 3}, 4]


def test_a_first_member_is_put_into_the_object_and_not_into_a_comment() -> None:
    for text in ('// {see docs}\n{\n  "a": 1\n}', '/* { */ {"a": 1}'):
        added = with_first_member(text, "version", 1)
        assert value_of(added, parse(added)) == {"version": 1, "a": 1}
