"""What a person sees of a reply before it has ended, and of its words beside the calls."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from callgate.protocol.toolcalls.parse import parse
from callgate.protocol.toolcalls.stream import CallStream
from callgate.protocol.toolcalls.values import TYPES, ContentDelta, Parsed
from tests.kernel.protocol.test_toolcalls_parse import CHAT, END, document, found
from tests.kernel.protocol.test_toolcalls_stream import pieces, replies, texts, values

TEXTS = {"send_chat": "content", "say": "utterance"}
"""The parameter that holds the text, by type; what is to be spoken is not shown."""
OPENING = '{"toolCalls": [{"type": "send_chat", "id": "c", "operation": "x", "parameters": {"content": "'


def shown(chunks: list[str], **how: Any) -> tuple[dict[int | None, str], Parsed]:
    """The texts that were visible before the end, joined, and the last word."""
    stream = CallStream(**how)
    seen: dict[int | None, str] = {}
    for chunk in chunks:
        stream.push(chunk)
        for delta in stream.shown():
            assert delta.text
            seen[delta.index] = seen.get(delta.index, "") + delta.text
    assert stream.shown() == []
    return seen, stream.finish()


def begins(seen: dict[int | None, str], parsed: Parsed) -> None:
    """What was seen is the beginning of what there is."""
    assert parsed.text.startswith(seen.get(None, ""))
    for call in parsed.calls:
        if call.index in seen:
            assert call.type == "send_chat"
            assert str(call.parameters["content"]).startswith(seen[call.index])


members = st.tuples(st.sampled_from(["id", "operation", "more", "priority"]) | texts, values)
chats = st.builds(
    lambda kind, before, content, inside, after, ascii, indent: json.dumps(
        {
            "type": kind,
            **{key: value for key, value in before if key not in ("type", "parameters")},
            "parameters": {**inside, TEXTS[kind]: content},
            **{f"{key} after": value for key, value in after},
        },
        ensure_ascii=ascii,
        indent=indent,
    ),
    st.sampled_from(["send_chat", "say"]),
    st.lists(members, max_size=3),
    st.text(st.characters(exclude_categories=["Cs"])) | texts,
    st.dictionaries(texts, values, max_size=2),
    st.lists(members, max_size=1),
    st.booleans(),
    st.sampled_from([None, 0, 2]),
)
scraps = st.lists(
    st.sampled_from(
        [
            *"{}[],:\"'\\ \n1`#",
            '"type"',
            '"send_chat"',
            '"say"',
            '"parameters"',
            '"content"',
            '"utterance"',
            '"type": "send_chat"',
            '"parameters": {',
            '"content": "',
            "type:",
            "content=",
            "'content': '",
            "/*",
            "*/",
            "//",
            "“",
            "”",
            '"a"',
            '", ',
            "\\ud83d",
            "\\ude00",
            "\\u0022",
            "\\d",
            "True",
            "```",
            '"x": [',
            '"x": {',
            "\u00a0",
            '"id": "1", "operation": "o"',
            '"parameters": {"content": "',
            "}}]}",
            "\ud83d",
            "\x01",
        ]
    ),
    max_size=14,
).map("".join)


@pytest.mark.spec("S3-42")
@given(pieces(st.lists(chats, min_size=1, max_size=3).map(lambda calls: f'{{"toolCalls": [{",".join(calls)}]}}')))
@settings(deadline=None)
def test_a_message_is_all_there_when_its_text_is(chunks: list[str]) -> None:
    written = json.loads("".join(chunks))["toolCalls"]
    contents = [call["parameters"]["content"] if call["type"] == "send_chat" else "" for call in written]
    for how in (chunks, list("".join(chunks))):
        seen, parsed = shown(how)
        assert seen == {index: text for index, text in enumerate(contents) if text}
        begins(seen, parsed)


@pytest.mark.spec("S3-42")
@given(
    pieces(
        replies
        | scraps.map(lambda text: OPENING + text)
        | scraps.map(lambda text: '{"toolCalls": [{' + text)
        | st.tuples(chats, scraps, st.floats(0, 1)).map(lambda given: f'{{"toolCalls": [{_spoilt(*given)}]}}')
    ),
    st.booleans(),
)
@example(['{"toolCalls": [{"type": "send_chat", "parameters": {"content": 1, x: "abc"}}]}'], False)
@example(['{"toolCalls": [{"type": "send_chat", "a": \'"\', "parameters": {"content": "b"}}]}'], False)
@example([OPENING, "\\ud83d", "\\u0041", '"}}]}'], False)
@settings(deadline=None)
def test_what_is_seen_early_is_always_the_beginning_of_what_there_is(chunks: list[str], strict: bool) -> None:
    seen, parsed = shown(chunks, strict=strict)
    begins(seen, parsed)
    assert shown(list("".join(chunks)), strict=strict) == (seen, parsed)
    assert shown(["".join(chunks)], strict=strict) == (seen, parsed)


def _spoilt(call: str, scrap: str, where: float) -> str:
    at = int(len(call) * where)
    return call[:at] + scrap + call[at:]


@pytest.mark.spec("S3-42")
def test_each_character_of_a_message_is_seen_as_it_comes() -> None:
    content = 'He said "hi" \\ to\n😀 é and 日本'
    text = document({"type": "send_chat", **CHAT, "parameters": {"content": content}}, END)
    stream = CallStream()
    deltas: list[ContentDelta] = []
    seen: list[str] = []
    for char in text:
        stream.push(char)
        deltas += stream.shown()
        seen.append("".join(delta.text for delta in deltas))
    assert deltas == [ContentDelta(0, char) for char in content]
    start = text.index("He said")
    assert seen[start - 1 : start + 8] == [content[:length] for length in range(9)]


@pytest.mark.parametrize(
    "call",
    [
        '{"type": "send_chat", "parameters": {"utterance": "no", "content": "yes"}}',
        '{"id": "c", "priority": 2, "type": "send_chat", "operation": "o", "parameters": {"content": "yes"}}',
        '{"type": "send_chat", "x": {"parameters": {"content": "no"}}, "parameters": {"content": "yes"}}',
        '{"t\\u0079pe":"send\\u005fchat","parameters":{"\\u0063ontent":"yes"}}',
        '{"operation": "parameters", "type": "send_chat", "parameters": {"a": ["no"], "content": "yes"}}',
        '{"type": "send_chat", "parameters": {"a": {"content": "no", "b": [1, {}]}, "content": "yes"}}',
        '{ "type"\n:\t"send_chat" ,\r "parameters" : { "content" : "yes" } }',
    ],
)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_message_is_found_however_its_call_is_written(call: str, size: int) -> None:
    text = f'{{"toolCalls": [{call}]}}'
    assert shown([text[at : at + size] for at in range(0, len(text), size)])[0] == {0: "yes"}


@pytest.mark.parametrize("before", ["", '"x": 1, '])
@pytest.mark.parametrize("name", ["utterance", "content"])
def test_what_is_to_be_spoken_is_not_shown(before: str, name: str) -> None:
    stream = CallStream()
    assert stream.push(f'{{"toolCalls": [{{{before}"type": "say", "id": "s", "parameters": {{"{name}": "Hi') == []
    assert stream.shown() == []


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        ('\\ud83d\\ude00"', "😀"),
        ("a\\ud83d", "a"),
        ('a\\ud83d.b"', "a"),
        ('a\\ude00b"', "a"),
        ('a\\db"', "a"),
        ("a\\u00", "a"),
        ('a\\u00zz"', "a"),
        ("a\nb", "a\nb"),
        ("a\ud83d", "a"),
        ('\\u0061\\/\\t"', "a/\t"),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_an_escape_is_seen_whole_or_not_at_all(written: str, seen: str, size: int) -> None:
    text = OPENING + written
    chunks = [text[at : at + size] for at in range(0, len(text), size)]
    assert shown(chunks)[0] == {0: seen}


@pytest.mark.parametrize(
    "call",
    [
        '{"parameters": {"content": "x"}, "type": "send_chat", "id": "c", "operation": "o"}',
        '{"type": "custom", "id": "c", "operation": "o", "parameters": {"content": "x"}}',
        '{"type": "say", "id": "c", "operation": "o", "parameters": {"content": "x"}}',
        '{"type": "send_chat", "id": "c", "operation": "o", "parameters": {"a": {"content": "x"}}}',
        '{"type": "send_chat", "id": "c", "operation": "o", "parameters": {"a": [{"content": "x"}]}}',
        '{"type": "send_chat", "id": "c", "operation": "o", "x": {"content": "x"}, "parameters": {}}',
        '{"type": "send_chat", "id": "c", "operation": "o", "parameters": "{\\"content\\": \\"x\\"}"}',
        '{"a": {"type": "send_chat", "parameters": {"content": "x"}}}',
        '{"type": "send_chat", "id": "c", "operation": "o", "parameters": {content: "x"}}',
        "{'type': 'send_chat', 'id': 'c', 'operation': 'o', 'parameters': {'content': 'x'}}",
        '{"type": "send_chat", "id": "c", "operation": "o", "parameters": {"content": 1\n"x": "y"}}',
        '{"type": "send_chat", "id": "c", "operation": "o", "parameters": {"content": 1, x: "y"}}',
        '{"type": ["send_chat"], "id": "c", "operation": "o", "parameters": {"content": "x"}}',
        '{"type": "send_chat" /* */, "id": "c", "operation": "o", "parameters": {"content": "x"}}',
    ],
)
def test_a_text_in_another_place_is_not_seen_early(call: str) -> None:
    for chunks in (list(f'{{"toolCalls": [{call}]}}'), [f'{{"toolCalls": [{call}]}}']):
        assert shown(chunks)[0] == {}
    assert shown([OPENING, "x"], types=TYPES - {"send_chat"})[0] == {}


@pytest.mark.parametrize(
    "rest", ['", "content": "y"}}]}', '"}, "type": "custom"}]}', '"}}], "toolCalls": []}', '"', '"}', '" @}}]}']
)
def test_a_document_that_is_refused_later_may_have_shown_text_but_runs_nothing(rest: str) -> None:
    seen, parsed = shown([OPENING, "x", rest])
    assert (seen, parsed.calls) == ({0: "x"}, ())


@pytest.mark.parametrize("size", [1, 1000])
def test_messages_are_seen_behind_a_call_that_has_to_be_filled_in_but_not_behind_one_to_be_mended(size: int) -> None:
    chat = {"type": "send_chat", **CHAT}
    text = document({**END, "id": 7}, chat)
    assert shown([text[at : at + size] for at in range(0, len(text), size)])[0] == {1: "Hi"}
    text = text.replace("7", "'7'")
    assert shown([text[at : at + size] for at in range(0, len(text), size)])[0] == {}


@pytest.mark.spec("S3-41")
@pytest.mark.parametrize(
    ("text", "said", "early"),
    [
        ("Hello.", "Hello.", "Hello."),
        ("\ufeff \n Hello,\n\nyou. \n", "Hello,\n\nyou.", "Hello,\n\nyou."),
        ("Here:\n```json\nDOC\n```\nDone.\n", "Here:\nDone.", "Here:"),
        ("Here: DOC and OTHER; so.", "Here:\nand\nso.", "Here:"),
        ("Run <tool_call>\n```json\nDOC```</tool_call>", "Run", "Run"),
        ("```json\nDOC\n```", "", ""),
        ("; DOC ;", "", ""),
        ("See:\n```py\nx = [1]\n```\nDOC", "See:\n```py\nx = [1]\n```", "See:"),
        ('See:\n```json\n{"a": 1}\n```\n', 'See:\n```json\n{"a": 1}\n```', "See:"),
        ("```\nx\n```", "```\nx\n```", ""),
        ("use {x} or [y] now", "use {x} or [y] now", "use"),
        ("a < b", "a < b", "a"),
        ('So: {"toolCalls": [{"id": @ and', "So:", "So:"),
        ("", "", ""),
    ],
)
def test_words_beside_the_documents_are_kept_and_seen_early(text: str, said: str, early: str) -> None:
    text = text.replace("DOC", document(CHAT)).replace("OTHER", document(END))
    for chunks in (list(text), [text]):
        seen, parsed = shown(chunks)
        assert (seen.get(None, ""), parsed.text) == (early, said)
    assert shown([text], strict=True)[0].get(None) is None
    assert parse(text, strict=True).text == ""


def test_words_that_look_like_calls_are_no_calls() -> None:
    parsed = parse('He wrote "' + document(CHAT) + '" to me.')
    assert parsed.calls == ()
    assert parsed.text == 'He wrote "' + document(CHAT) + '" to me.'
    assert parse("Hi. " + document(END)).calls == (found(END, repaired=True),)
