"""The fast path reads options, arguments and JSON as argparse and `arguments` do, or leaves them."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.cli import fast, json_texts
from callgate.cli.arguments import read_arguments
from callgate.cli.command_line import parser_of, read
from callgate.cli.errors import CliError
from callgate.cli.fast import arguments
from callgate.cli.options import ACP, CALL, DEBUG, TARGETS
from callgate.cli.ui.terminal import safe
from callgate.cli.ui.visible import visible_text
from callgate.core.errors import ToolError

FLAGS = [flag for option in (*CALL, *TARGETS, DEBUG) for flag in option.flags]
WORDS = st.sampled_from(
    [
        *FLAGS,
        "-",
        "--",
        "-x",
        "-qv",
        "--no",
        "--jso",
        "--json=1",
        "--mode=read",
        "--args={}",
        "--timeout=2",
        "-q=1",
        "",
        "tool",
        "a=b",
        "a=--yes",
        "read",
        "write",
        "everything",
        "0",
        "1.5",
        "-1",
        "nan",
        "{}",
        "- x",
    ]
)


def long_way(given: list[str], command: str = "call") -> dict[str, Any] | None:
    try:
        return vars(read(command, given))
    except (CliError, SystemExit):
        return None


@given(st.lists(WORDS, max_size=7))
def test_what_is_read_the_short_way_is_what_argparse_reads(given: list[str]) -> None:
    quickly = fast.read(given)
    if quickly is not None:
        assert vars(quickly) == long_way(given)


@pytest.mark.parametrize(
    "given",
    [
        "tool",
        "tool a=b --json",
        "--args - tool",
        "tool --timeout 2 -v -q --yes",
        "tool --mode=read",
        "tool --socket /x",
        "tool --instance=web",
        "tool --no-instance",
        "tool -- --yes",
        "-- --yes",
    ],
)
def test_the_usual_ones_go_the_short_way(given: str) -> None:
    assert vars(fast.read(given.split())) == long_way(given.split())


@pytest.mark.parametrize(
    "given",
    [
        "",
        "--",
        "--json",
        "tool --help",
        "tool -h",
        "tool --timeout",
        "tool --timeout -1",
        "tool --timeout nan",
        "tool --mode all",
        "tool --unknown",
        "tool -qv",
        "tool --socket x --no-instance",
        "tool --json=1",
    ],
)
def test_what_is_wrong_or_odd_goes_the_long_way(given: str) -> None:
    assert fast.read(given.split()) is None


def test_both_parsers_know_the_same_options() -> None:
    assert set(FLAGS) | {"-h", "--help"} == set(parser_of("call")._option_string_actions)


ACP_FLAGS = [flag for option in (*ACP, DEBUG) for flag in option.flags]


@given(
    st.lists(
        st.sampled_from(
            [*ACP_FLAGS, "-", "--", "-vvv", "-x", "--mode=ask", "--mode=all", "--model=", "zed", "ask", ""]
        ),
        max_size=6,
    )
)
def test_the_options_of_acp_are_read_alike_both_ways(given: list[str]) -> None:
    quickly = fast.read_acp(given)
    if quickly is not None:
        assert vars(quickly) == long_way(given, "acp")


@pytest.mark.parametrize(
    "given", ["", "-v", "-vv --mode read", "--model scripted:a.jsonl --unstable", "--print-config zed"]
)
def test_a_usual_acp_goes_the_short_way(given: str) -> None:
    assert vars(fast.read_acp(given.split())) == long_way(given.split(), "acp")


@pytest.mark.parametrize("given", ["word", "--help", "--mode all", "--print-config vi", "--model"])
def test_an_acp_that_is_wrong_goes_the_long_way(given: str) -> None:
    assert fast.read_acp(given.split()) is None


SCHEMA = {
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "size": {"type": "number"},
        "deep": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "either": {"type": ["string", "integer"]},
        "maybe": {"type": ["integer", "null"]},
        "kind": {"enum": [1, 2]},
        "any": {},
        "odd": True,
    }
}
KEYS = st.sampled_from([*SCHEMA["properties"], "other", ""])
TEXTS = st.one_of(
    st.sampled_from(["0", "007", "12", "-3", "1e3", "1.5", "true", "false", "null", "٣", "[1]", "", "a=b", "9" * 20]),
    st.text(max_size=5),
)
DOCUMENTS = st.one_of(
    st.none(),
    st.sampled_from(
        [
            "{",
            "[]",
            "5",
            '{"text": 1, "text": 2}',
            '{"a": "\\u0061"}',
            '{"a": 1e400}',
            '{"a": NaN}',
            '{"n": 1' + "0" * 30 + "}",
            '{"a": {"b": 1}}',
            ' {"a":"x","b":true,"c":null,"d":-7} ',
            '{"a":"b:c","d":":"}',
            '{"a": 1.0}',
            '{"ä": 1}',
        ]
    ),
    st.dictionaries(
        st.text(max_size=3), st.one_of(st.text(max_size=3), st.integers(), st.booleans(), st.none()), max_size=4
    ).map(json.dumps),
)


def outcome(reader: Any, words: list[str], document: str | None) -> Any:
    try:
        value = reader(words, document, SCHEMA)
    except ToolError as error:
        return type(error), error.message
    return value, [(key, type(each)) for key, each in value.items()] if isinstance(value, dict) else None


@given(st.lists(st.builds("{}={}".format, KEYS, TEXTS), max_size=4), DOCUMENTS)
def test_arguments_are_the_same_however_they_are_read(words: list[str], document: str | None) -> None:
    assert outcome(arguments.read, words, document) == outcome(read_arguments, words, document)


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4)),
    max_leaves=12,
)


@given(VALUES, st.booleans())
def test_json_is_written_and_read_as_the_standard_library_does(value: Any, ascii: bool) -> None:
    assert json_texts.dumps(value, ascii=ascii) == json.dumps(value, ensure_ascii=ascii)
    compact = json.dumps(value, separators=(",", ":"))
    assert json_texts.dumps(value, compact=True) == compact
    finite = not isinstance(value, float) or math.isfinite(value)
    if finite and "Infinity" not in compact:
        assert json_texts.loads(f" {compact}\r\n") == json.loads(compact)


@pytest.mark.parametrize(
    "text", ["", " ", "{", "{}{}", "nul", "NaN", "-Infinity", "'a'", '{"a":1,}', '"\x01"', "[" * 100_000]
)
def test_what_is_not_json_is_refused(text: str) -> None:
    with pytest.raises((ValueError, RecursionError)):
        json_texts.loads(text)


@given(st.text())
def test_a_text_is_as_safe_the_short_way(text: str) -> None:
    assert safe(text) == visible_text(text)
