"""Tool calls in a model's text: what is taken, what is refused, and what is said about it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from callgate.core.tools import ToolDefinition
from callgate.protocol.toolcalls.find import MOST_TRIES
from callgate.protocol.toolcalls.parse import parse
from callgate.protocol.toolcalls.teach import teach
from callgate.protocol.toolcalls.values import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_ID,
    OUTPUTS,
    TYPES,
    FoundCall,
    Parsed,
    error_text,
    to_json,
)

CORPUS = json.loads((Path(__file__).parents[2] / "corpus" / "llm_output.json").read_text())
CASES = CORPUS["cases"]
STRICTER = {"l099", "l133", "l134", "l136", "l168"}
"""Where strict mode refuses what the format's own reader would have run: an id or a key that
stands twice, a number that is none, half a character."""
TRIMMED = {"l011"}
"""A byte order mark, which the format's own reader trims like any space."""

CHAT = {"id": "c1", "type": "send_chat", "operation": "respond", "parameters": {"content": "Hi"}}
END = {"id": "e1", "type": "end_turn", "operation": "end_turn", "parameters": {}}
CHAT_TEXT = json.dumps(CHAT)
CUSTOM = '{"toolCalls": [{"id": "c", "type": "custom", "operation": "x", "parameters": {"v": VALUE}}]}'


def found(call: dict[str, Any], index: int = 0, *, repaired: bool = False) -> FoundCall:
    return FoundCall(**call, index=index, repaired=repaired)


def document(*calls: Any) -> str:
    return json.dumps({"toolCalls": calls})


def rules(parsed: Parsed) -> tuple[list[str], list[str]]:
    return [each.rule for each in parsed.errors], [each.rule for each in parsed.diagnostics]


def ids(parsed: Parsed) -> list[str]:
    return [call.id for call in parsed.calls]


@pytest.mark.spec("S3-01", "S3-02", "S3-03", "S3-04", "S3-05", "S3-06")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_reply_of_the_corpus_is_read_as_it_says(case: dict[str, Any]) -> None:
    parsed = parse(case["text"])
    assert set(ids(parsed)).isdisjoint(case.get("must_not_execute", ()))
    if not case.get("accept_any"):
        assert case["tolerant"] == {
            "calls": to_json(parsed)["toolCalls"],
            "errors": len(parsed.errors),
            "repaired": parsed.repaired,
            "truncated": parsed.truncated,
            "prose": parsed.prose,
        }
    assert any(call.repaired for call in parsed.calls) == bool(parsed.repaired and parsed.calls)


@pytest.mark.spec("S3-01", "S3-02", "S3-08")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_strict_mode_takes_what_the_format_takes_and_is_safe(case: dict[str, Any]) -> None:
    parsed = parse(case["text"], strict=True)
    taken = (case["strict_accepts"] or case["id"] in TRIMMED) and case["id"] not in STRICTER
    assert (not parsed.errors) == taken
    assert (parsed.repaired, parsed.truncated, parsed.diagnostics) == (False, False, ())
    assert set(ids(parsed)).isdisjoint(case.get("must_not_execute", ()))


@pytest.mark.spec("S3-16")
def test_the_types_are_those_of_the_corpus() -> None:
    assert set(CORPUS["types"]) == TYPES
    calls = [{**END, "id": kind, "type": kind} for kind in sorted(TYPES)]
    for strict in (True, False):
        assert parse(document(*calls), strict=strict) == Parsed(
            calls=tuple(found(call, n) for n, call in enumerate(calls))
        )


@pytest.mark.spec("S3-18")
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            """{
  "toolCalls": [
    {"type": "say", "id": "v1", "operation": "speak", "parameters": {"utterance": "Let me check..."}},
    {"type": "send_chat", "id": "c1", "operation": "respond", "parameters": {"content": "Let me check..."}},
    {"type": "gmail_list", "id": "g1", "operation": "list", "parameters": {"maxResults": 10}},
    {"type": "send_chat", "id": "c2", "operation": "respond", "parameters": {"content": "Here are your emails..."}},
    {"type": "end_turn", "id": "e1", "operation": "end_turn", "parameters": {}}
  ]
}""",
            [
                ("v1", "say", "speak", {"utterance": "Let me check..."}),
                ("c1", "send_chat", "respond", {"content": "Let me check..."}),
                ("g1", "gmail_list", "list", {"maxResults": 10}),
                ("c2", "send_chat", "respond", {"content": "Here are your emails..."}),
                ("e1", "end_turn", "end_turn", {}),
            ],
        ),
        (
            """```json
{
  "toolCalls": [
    {"type": "send_chat", "id": "c2", "operation": "respond", "parameters": {"content": "Here:\\n\\n1. ..."}},
    {"type": "end_turn", "id": "e1", "operation": "end_turn", "parameters": {}}
  ]
}
```""",
            [
                ("c2", "send_chat", "respond", {"content": "Here:\n\n1. ..."}),
                ("e1", "end_turn", "end_turn", {}),
            ],
        ),
    ],
)
def test_the_examples_of_the_format_are_read(
    text: str, expected: list[tuple[str, str, str, dict[str, Any]]], strict: bool
) -> None:
    parsed = parse(text, strict=strict)
    assert [(call.id, call.type, call.operation, call.parameters) for call in parsed.calls] == expected
    assert parsed == Parsed(calls=parsed.calls)


@pytest.mark.spec("S3-01", "S3-02", "S3-20")
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "```json\n{}\n```",
        "```\n{}\n```",
        "```json{}```",
        " \r\n\t```json\r\n{}\r\n```\r\n ",
        "\ufeff{}",
        "```json\n{}",
    ],
)
def test_the_form_asked_for_is_read_without_a_word(text: str, strict: bool) -> None:
    text = text.replace("{}", document(CHAT, END))
    assert parse(text, strict=strict) == Parsed(calls=(found(CHAT), found(END, 1)))


@pytest.mark.spec("S3-03")
@pytest.mark.parametrize(
    ("text", "noted", "repaired"),
    [
        ("```JSON\n{}\n```", ["fence_label"], False),
        ("```Json5\n{}\n```", ["fence_label"], False),
        ("```json\n{}\n```\nThere you are.", ["text_outside"], True),
        ("Here:\n{}", ["text_outside"], True),
        ("I use {braces} and [lists], 'quotes\n{}", ["text_outside"], True),
        ("an open { brace. {}", ["text_outside"], True),
        ("{x: 1} then {}", ["text_outside"], True),
        ("{} {}}", ["text_outside"], True),
        ("{}\n```", [], False),
    ],
)
def test_what_stands_around_a_document_is_forgiven_and_named(text: str, noted: list[str], repaired: bool) -> None:
    text = text.replace("{}", document(CHAT), 1).replace("{}", "")
    parsed = parse(text)
    assert parsed.calls == (found(CHAT, repaired=repaired),)
    assert rules(parsed) == ([], noted)
    if noted:
        assert rules(parse(text, strict=True)) == (["syntax"], [])


@pytest.mark.spec("S3-04")
@pytest.mark.parametrize("between", ["\n", "\n```\n```json\n", ""])
def test_two_documents_give_the_calls_of_both(between: str) -> None:
    parsed = parse(document(CHAT) + between + document(END))
    assert parsed.calls == (found(CHAT), found(END, 1))
    assert rules(parsed) == ([], ["several_documents"])


@pytest.mark.spec("S3-05", "S3-09")
@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('{"toolCalls": [CHAT,]}', "comma"),
        ('{"toolCalls": [,CHAT]}', "comma"),
        ('{"toolCalls": [CHAT],,}', "comma"),
        ('{"toolCalls": [CHAT] "x": 1}', "comma"),
        ('{"x": 1\n"toolCalls": [CHAT]}', "comma"),
        ('{"x": "1" "toolCalls": [CHAT]}', "comma"),
        ('{"x": true "y": 2 "toolCalls": [CHAT]}', "comma"),
        ('{"toolCalls": /* [ */ [CHAT]}', "comment"),
        ('{"toolCalls": [CHAT] // }\n}', "comment"),
        ('{"toolCalls": [CHAT # }\n]}', "comment"),
        ("{'toolCalls': [CHAT]}", "quotes"),
        ("{“toolCalls”: [CHAT]}", "quotes"),
        ("{toolCalls: [CHAT]}", "bare_key"),
        ('{"toolCalls" = [CHAT]}', "equals_sign"),
        ('{"x": None, "toolCalls": [CHAT]}', "python_literal"),
        ('{"x": "a\tb", "toolCalls": [CHAT]}', "control_character"),
        ('{"x": "\\d", "toolCalls": [CHAT]}', "escape"),
        ('{"x": "\\udc00", "toolCalls": [CHAT]}', "surrogate"),
        ('{"x": "\udc80", "toolCalls": [CHAT]}', "surrogate"),
        ('{"toolCalls":\u00a0[CHAT]}', "space"),
        ('{"tool_calls": [CHAT]}', "tool_calls"),
        ("[CHAT]", "bare_list"),
        ("CHAT", "single_call"),
    ],
)
def test_what_can_mean_only_one_thing_is_mended_and_marked(text: str, rule: str) -> None:
    text = text.replace("CHAT", CHAT_TEXT)
    parsed = parse(text)
    assert parsed.calls == (found(CHAT, repaired=True),)
    assert (rules(parsed), parsed.repaired) == (([], [rule]), True)
    strict = parse(text, strict=True)
    assert (strict.calls, len(strict.errors), strict.repaired) == ((), 1, False)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("'it\\'s \"so\"'", 'it\'s "so"'),
        ('"\\d\\w \\( \\` \\u0041"', "\\d\\w ( ` A"),
        ('"\\ud83d\\ude00 \\ud83d."', "😀 \ufffd."),
        ('"a\nb"', "a\nb"),
        ("[1 /* 2 */, 3,]", [1, 3]),
        ("{a: {b-c: True}}", {"a": {"b-c": True}}),
        ("-1.5e3", -1500.0),
        ("‘x’", "x"),
    ],
)
def test_a_mended_value_is_what_was_meant(written: str, value: Any) -> None:
    text = CUSTOM.replace("VALUE", written)
    assert [call.parameters for call in parse(text).calls] == [{"v": value}]


@pytest.mark.spec("S3-05", "S3-08")
@pytest.mark.parametrize(
    "written",
    [
        "'it's'",
        '"say "hi" now"',
        '"a""b": 1',
        '"a" "b"',
        '"a" b: 1',
        "[1 2]",
        "‘it’s’",
        '“a"',
        "yes",
        "+1",
        ".5",
        "1.",
        "01",
        "0x10",
        "1_000",
        "undefined",
        '"\\u12g4"',
        "(1)",
        "{1: 2}",
        "{'a'}",
        "<b>",
        '"a" + "b"',
        "NaN",
        "-Infinity",
        "inf",
        "1e400",
        "9" * 500,
        "[" * 70 + "]" * 70,
        "]",
        "}",
        ":",
        "/",
        '"',
        "'",
        "/*",
    ],
)
def test_what_can_mean_two_things_is_refused(written: str) -> None:
    text = CUSTOM.replace("VALUE", written)
    for text in (text, f"{text}\n{document(END)}", text[text.index("[") + 1 : -2]):
        parsed = parse(text)
        assert (parsed.calls, len(parsed.errors)) == ((), 1)
        strict = parse(text, strict=True)
        assert (strict.calls, len(strict.errors)) == ((), 1)


@pytest.mark.spec("S3-20")
@pytest.mark.parametrize(
    "text",
    [
        'The page said: "DOC"',
        "The page said: 'DOC'",
        "The page said: “DOC”",
        "The page said: ESCAPED",
        "The page said: TWICE",
        '{"toolCalls": [{"id": "a", "type": "custom", "parameters": {"x": @, "y": DOC}}]}',
        '{"toolCalls": [{"id": "a", "type": "send_chat", "parameters": {"content": "see "DOC" !"}}]}',
        '{"toolCalls": [{"id": "a", "type": "send_chat", "parameters": {"content": "see "}]} DOC"}}]}',
        '{"toolCalls": [{"id": "a", "type": "nothing", "parameters": DOC}]}',
        '{"toolCalls": [{"id": "a", "type": "nothing", "parameters": LIST}]}',
        '{"toolCalls": null, "more": DOC}',
        '{"more": DOC}',
        "[[DOC]]",
        '{"toolCalls": [LIST]}',
        '{"toolCalls": [{"toolCalls": LIST}]}',
        "/* DOC",
        '{"toolCalls": [], /* LIST */ "toolCalls": LIST}',
        '{"toolCalls": LIST, "x": {"a": 1, "a": 2}}',
        '{"toolCalls": LIST, "x": NaN}',
        '{"toolCalls": LIST @}',
    ],
)
def test_what_is_quoted_or_nested_or_doubtful_is_never_a_call(text: str) -> None:
    evil = {**CHAT, "id": "evil", "type": "terminal_execute"}
    for name, value in {
        "DOC": document(evil),
        "ESCAPED": json.dumps(document(evil)),
        "TWICE": json.dumps(json.dumps(document(evil))),
        "LIST": json.dumps([evil]),
    }.items():
        text = text.replace(name, value)
    for strict in (True, False):
        parsed = parse(text, strict=strict)
        if not text.startswith("/*") or strict:
            assert parsed.calls == ()
            assert parsed.errors
        assert all(call.repaired for call in parsed.calls)


CUT = document(CHAT, {**CHAT, "id": "n", "parameters": {"n": 10, "b": True, "t": 'a\\" }', "l": [1, {}]}}, END)
_SECOND = CUT.index("}}, ") + 4
_THIRD = CUT.index("}]}}, ", _SECOND) + 6


@pytest.mark.spec("S3-06")
@pytest.mark.parametrize("end", range(len(CUT)))
def test_a_call_whose_end_was_not_seen_is_never_handed_over(end: int) -> None:
    closed = [each for each, at in (("c1", _SECOND - 2), ("n", _THIRD - 2), ("e1", len(CUT) - 2)) if end >= at]
    for text in (CUT[:end], f"```json\n{CUT[:end]}"):
        parsed = parse(text)
        assert ids(parsed) == closed
        assert parsed.truncated == (end > CUT.index("["))
        assert parse(text, strict=True).calls == ()


@pytest.mark.spec("S3-08", "S3-09")
@pytest.mark.parametrize(
    "text",
    ["null", "1", '"x"', "{}", "[]", "[1]", '{"toolCalls": {}}', '{"toolCalls": null}', "", "Hello.", '{"a"', "@"],
)
def test_a_text_without_calls_is_one_error(text: str) -> None:
    for strict in (True, False):
        parsed = parse(text, strict=strict)
        assert (parsed.calls, len(parsed.errors), parsed.repaired) == ((), 1, False)


@pytest.mark.spec("S3-10")
def test_no_calls_at_all_is_legal() -> None:
    assert parse('{"toolCalls": []}') == parse('{"toolCalls": []}', strict=True) == Parsed()


@pytest.mark.spec("S3-07", "S3-11", "S3-12", "S3-13", "S3-15", "S3-22")
@pytest.mark.parametrize(
    ("change", "tolerant"),
    [
        ({"id": 7}, {"id": "7"}),
        ({"id": ...}, {"id": "auto_1"}),
        ({"operation": ...}, {"operation": "send_chat"}),
        ({"parameters": ...}, {"parameters": {}}),
        ({"parameters": None}, {"parameters": {}}),
        ({"parameters": '{"a": 1}'}, {"parameters": {"a": 1}}),
        ({"parameters": '{"a": 1, "a": 2}'}, None),
        ({"parameters": "{a: 1}"}, None),
        ({"parameters": []}, None),
        ({"id": None}, None),
        ({"id": True}, None),
        ({"id": "x" * (MAX_ID + 1)}, None),
        ({"operation": None}, None),
        ({"operation": 1}, None),
        ({"type": ...}, None),
        ({"type": "gmail_nuke"}, None),
        ({"type": "Send_Chat"}, None),
        ({"priority": "1"}, None),
        ({"priority": None}, {"priority": 0}),
        ({"priority": True}, None),
    ],
)
def test_each_call_is_judged_on_its_own(change: dict[str, Any], tolerant: dict[str, Any] | None) -> None:
    changed = {key: value for key, value in {**CHAT, **change}.items() if value is not ...}
    text = document(changed, END)
    strict = parse(text, strict=True)
    assert (strict.calls, rules(strict)) == ((found(END, 1),), (["call"], []))
    error = strict.errors[0]
    assert (error.at, error.index) == (text.index("[") + 1, 0)
    assert error_text(error).startswith("Invalid tool call: ")
    if tolerant is None:
        assert parse(text) == strict
    else:
        assert parse(text).calls == (
            found({**CHAT, **tolerant}, repaired=True),
            found(END, 1),
        )


BEFORE = {**CHAT, "id": "before"}
MENDED = {
    "a comma": """{"type": "send_chat", "id": "m", "operation": "o", "parameters": {"content": "x",},}""",
    "bare keys": """{type: "send_chat", id: "m", "operation": "o", "parameters": {}}""",
    "quotes": """{'type': 'send_chat', 'id': 'm', 'operation': 'o', 'parameters': {'content': 'x'}}""",
    "a literal": """{"type": "send_chat", "id": "m", "operation": "o", "parameters": {"x": True}}""",
    "a comment": """{"type": "send_chat", /* now */ "id": "m", "operation": "o", "parameters": {}}""",
    "a missing comma": """{"type": "send_chat" "id": "m", "operation": "o", "parameters": {}}""",
    "a line break": """{"type": "send_chat", "id": "m", "operation": "o", "parameters": {"x": "a\nb"}}""",
    "no id": """{"type": "send_chat", "operation": "o", "parameters": {}}""",
    "no operation": """{"type": "send_chat", "id": "m", "parameters": {}}""",
    "a name": """{"name": "send_chat", "arguments": {}}""",
    "parameters as text": """{"type": "send_chat", "id": "m", "operation": "o", "parameters": "{}"}""",
}


@pytest.mark.spec("S3-07")
@pytest.mark.parametrize("fenced", [False, True])
@pytest.mark.parametrize("mended", MENDED)
def test_one_repaired_call_leaves_the_calls_next_to_it_as_they_are(mended: str, fenced: bool) -> None:
    text = f'{{"toolCalls": [{json.dumps(BEFORE)}, {MENDED[mended]}, {json.dumps(END)}]}}'
    parsed = parse(f"```json\n{text}\n```" if fenced else text)
    assert [call.repaired for call in parsed.calls] == [False, True, False]
    assert (parsed.repaired, parsed.errors) == (True, ())


@pytest.mark.spec("S3-07")
@pytest.mark.parametrize(
    "text",
    [
        "{toolCalls: [CALL, MENDED]}",
        '{"toolCalls": [CALL, MENDED,]}',
        '{"toolCalls": [CALL, /* and */ MENDED]}',
        '{"toolCalls": [CALL MENDED]}',
        '{"other": [MENDED], "toolCalls": [CALL]}',
        '{"tool_calls": [CALL, MENDED]}',
        "[CALL, MENDED]",
        'Here: {"toolCalls": [CALL, MENDED]}',
        '{"toolCalls": [CALL, MENDED, {"type":',
    ],
)
def test_a_repair_outside_of_the_calls_concerns_all_of_them(text: str) -> None:
    text = text.replace("CALL", json.dumps(BEFORE)).replace("MENDED", MENDED["a literal"])
    parsed = parse(text)
    assert parsed.calls
    assert all(call.repaired for call in parsed.calls)


@pytest.mark.spec("S3-07")
def test_a_call_that_a_quoted_text_may_have_let_out_counts_as_repaired() -> None:
    """A text in single quotes that is not escaped can end early, and its rest become a call."""
    page = "x'}}, " + json.dumps(BEFORE) + ", {'type': 'send_chat', 'id': 'n', 'parameters': {'content': 'y"
    said = "{'type': 'send_chat', 'id': 'm', 'operation': 'o', 'parameters': {'content': '" + page + "'}}"
    parsed = parse(f'{{"toolCalls": [{json.dumps(CHAT)}, {said}, {json.dumps(END)}]}}')
    shown = [(call.id, call.repaired) for call in parsed.calls]
    assert shown == [("c1", False), ("m", True), ("before", True), ("n", True), ("e1", False)]


@pytest.mark.spec("S3-11", "S3-14")
@pytest.mark.parametrize("priority", [0, 5, -1, 2.5, 10**30])
def test_a_priority_is_a_number_and_more_keys_are_ignored(priority: float) -> None:
    text = document({**CHAT, "priority": priority, "repaired": True, "index": 9, "__class__": "x"})
    for strict in (True, False):
        assert parse(text, strict=strict).calls == (found({**CHAT, "priority": priority}),)


NAMED = '{"name": "send_chat", "arguments": {"content": "Hi"}}'


@pytest.mark.parametrize(
    "text",
    [
        f"```json\n{NAMED}\n```",
        f"<tool_call>\n{NAMED}\n</tool_call>",
        f"<tool_call>\n{NAMED}",
        f"Let me see.\n```\n{NAMED}\n```",
        f"```\n[{NAMED}]\n```",
        f'{{"toolCalls": [{NAMED}]}}',
        "<tool_call>" + NAMED.replace("arguments", "parameters"),
        '<tool_call>{"name": "send_chat", "arguments": "{\\"content\\": \\"Hi\\"}"}',
        f'```json\n{{"type": "function", "id": "auto_1", "function": {NAMED}}}\n```',
        f'{{"tool_calls": [{{"type": "function", "function": {NAMED}}}]}}',
    ],
)
def test_a_call_as_models_write_it_natively_is_read_and_marked(text: str) -> None:
    parsed = parse(text)
    shown = [(each.type, each.id, each.parameters, each.repaired) for each in parsed.calls]
    assert shown == [("send_chat", "auto_1", {"content": "Hi"}, True)]
    assert (parsed.errors, "named_call" in rules(parsed)[1]) == ((), True)
    assert parse(text, strict=True).calls == ()


@pytest.mark.parametrize(
    "text",
    [
        NAMED,
        f"Such as {NAMED}",
        f"[{NAMED}]",
        '```{"name": "gmail_nuke", "arguments": {}}',
        '```{"name": "send_chat", "arguments": [1]}',
        '```{"name": ["send_chat"], "arguments": {}}',
        '```{"name": "send_chat"}',
        '```{"name": "send_chat", "arguments": {}, "parameters": {"content": "Hi"}}',
        '```{"name": "send_chat", "type": "say", "arguments": {}}',
        'It says "<tool_call>{\\"name\\": \\"send_chat\\", \\"arguments\\": {}}</tool_call>".',
    ],
)
def test_what_only_resembles_such_a_call_is_none(text: str) -> None:
    assert parse(text).calls == ()


@pytest.mark.spec("S3-17")
def test_an_id_is_taken_once_in_a_whole_reply() -> None:
    again = {**CHAT, "parameters": {"content": "other"}}
    for text in (document(CHAT, again, END), document(CHAT) + document(again, END)):
        parsed = parse(text)
        assert parsed.calls == (found(CHAT), found(END, 2))
        assert (rules(parsed)[0], parsed.errors[0].index) == (["duplicate_id"], 1)
        assert parsed.errors[0].at == text.rindex("{", 0, text.rindex('"c1"'))
    assert rules(parse(document(CHAT, again), strict=True))[0] == ["duplicate_id"]


def test_types_may_be_those_of_the_tools_there_are() -> None:
    call = {**CHAT, "type": "read_file"}
    assert parse(document(call), types=OUTPUTS | {"read_file"}).calls == (found(call),)
    assert rules(parse(document(call))) == (["call"], [])


@pytest.mark.spec("S3-08")
@pytest.mark.parametrize(
    "members",
    ['"a": 1, "a": 1', '"a": "x", "a": "\\u003a"', '"a": "x", "\\u0061": "\\u003A"', '"b": [{"": 1, "": 2}]'],
)
@pytest.mark.parametrize("change", [str, lambda text: text.replace('"x"', "'x'"), lambda text: f"So: {text}"])
def test_a_key_that_stands_twice_refuses_the_document(members: str, change: Callable[[str], str]) -> None:
    text = change(CUSTOM.replace("VALUE", f"{{{members}}}"))
    for strict in (True, False):
        parsed = parse(text, strict=strict)
        assert (parsed.calls, len(parsed.errors)) == ((), 1)
    assert rules(parse(text))[0] == ["duplicate_key"]


LONG = 'a: \\"b\\", \\u0063\\n' * 400


@pytest.mark.parametrize(
    ("members", "fine"),
    [
        (f'"a": "{LONG}"', True),
        (f'"a": "{LONG}", "b": "{LONG}"', True),
        (f'"a": "{LONG}", "b": {{"a": "{LONG}"}}', True),
        (f'"a": "{LONG}", "a": "{LONG}"', False),
        (f'"a": "{LONG}x", "a": "{LONG}"', False),
        (f'"a": "{LONG}", "b": {{"a": 1, "a": 2}}', False),
        (f'"a": "{LONG}\\u003a", "b": 1, "b": 2', False),
        (f'"a": "{LONG}", "b": "\\u003a", "c": 1, "c": 2', False),
        (f'"b": "\\u003a{LONG}", "a": "{LONG}\\u003a", "c": 1, "c": 2', False),
        (f'"c": "{LONG}", "b": "{LONG}\\u003a", "c": "{LONG}\\u003a"', False),
        (f'"a": "{"x:" * 2000}", "b": "\\u003a"', True),
        (f'"a": "{"x:" * 2000}", "b": "{"x:" * 2000}", "b": 1', False),
        (f'"a": "{": 1," * 2000}", "b": [{"1," * 2000}1], "b": 1', False),
    ],
    ids=range(13),
)
def test_long_texts_hide_no_key_that_stands_twice(members: str, fine: bool) -> None:
    text = CUSTOM.replace("VALUE", f"1, {members}")
    for strict in (True, False):
        parsed = parse(text, strict=strict)
        if fine:
            expected = json.loads(text)["toolCalls"][0]
            assert parsed == Parsed(calls=(found(expected),))
        else:
            assert (parsed.calls, rules(parsed)) == ((), (["duplicate_key"], []))


@pytest.mark.parametrize("count", [10_000, 10_001])
def test_an_object_has_so_many_keys_and_no_more(count: int) -> None:
    for value in ({str(n): n for n in range(count)}, [{str(n): n for n in range(count)}]):
        parsed = parse(CUSTOM.replace("VALUE", json.dumps(value)))
        assert (len(parsed.calls), rules(parsed)[0]) == ((1, []) if count == 10_000 else (0, ["keys"]))


def nested(depth: int) -> str:
    """A document so deep, of which four levels are around the parameters' one list."""
    lists = depth - 4
    return CUSTOM.replace("VALUE", "[" * lists + "]" * lists)


@pytest.mark.spec("S3-21")
@pytest.mark.parametrize("change", [str, lambda text: text.replace('"x"', "'x'"), lambda text: f"So: {text}"])
def test_depth_has_one_limit_whatever_has_to_be_mended(change: Callable[[str], str]) -> None:
    assert len(parse(change(nested(MAX_DEPTH))).calls) == 1
    deeper = parse(change(nested(MAX_DEPTH + 1)))
    assert (deeper.calls, rules(deeper)[0]) == ((), ["depth"])


@pytest.mark.spec("S3-21")
@pytest.mark.parametrize("strict", [True, False])
def test_a_reply_too_long_is_not_read(strict: bool) -> None:
    room = MAX_BYTES - len(document({**CHAT, "parameters": {"content": ""}}))
    longest = document({**CHAT, "parameters": {"content": "x" * room}})
    assert len(parse(longest, strict=strict).calls) == 1
    for text in (longest + " ", "é" * (MAX_BYTES // 2 + 1), "x" * 10_000_000):
        assert rules(parse(text, strict=strict)) == (["size"], [])


@pytest.mark.spec("S3-21")
@pytest.mark.parametrize(
    "unit",
    [
        "[",
        "{",
        "{{",
        '{"a":',
        "[1,",
        '["',
        "['",
        "[/*",
        "[//",
        "[NaN,",
        '{"toolCalls":[',
        "```json\n",
        "```",
        "}",
        "\\",
        '"',
        "{a:",
        "{a=",
        "[1 ",
        "“",
        '{"a":1,"a":',
        "[\\",
        "{x}",
        '{"x":1e999',
        "[[1],",
        "<tool_call>",
        "`",
        "{} ",
        '{"toolCalls":[]}',
        ",",
        "[,",
        "#",
        "[#",
        "\ud800",
        "[\ud800",
        '["\\ud800',
        "\u00a0",
        "[\u00a0",
        "[1x",
        "{'a':'",
        '[{"type":"custom","parameters":{}},',
        "/",
        "[/",
        "{/",
        "{a /*",
        "{a/**/",
        "[[/**/",
        "x[",
    ],
)
def test_no_text_is_a_trap(unit: str) -> None:
    """Quadratic time would take minutes here, and endless recursion would raise."""
    for text in (unit * (100_000 // len(unit)), document(CHAT) + unit * (100_000 // len(unit))):
        for strict in (True, False):
            parse(text, strict=strict)


@pytest.mark.soak
@pytest.mark.parametrize("unit", ["{x}", "[1x", "{/", "[/", "{a/**/", "{} ", "[1,", '{"a":', "[/*", '{"a":@}'])
def test_no_text_of_a_megabyte_is_a_trap(unit: str) -> None:
    parse(unit * (MAX_BYTES // len(unit)))


def test_an_error_repeats_next_to_nothing_of_the_text() -> None:
    for text in (document({**CHAT, "type": "\x1b[31m" * 10_000}), "x\x1b[31m" * 10_000, "{'a'\x1b[31m"):
        for strict in (True, False):
            said = [error_text(error) for error in parse(text, strict=strict).errors]
            assert all(len(each) < 500 and each.isprintable() and each.isascii() for each in said)


def test_the_prompt_teaches_what_is_read() -> None:
    tool = ToolDefinition(
        name="read_file", description="Read\n\n# a file.", input_schema={"type": "object", "properties": {}}
    )
    prompt = teach([tool])
    examples = re.findall(r'^{"toolCalls.*?^]}', prompt, re.DOTALL | re.MULTILINE)
    read = [parse(each, strict=True, types=TYPES | {"read_file"}) for each in examples]
    steps = [[call.type for call in each.calls] for each in read]
    assert steps == [["send_chat", "read_file"], ["send_chat", "end_turn"]]
    entries = [line for line in prompt.splitlines() if line.startswith("- ")]
    assert [line[2:].split(":")[0] for line in entries] == [
        "send_chat",
        "say",
        "open_url",
        "end_turn",
        "read_file",
    ]
    assert entries[-1] == '- read_file: Read # a file. {"type": "object", "properties": {}}'


def test_behind_very_many_brackets_nothing_is_read() -> None:
    document = '{"toolCalls": [{"type": "end_turn", "id": "e", "operation": "x", "parameters": {}}]}'
    found = parse("[] " * (MOST_TRIES - 1) + document)
    assert [(call.type, call.repaired) for call in found.calls] == [("end_turn", True)]
    assert parse("[] " * MOST_TRIES + document).calls == ()
