"""What a record keeps of arguments and results: enough to know, nothing that opens a door."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.core.schemas import canonical_json
from callgate.redaction.data import (
    _DEFAULT_LIMITS,
    _SHORT,
    _SHORT_JSON,
    LONGEST,
    ArgumentSummary,
    RedactionLimits,
    redact_value,
    redact_within,
    summarize,
    summarize_text,
)
from callgate.redaction.names import MASK
from tests.function_calls import count_function_calls

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


TEXTS = st.sampled_from(
    [
        *("plain", "brick red", "author", "ada@example.com", "hunter2", "x", "", 'q"uote', "back\\slash"),
        *("password=hunter22", "--password", "-psecret123", "mysql", "-u", "ada:pw123456", SECRET),
        *("x" * 241, "y" * 300, "é" * 130, "[", "{", "][", "\x00", "\ud800", "Bearer abc.def-0123456789"),
        *("a\npin: 4711", "curl", "mysql \\\n-psecret123", "ssh://git@host/x", "postgres://u:secret123@h/d"),
        *("user:secret123@tcp(h:1)/d", "authority", "env MYCODE secret123", "C:\\new", "a\tb" * 100),
    ]
)
NAMES = st.sampled_from(
    ["password", "name", "value", "content", "a", "pin", "key", "headers", "é", "k" * 20, "id", SECRET]
)
LEAVES = st.none() | st.booleans() | st.integers() | st.sampled_from([2**70, 1.5]) | TEXTS
DOCUMENTS = st.recursive(
    LEAVES,
    lambda below: (
        st.lists(below, max_size=4)
        | st.dictionaries(NAMES, below, max_size=4)
        | st.builds(lambda item, times: [item] * times, below, st.sampled_from([49, 50, 51]))
    ),
    max_leaves=25,
)


@pytest.mark.parametrize(
    ("whole", "by_part"),
    [(_DEFAULT_LIMITS, msgspec.structs.replace(_DEFAULT_LIMITS, is_json=True)), (_SHORT, _SHORT_JSON)],
)
@given(document=st.dictionaries(NAMES, DOCUMENTS, max_size=4))
def test_skipped_parts_of_json_are_those_that_redaction_leaves_alone(
    whole: RedactionLimits, by_part: RedactionLimits, document: Any
) -> None:
    assert redact_within(document, by_part) == redact_within(document, whole)


@pytest.mark.soak
@settings(max_examples=2_000)
@given(document=st.dictionaries(NAMES, DOCUMENTS, max_size=4))
def test_redaction_by_part_equals_redaction_of_the_whole_in_many_documents(document: Any) -> None:
    assert redact_within(document, _SHORT_JSON) == redact_within(document, _SHORT)


@given(document=st.dictionaries(NAMES, DOCUMENTS, max_size=4))
def test_arguments_that_are_shown_whole_have_no_secret(document: Any) -> None:
    try:
        canonical = canonical_json(document)
    except (UnicodeEncodeError, OverflowError):
        return
    shown = ArgumentSummary({"type": "object"}).of(document, canonical)
    if shown == canonical.decode():
        assert redact_value(document) == document


@pytest.mark.parametrize(
    "text",
    ["a\npin: 4711", "a\tpin: 4711", "mysql \\\n-psecret123", "mysql\t-psecret123", "ls\nenv MYCODE secret123"],
)
def test_a_secret_after_a_line_break_is_hidden_in_the_record(text: str) -> None:
    arguments = {"command": text}
    shown = ArgumentSummary({"type": "object"}).of(arguments, canonical_json(arguments))
    assert shown == summarize(arguments)
    assert MASK in shown


def test_a_member_that_the_schema_does_not_list_is_redacted() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {}}
    arguments = {"a": 1, "password": "hunter2"}
    assert "hunter2" not in ArgumentSummary(schema).of(arguments, canonical_json(arguments))


@pytest.mark.parametrize("remark", ["Write to ada@example.com.", "Ask the author."])
def test_an_address_or_an_author_costs_nothing(remark: str) -> None:
    arguments = {"remark": remark}
    canonical = canonical_json(arguments)
    summary = ArgumentSummary({"type": "object"})
    assert count_function_calls(lambda: summary.of(arguments, canonical)) <= 8


def test_one_suspicious_text_costs_its_own_leaf() -> None:
    def arguments(remark: str, lines: int) -> dict[str, Any]:
        return {"order": {"remark": remark, "lines": [{"sku": n, "colours": ["white", "red"]} for n in range(lines)]}}

    summary = ArgumentSummary({"type": "object"})
    costs = []
    for lines in (10, 40):
        document = arguments("Ring the keyboard.", lines)
        canonical = canonical_json(document)
        costs.append(count_function_calls(lambda: summary.of(document, canonical)))  # noqa: B023
    assert costs[1] <= costs[0]
