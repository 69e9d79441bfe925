"""Words of a command line become arguments as the tool's schema reads them."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.cli.arguments import read_arguments
from callgate.core.errors import ToolParseError, ToolValidationError
from callgate.protocol import strict_json

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "size": {"type": "number"},
        "deep": {"type": "boolean"},
        "nothing": {"type": "null"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "numbers": {"type": "array", "items": {"type": "integer"}},
        "grid": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
        "at": {"type": "object"},
        "maybe": {"type": ["integer", "null"]},
        "either": {"type": ["string", "integer"]},
        "kind": {"enum": ["a", "1"]},
        "level": {"enum": [1, 2, True]},
        "fixed": {"const": 7},
        "any_of": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "anything": {},
        "true": True,
    },
}


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ([], {}),
        (["text=20"], {"text": "20"}),
        (["text=true"], {"text": "true"}),
        (["text="], {"text": ""}),
        (["text=a=b=c"], {"text": "a=b=c"}),
        (['text={"a":1}'], {"text": '{"a":1}'}),
        (["text=--yes"], {"text": "--yes"}),
        (["count=20"], {"count": 20}),
        (["count=-3"], {"count": -3}),
        (["count=2.0"], {"count": 2.0}),
        (["count=007"], {"count": "007"}),
        (["count=1_000"], {"count": "1_000"}),
        (["count=0x10"], {"count": "0x10"}),
        (["count=true"], {"count": "true"}),
        (["count="], {"count": ""}),
        (["count= 5"], {"count": 5}),
        (["size=2.5"], {"size": 2.5}),
        (["size=1e3"], {"size": 1000.0}),
        (["size=nan"], {"size": "nan"}),
        (["size=1e999"], {"size": "1e999"}),
        (["deep=true"], {"deep": True}),
        (["deep=false"], {"deep": False}),
        (["deep=yes"], {"deep": "yes"}),
        (["deep=1"], {"deep": "1"}),
        (["nothing=null"], {"nothing": None}),
        (["tags=a", "tags=b"], {"tags": ["a", "b"]}),
        (["tags=a"], {"tags": ["a"]}),
        (['tags=["a","b"]'], {"tags": ["a", "b"]}),
        (["tags=[]"], {"tags": []}),
        (["tags=[a]"], {"tags": ["[a]"]}),
        (['tags=["a"]', "tags=b"], {"tags": ['["a"]', "b"]}),
        (["numbers=1", "numbers=2"], {"numbers": [1, 2]}),
        (["numbers=1", "numbers=x"], {"numbers": [1, "x"]}),
        (["grid=[1]", "grid=[2]"], {"grid": [[1], [2]]}),
        (["grid=[[1],[2]]"], {"grid": [[1], [2]]}),
        (['at={"x":1}'], {"at": {"x": 1}}),
        (["at=x"], {"at": "x"}),
        (['at={"x":1,"x":2}'], {"at": '{"x":1,"x":2}'}),
        (["maybe=3"], {"maybe": 3}),
        (["maybe=null"], {"maybe": None}),
        (["either=3"], {"either": "3"}),
        (["kind=1"], {"kind": "1"}),
        (["level=2"], {"level": 2}),
        (["level=3"], {"level": "3"}),
        (["fixed=7"], {"fixed": 7}),
        (["any_of=3"], {"any_of": 3}),
        (["anything=3"], {"anything": "3"}),
        (["true=3"], {"true": "3"}),
        (["unknown=3"], {"unknown": "3"}),
        (["a.b=1"], {"a.b": "1"}),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_a_word_is_read_by_the_schema(words: list[str], arguments: dict[str, Any]) -> None:
    read = read_arguments(words, None, SCHEMA)
    assert read == arguments
    assert [type(value) for value in read.values()] == [type(v) for v in arguments.values()]


def test_words_and_a_document_are_put_together() -> None:
    assert read_arguments(["count=1"], '{"text": "x"}', SCHEMA) == {"text": "x", "count": 1}


def test_a_document_alone_may_be_anything() -> None:
    assert read_arguments([], '["a"]', SCHEMA) == ["a"]


@pytest.mark.parametrize(
    ("words", "document"),
    [
        (["text"], None),
        (["=x"], None),
        (["--json"], None),
        (["text=a", "text=b"], None),
        (["text=a"], '{"text": "b"}'),
        (["text=a"], '["b"]'),
    ],
)
def test_what_contradicts_itself_is_refused(words: list[str], document: str | None) -> None:
    with pytest.raises(ToolValidationError):
        read_arguments(words, document, SCHEMA)


@pytest.mark.parametrize(
    "document",
    [
        "",
        "{",
        "{'a': 1}",
        '{"a": 1} x',
        '{"a": 1, "a": 2}',
        '{"a": NaN}',
        '{"a": 1e999}',
        "[" * 1000 + "]" * 1000,
        "\ud8ff",
        '"\udcff"',
    ],
)
def test_a_document_that_is_not_strict_json_is_refused(document: str) -> None:
    with pytest.raises(ToolParseError):
        read_arguments([], document, SCHEMA)


PLAIN_AND_ODD = ["0", "-0", "007", "12", "-3", "1e3", "1.5", "true", "false", "null", "٣", "[1]", "", "a=b", "9" * 20]
NO_TEXT = {"properties": {"value": {"type": ["integer", "boolean", "null", "object"]}}}


def strictly(text: str) -> Any:
    try:
        return strict_json.loads(text)
    except strict_json.StrictJsonError as error:
        return error.refusal, str(error)


def typed(value: Any) -> Any:
    return value, [(key, type(each)) for key, each in value.items()] if isinstance(value, dict) else type(value)


@given(st.one_of(st.sampled_from(PLAIN_AND_ODD), st.integers().map(str), st.text(max_size=5)))
def test_a_plain_value_is_what_strict_json_reads(text: str) -> None:
    value = strictly(text)
    expected = text if isinstance(value, str | list | tuple) else value
    assert typed(read_arguments([f"value={text}"], None, NO_TEXT)["value"]) == typed(expected)


DOCUMENTS = st.one_of(
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
            "\x0b{}",
        ]
    ),
    st.dictionaries(
        st.text(max_size=3), st.one_of(st.text(max_size=3), st.integers(), st.booleans(), st.none()), max_size=4
    ).map(json.dumps),
)


@given(DOCUMENTS)
def test_a_plain_document_is_what_strict_json_reads(document: str) -> None:
    expected = strictly(document)
    if isinstance(expected, tuple):
        with pytest.raises(ToolParseError) as raised:
            read_arguments([], document, SCHEMA)
        assert (raised.value.reason, str(raised.value)) == (expected[0], f"--args is not JSON: {expected[1]}")
    else:
        assert typed(read_arguments([], document, SCHEMA)) == typed(expected)


@pytest.mark.parametrize("document", ['{"text": "x"}', '{"text": "\u00e4", "at": {"x": 1}}'])
def test_stdin_can_be_read_again_by_the_next_who_makes_the_call(monkeypatch: Any, document: str) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(document.encode())))
    assert read_arguments([], "-", SCHEMA) == read_arguments([], "-", SCHEMA) == json.loads(document)
