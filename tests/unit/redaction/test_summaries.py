"""What a record keeps of arguments and results: enough to know, nothing that opens a door."""

from __future__ import annotations

from typing import Any

import pytest

from callgate.core.json_schema.schemas import canonical_json
from callgate.redaction.summaries import LONGEST, ArgumentSummary, summarize, summarize_text

SECRET = "ghp_" + "1degvI558ZTr18jAxdq4LfHj9SIA8LdfeJwB"


@pytest.mark.spec("S4-59", "T43")
@pytest.mark.parametrize(
    "value",
    [
        {"password": "hunter2"},
        {"headers": {"Authorization": f"Bearer {SECRET}"}},
        {"argv": ["curl", "--token", "hunter2"]},
        {"note": f"see {SECRET}"},
        {"deep": [[[[[[[[{"password": "hunter2"}]]]]]]]]},
        {"text": "x" * 5000 + SECRET + "y" * 5000},
        {"api_key": 123456789012},
        {"config": '{"password": "hunter2"}'},
        {SECRET: 1},
        [SECRET],
        SECRET,
        {"password": "hunter2", "bad": object()},
    ],
    ids=range(12),
)
def test_no_secret_survives_a_summary(value: Any) -> None:
    text = summarize(value)
    assert SECRET not in text
    assert "hunter2" not in text
    assert "123456789012" not in text


def test_plain_arguments_are_kept_as_they_are() -> None:
    assert summarize({"a": 1, "b": None}) == '{"a":1,"b":null}'
    assert summarize({"path": "src/a.py", "limit": 10}) == '{"path":"src/a.py","limit":10}'


NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": ["number", "null"]}}}
PIN = {"type": "object", "properties": {"password": {"type": "integer"}}}
FREE = {"type": "object", "properties": {"a": {"type": "object"}}}
FILE = {"type": "object", "properties": {"file": {"type": "object", "properties": {"content": {"type": "string"}}}}}


@pytest.mark.parametrize(
    ("schema", "arguments", "hidden"),
    [
        (NUMBERS, {"a": 1, "b": 2}, None),
        (PIN, {"password": 12345678}, "12345678"),
        (FREE, {"a": {"api_key": "hunter2"}}, "hunter2"),
        (FREE, {"a": {"x": SECRET}}, SECRET),
        (FILE, {"file": {"content": "y" * 900}}, "yyyy"),
        ({"type": "object"}, {SECRET: 1}, SECRET),
        ({"type": "object"}, {"password": 12345678}, "12345678"),
        ({**NUMBERS, "additionalProperties": True}, {"a": 1, "password": "hunter2"}, "hunter2"),
        ({**NUMBERS, "patternProperties": {"^x": {}}}, {"a": 1, "xtoken": "hunter2"}, "hunter2"),
        (FREE, {"a": "p\x1b[0mass\x1b[1mword=hunter2"}, "hunter2"),
    ],
)
def test_what_a_schema_promises_saves_work_and_hides_no_less(schema: Any, arguments: Any, hidden: str | None) -> None:
    canonical = canonical_json(arguments)
    text = ArgumentSummary(schema).of(arguments, canonical)
    if hidden is None:
        assert text == canonical.decode()
    else:
        assert hidden not in text


def test_a_whole_file_becomes_its_length() -> None:
    assert summarize({"path": "a", "content": "x" * 100_000}) == '{"path":"a","content":"[100000 characters]"}'


def test_a_long_command_keeps_its_beginning_and_its_end() -> None:
    text = summarize({"command": "echo " + "a" * 9000 + " && rm -rf build"})
    assert text.startswith('{"command":"echo aaa')
    assert text.endswith(' && rm -rf build"}')
    assert len(text) <= 2_000


@pytest.mark.parametrize(
    "value", [list(range(100_000)), {str(n): n for n in range(9_000)}, "z" * 10**6, [["y" * 1000] * 100] * 100]
)
def test_a_summary_is_bounded(value: Any) -> None:
    assert len(summarize(value)) <= 2_000


@pytest.mark.spec("T40")
@pytest.mark.parametrize("value", ["\ud800", {"\udfff": "\ud800"}, float("nan"), {1, 2}, b"\xff", None])
def test_anything_can_be_summarised(value: Any) -> None:
    assert isinstance(summarize(value), str)


def test_a_secret_over_the_end_of_what_is_shown_is_not_shown_in_part() -> None:
    text = summarize_text("." * (LONGEST - 10) + " " + SECRET)
    assert "1degvI" not in text
    assert len(text) <= LONGEST
