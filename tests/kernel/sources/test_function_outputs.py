"""What a function returns, and what becomes of it."""

from __future__ import annotations

import datetime
import enum
import math
import pathlib
import uuid
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.core.calls import Diagnostic
from callgate.core.content import ImageBlock, ImageSource, JsonBlock, TextBlock
from callgate.core.errors import ToolExecutionError
from callgate.core.tools import ToolOutput
from callgate.sources.signatures import as_output, error_result, ok_result

IMAGE = ImageBlock(ImageSource(data="aGk="), "image/png")


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    when: datetime.date


class Item(msgspec.Struct):
    name: str


@pytest.mark.parametrize(
    ("returned", "text", "value"),
    [
        ("hi", "hi", "hi"),
        ("", "", ""),
        ("ü 😀", "ü 😀", "ü 😀"),
        (None, "", None),
        (0, "0", 0),
        (True, "true", True),
        (1.5, "1.5", 1.5),
        (10**30, str(10**30), 10**30),
        ([], "[]", []),
        ({}, "{}", {}),
        ([None], "[null]", [None]),
        ((1, (2,)), "[1,[2]]", [1, [2]]),
        ({"a": [1, "ü"]}, '{"a":[1,"ü"]}', {"a": [1, "ü"]}),
        ({1: "a"}, '{"1":"a"}', {"1": "a"}),
        (Point(1, datetime.date(2001, 2, 3)), '{"x":1,"when":"2001-02-03"}', {"x": 1, "when": "2001-02-03"}),
        (Item("a"), '{"name":"a"}', {"name": "a"}),
        (Colour.RED, "red", "red"),
        (pathlib.Path("a/b"), "a/b", "a/b"),
        ([pathlib.Path("a")], '["a"]', ["a"]),
        (uuid.UUID(int=1), str(uuid.UUID(int=1)), str(uuid.UUID(int=1))),
    ],
    ids=repr,
)
def test_a_value_is_kept_as_json_and_shown_as_text(returned: Any, text: str, value: Any) -> None:
    output = as_output(returned)
    assert output == ToolOutput(content=[TextBlock(text)], value=value)
    assert type(output.value) is type(value)


@pytest.mark.spec("T-15")
@pytest.mark.parametrize(
    "data",
    [
        {"ok": True, "content": 1},
        {"ok": False, "error": {"code": "X", "message": "m"}},
        {"success": False, "content": [{"type": "text", "text": "x"}]},
        {"isError": True},
    ],
)
def test_a_dict_that_looks_like_an_envelope_is_data(data: Any) -> None:
    output = as_output(data)
    assert (output.success, output.value, output.metadata) == (True, data, {})


@pytest.mark.spec("S4-22")
@pytest.mark.parametrize(
    ("returned", "content"),
    [
        (TextBlock("a"), [TextBlock("a")]),
        (IMAGE, [IMAGE]),
        (JsonBlock({"a": 1}), [JsonBlock({"a": 1})]),
        ([TextBlock("a"), IMAGE], [TextBlock("a"), IMAGE]),
        ((IMAGE,), [IMAGE]),
    ],
)
def test_blocks_are_shown_as_they_are(returned: Any, content: Any) -> None:
    assert as_output(returned) == ToolOutput(content=content)


def test_a_tool_output_passes_through() -> None:
    output = ToolOutput(content=[IMAGE], success=False, command_executed="ls")
    assert as_output(output) is output


def circular() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.spec("T37", "T39", "T40")
@pytest.mark.parametrize(
    "returned",
    [
        b"bytes",
        bytearray(b"x"),
        [b"x"],
        {"a": b"x"},
        math.nan,
        math.inf,
        [-math.inf],
        {"a": {"b": math.nan}},
        object(),
        [object()],
        lambda: None,
        {None: 1},
        {(1, 2): 3},
        "\ud800",
        ["\ud800"],
        {"\udfff": 1},
        TextBlock("\ud800"),
        JsonBlock({"a": math.nan}),
        [TextBlock("a"), "text"],
        ["text", IMAGE],
        10**5000,
        circular(),
        deep(),
        (i for i in ()),
    ],
    ids=lambda returned: type(returned).__name__,
)
def test_what_is_not_json_fails_in_words_for_the_agent(returned: Any) -> None:
    with pytest.raises(ToolExecutionError) as failed:
        as_output(returned)
    assert (failed.value.reason, failed.value.is_user_visible) == ("not_json", True)


def test_a_failure_does_not_repeat_what_was_returned() -> None:
    with pytest.raises(ToolExecutionError) as failed:
        as_output({"password": "hunter2", "x": math.nan})
    assert "hunter2" not in failed.value.message


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
)


@given(JSON)
def test_json_comes_back_as_it_was_and_its_text_says_the_same(value: Any) -> None:
    output = as_output(value)
    assert output.value == value
    (block,) = output.content
    assert isinstance(block, TextBlock)
    if value is not None and not isinstance(value, str):
        assert msgspec.json.decode(block.text) == value


def test_a_returned_value_is_not_changed_by_what_the_function_does_later() -> None:
    value = {"a": [1]}
    output = as_output(value)
    value["a"].append(2)
    assert output.value == {"a": [1]}


def test_ok_result_says_more_than_the_value() -> None:
    output = ok_result(
        {"n": 1},
        content=IMAGE,
        diagnostics=["slow", Diagnostic("old", "warn"), {"level": "error", "message": "torn"}],
        meta={"page": 2},
        files_modified=["a.txt"],
    )
    assert output == ToolOutput(
        content=[IMAGE],
        value={"n": 1},
        metadata={
            "page": 2,
            "diagnostics": [
                "slow",
                {"message": "old", "level": "warn"},
                {"level": "error", "message": "torn"},
            ],
        },
        files_modified=["a.txt"],
    )


def test_ok_result_without_more_is_the_value() -> None:
    assert ok_result([1]) == as_output([1])
    assert ok_result() == as_output(None)
    assert as_output(ok_result("x")) == as_output("x")


def test_the_code_of_an_error_result_stands_in_its_details() -> None:
    output = error_result("No such city.", code="VALIDATION_ERROR", details={"city": "X"})
    assert output.metadata == {"details": {"city": "X", "code": "VALIDATION_ERROR"}}


@pytest.mark.parametrize("details", [[1, {"a": None}], "text", 7, 0, "", [], False, {"a": [1]}])
def test_the_details_of_an_error_result_are_any_json_value(details: Any) -> None:
    assert error_result("No.", details=details).metadata == {"details": details}
    coded = error_result("No.", details=details, code="X").metadata["details"]
    assert coded == ({**details, "code": "X"} if isinstance(details, dict) else {"details": details, "code": "X"})


def test_error_result_is_a_failure_in_its_own_words() -> None:
    output = error_result("No such city.", reason="unknown_city", details={"city": "X"})
    assert output == ToolOutput(
        content=[TextBlock("No such city.")],
        success=False,
        metadata={"reason": "unknown_city", "details": {"city": "X"}},
        value=None,
    )
    assert error_result("No.").metadata == {}


@pytest.mark.parametrize(
    "make",
    [
        lambda: ok_result(meta={"x": math.nan}),
        lambda: ok_result(content=["text"]),  # type: ignore[list-item]
        lambda: error_result("x", details={"x": object()}),
        lambda: error_result("\ud800"),
    ],
)
def test_envelopes_hold_only_json(make: Any) -> None:
    with pytest.raises(ToolExecutionError):
        make()
