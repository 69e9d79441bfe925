"""A reply in pieces gives what the whole reply gives, and mending changes no meaning."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callgate.protocol.toolcalls import mend
from callgate.protocol.toolcalls.parse import parse
from callgate.protocol.toolcalls.stream import CallStream
from callgate.protocol.toolcalls.values import FoundCall, Parsed
from tests.kernel.protocol.test_toolcalls_parse import CASES, CHAT, CHAT_TEXT, END, document, found

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ['"', "\\", "}", "]", "```", '{"toolCalls": [', "//", "/*", "'", "\\u0022", ",", ":", "😀"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
calls = st.fixed_dictionaries(
    {
        "id": texts | st.integers(0, 3),
        "type": st.sampled_from(["send_chat", "custom", "end_turn", "gmail_list", "other"]),
        "parameters": st.dictionaries(texts, values, max_size=4) | values,
    },
    optional={"operation": texts, "priority": values, "more": values},
)
documents = st.builds(
    lambda calls, more, indent, ascii: json.dumps({"toolCalls": calls, **more}, indent=indent, ensure_ascii=ascii),
    st.lists(calls | values, max_size=4),
    st.dictionaries(texts, values, max_size=1),
    st.sampled_from([None, 0, 2]),
    st.booleans(),
)
replies = st.one_of(
    documents,
    documents.map(lambda text: f"```json\n{text}\n```"),
    documents.map(lambda text: f"So:\n{text}\nThat is [all]."),
    st.lists(documents, max_size=3).map("\n".join),
    st.integers(0, len(CASES) - 1).map(lambda n: str(CASES[n]["text"][:2_000])),
    st.lists(st.sampled_from([*"{}[]\"'\\,:/*#`=1eaN \n“”", "toolCalls", CHAT_TEXT]), max_size=40).map("".join),
)


def streamed(chunks: list[str], **how: Any) -> tuple[list[FoundCall], Parsed]:
    stream = CallStream(**how)
    early = [call for chunk in chunks for call in stream.push(chunk)]
    return early, stream.finish()


@st.composite
def pieces(draw: st.DrawFn, source: st.SearchStrategy[str]) -> list[str]:
    text = draw(source)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@pytest.mark.spec("S3-42")
@given(pieces(replies), st.booleans())
@settings(deadline=None)
def test_a_reply_cut_in_any_way_gives_what_the_whole_gives(chunks: list[str], strict: bool) -> None:
    text = "".join(chunks)
    whole = parse(text, strict=strict)
    by_character = streamed(list(text), strict=strict)
    assert by_character == streamed(chunks, strict=strict) == streamed([text], strict=strict)
    early, finished = by_character
    assert finished == whole
    if whole.calls and not whole.truncated and not whole.repaired:
        assert early == list(whole.calls[: len(early)])


@pytest.mark.spec("S3-06")
@given(documents, st.data())
@settings(deadline=None)
def test_a_reply_that_stops_anywhere_gives_no_call_that_the_whole_has_not(text: str, data: st.DataObject) -> None:
    kept = text[: data.draw(st.integers(0, len(text)))]
    whole = {call.index: (call.id, call.type, call.parameters) for call in parse(text).calls}
    for call in parse(kept).calls:
        assert (call.id, call.type, call.parameters) == whole[call.index]
    assert parse(kept, strict=True).calls == (() if kept != text else parse(text, strict=True).calls)


@pytest.mark.spec("S3-05")
@given(replies)
@settings(deadline=None)
def test_mending_never_changes_what_a_strict_reader_reads(text: str) -> None:
    strict, tolerant = parse(text, strict=True), parse(text)
    if not strict.errors and sum(call.type == "end_turn" for call in strict.calls) < 2:
        assert tolerant == strict
    taken = {call.index: call for call in tolerant.calls}
    for call in strict.calls:
        if call.index in taken:
            assert taken[call.index].parameters == call.parameters


@given(values.filter(lambda value: isinstance(value, dict | list)), st.booleans())
@settings(deadline=None)
def test_the_mending_reader_reads_json_as_any_reader_does(value: Any, ascii: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii)
    read = mend.read(text + " x", 0)
    assert (read.value, read.end, read.cut, read.duplicate) == (json.loads(text), len(text), False, None)
    assert {note for note in read.notes if note != "control_character"} == set()


@pytest.mark.spec("S3-08")
@given(st.text(max_size=60) | st.text(st.sampled_from('{}[]"\\,:`'), max_size=60))
@settings(deadline=None)
def test_no_text_raises(text: str) -> None:
    for strict in (True, False):
        assert streamed(list(text), strict=strict)[1] == parse(text, strict=strict)


@pytest.mark.spec("S3-42")
def test_each_call_is_there_the_moment_its_object_closes() -> None:
    text = "```json\n" + document(CHAT, END) + "\n```"
    stream = CallStream()
    arrived = {at: call for at, char in enumerate(text) for call in stream.push(char)}
    first, second = text.index("}}, ") + 1, text.rindex("}]}")
    assert arrived == {first: found(CHAT), second: found(END, 1)}
    assert stream.finish() == Parsed(calls=(found(CHAT), found(END, 1)))


@pytest.mark.spec("S3-20", "S3-42")
@pytest.mark.parametrize("size", range(1, 9))
@pytest.mark.parametrize("text", ['\\" }', "\\\\", '"}]}', "{[\\", "\n\\\n", "\\u0022"])
def test_brackets_and_quotes_in_texts_end_no_call(text: str, size: int) -> None:
    call = {**CHAT, "parameters": {text: text, "b": [{text: [text]}]}}
    whole = document(call, END)
    chunks = [whole[at : at + size] for at in range(0, len(whole), size)]
    expected = (found(call), found(END, 1))
    assert streamed(chunks) == (list(expected), Parsed(calls=expected))


@pytest.mark.parametrize(
    "text",
    ["Sure! DOC", "{'toolCalls': [CALL]}", '{"toolCalls": [,CALL]}', '{"toolCalls": [/**/CALL]}', "[CALL]", "CALL"],
)
def test_what_has_to_be_mended_waits_for_the_end(text: str) -> None:
    text = text.replace("DOC", document(CHAT)).replace("CALL", CHAT_TEXT)
    assert streamed([text]) == ([], parse(text))
    assert parse(text).calls == (found(CHAT, repaired=True),)


def test_what_has_to_be_filled_in_waits_for_the_end_and_so_does_what_follows() -> None:
    text = document(CHAT, {**CHAT, "id": 7}, END)
    early, whole = streamed([text])
    assert (early, [call.id for call in whole.calls]) == ([found(CHAT)], ["c1", "7", "e1"])
    assert [call.repaired for call in whole.calls] == [False, True, False]


def test_a_stream_keeps_no_more_than_is_read() -> None:
    stream = CallStream(max_bytes=1_000)
    for _ in range(200):
        assert stream.push("x" * 10) == []
    assert stream.finish() == parse("x" * 2_000, max_bytes=1_000)
    assert stream.push(document(CHAT)) == []
