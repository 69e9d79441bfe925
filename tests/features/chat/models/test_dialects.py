"""The same reply over each dialect is the same reply, however its stream is cut."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callgate.core.content import (
    ImageBlock,
    ImageSource,
    JsonBlock,
    Message,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from callgate.core.models import (
    ModelError,
    ModelErrorKind,
    Prompt,
    Reply,
    TextDelta,
    ThinkingDelta,
    ToolUseDelta,
    Usage,
)
from callgate.features.chat.models.anthropic import AnthropicReader
from callgate.features.chat.models.openai_chat import ChatReader
from callgate.features.chat.models.openai_responses import ResponsesReader
from callgate.features.chat.models.replies import Reader, ServerFailed, SseDecoder, SseEvent
from tests.features.chat.models.asking import KINDS, model_at, pieces_of, reply_of
from tests.models_server import Asks, ModelServer, Says, stream

READERS: dict[str, tuple[str, Callable[[], Reader]]] = {
    "anthropic": ("/messages", AnthropicReader),
    "openai": ("/chat/completions", ChatReader),
    "responses": ("/responses", ResponsesReader),
}
SIGNATURES = {"anthropic": "sig-1", "openai": "chat:reasoning_content", "responses": "responses:rs_1 sig-1"}
FULL = Says(
    "Grüße 🙂, done.",
    thinking="Hm, hm.",
    calls=[Asks("read_file", {"path": "ä/€.txt"}), Asks("list_dir", {}, "call_2")],
)


def read(kind: str, pieces: list[bytes]) -> list[Any]:
    reader, decoder = READERS[kind][1](), SseDecoder()
    said = [each for piece in pieces for event in decoder.feed(piece) for each in reader.feed(event)]
    return [*said, reader.finish()]


def expected(kind: str) -> Reply:
    return Reply(
        message=Message(
            role="assistant",
            content=[
                ThinkingBlock("Hm, hm.", SIGNATURES[kind]),
                TextBlock("Grüße 🙂, done."),
                ToolUseBlock("call_1", "read_file", {"path": "ä/€.txt"}),
                ToolUseBlock("call_2", "list_dir", {}),
            ],
        ),
        stop="tool_use",
        usage=Usage(input=15, output=5, cache_read=3, cache_write=2),
        model="m-1",
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("write", [None, 1, 3])
async def test_a_reply_arrives_whole(kind: str, write: int | None) -> None:
    async with ModelServer(changed(FULL, write=write)) as server:
        got = await pieces_of(model_at(kind, server.url))
    assert got[-1] == expected(kind)
    assert "".join(each.text for each in got if isinstance(each, TextDelta)) == "Grüße 🙂, done."
    assert "".join(each.text for each in got if isinstance(each, ThinkingDelta)) == "Hm, hm."
    uses = [each for each in got if isinstance(each, ToolUseDelta)]
    assert {(each.id, each.name) for each in uses} == {("call_1", "read_file"), ("call_2", "list_dir")}
    assert json.loads("".join(each.text for each in uses if each.id == "call_1")) == {"path": "ä/€.txt"}


def changed(says: Says, **changes: Any) -> Says:
    return Says(**{**says.__dict__, **changes})


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_cut_into_pieces_at_any_byte_reads_the_same(kind: str) -> None:
    data = stream(FULL, READERS[kind][0], {"model": "m-1"})
    whole = read(kind, [data])
    assert whole[-1] == expected(kind)
    for at in range(0, len(data), 3):
        assert read(kind, [data[:at], data[at:]]) == whole
    assert read(kind, [bytes([byte]) for byte in data]) == whole


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_ends_early_never_gives_a_reply(kind: str) -> None:
    """But for the chat dialect's last lines, which some servers leave out."""
    data = stream(FULL, READERS[kind][0], {"model": "m-1"})
    marks = {
        "anthropic": b"event: message_stop",
        "openai": b'"finish_reason": "tool_calls"',
        "responses": b"event: response.completed",
    }
    needed = data.index(marks[kind])
    for at in range(0, needed + 1, 5):
        with pytest.raises(ModelError) as caught:
            read(kind, [data[:at]])
        assert (caught.value.kind, caught.value.retryable) == (ModelErrorKind.CUT, True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.spec("T38")
@pytest.mark.parametrize(
    "raw",
    [
        '{"path": "a',
        '{"path": "a"}}',
        '{"a": 1, "a": 2}',
        "[1]",
        "NaN",
        '{"a": 1e400}',
        "nul",
        '"text"',
        "{'a': 1}",
        '{"a": 1,}',
    ],
)
async def test_arguments_are_never_mended(kind: str, raw: str) -> None:
    calls = [Asks("a", id="call_1", raw=raw), Asks("b", {"fine": True}, "call_2")]
    async with ModelServer(Says(calls=calls)) as server:
        reply = await reply_of(model_at(kind, server.url))
    assert reply.message.content == [ToolUseBlock("call_1", "a", {}), ToolUseBlock("call_2", "b", {"fine": True})]
    assert list(reply.unreadable) == ["call_1"]


@pytest.mark.parametrize("kind", KINDS)
async def test_calls_with_the_same_id_or_none_get_one_of_their_own(kind: str) -> None:
    calls = [Asks("a", id="same"), Asks("b", id="same"), Asks("c", id=None), Asks("d", id="old")]
    before = Message(role="assistant", content=[ToolUseBlock("old", "x", {})])
    results = Message(role="user", content=[ToolResultBlock("old", [TextBlock("y")])])
    async with ModelServer(Says(calls=calls)) as server:
        reply = await reply_of(model_at(kind, server.url), Prompt(messages=[before, results]))
    ids = [block.id for block in reply.message.content if isinstance(block, ToolUseBlock)]
    assert ids[0] == "same"
    assert len({*ids, "old"}) == 5
    assert reply.unreadable == {}


STOPS = [
    ("anthropic", "end_turn", "end_turn"),
    ("anthropic", "stop_sequence", "end_turn"),
    ("anthropic", "max_tokens", "max_tokens"),
    ("anthropic", "refusal", "refusal"),
    ("anthropic", "model_context_window_exceeded", "max_tokens"),
    ("anthropic", "new_word", "end_turn"),
    ("openai", "stop", "end_turn"),
    ("openai", "length", "max_tokens"),
    ("openai", "content_filter", "refusal"),
    ("openai", "new_word", "end_turn"),
    ("responses", "max_output_tokens", "max_tokens"),
    ("responses", "content_filter", "refusal"),
]


@pytest.mark.parametrize(("kind", "theirs", "ours"), STOPS)
async def test_the_reason_to_stop_is_one_of_ours(kind: str, theirs: str, ours: str) -> None:
    async with ModelServer(Says("x", stop=theirs)) as server:
        assert (await reply_of(model_at(kind, server.url))).stop == ours


@pytest.mark.parametrize("kind", KINDS)
async def test_a_reply_with_calls_waits_for_their_results(kind: str) -> None:
    theirs = {"anthropic": "end_turn", "openai": "stop", "responses": None}[kind]
    async with ModelServer(Says("x", calls=[Asks("a")], stop=theirs)) as server:
        assert (await reply_of(model_at(kind, server.url))).stop == "tool_use"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_that_does_not_count_is_taken(kind: str) -> None:
    async with ModelServer(Says("x", usage=None)) as server:
        reply = await reply_of(model_at(kind, server.url))
    assert (reply.usage.input, reply.message.content) == (0, [TextBlock("x")])


IMAGE = ImageBlock(ImageSource(data="iVBORw=="), "image/png")
TALK = [
    Message(role="user", content=[TextBlock("Look"), IMAGE, JsonBlock({"a": [1]})]),
    Message(
        role="assistant",
        content=[
            ThinkingBlock("I saw", "sig-1"),
            ThinkingBlock("Chat", "chat:reasoning_content"),
            ThinkingBlock("Resp", "responses:rs_9 enc"),
            ThinkingBlock("Nobody's"),
            TextBlock("Fine."),
            ToolUseBlock("functions.read:0", "Read File!", {"p": "ä"}),
            ToolUseBlock("call_2", "b", "no object"),
        ],
    ),
    Message(
        role="user",
        content=[
            TextBlock("and go on"),
            ToolResultBlock("functions.read:0", [TextBlock("got"), IMAGE]),
            ToolResultBlock("call_2", [TextBlock("no such file")], is_error=True),
        ],
    ),
]
DATA_URL = "data:image/png;base64,iVBORw=="
CALL_1 = "call_" + hashlib.sha256(b"functions.read:0").hexdigest()[:32]
SENT = {
    "anthropic": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}},
                {"type": "text", "text": '{"a":[1]}'},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I saw", "signature": "sig-1"},
                {"type": "text", "text": "Fine."},
                {"type": "tool_use", "id": CALL_1, "name": "Read_File_", "input": {"p": "ä"}},
                {"type": "tool_use", "id": "call_2", "name": "b", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": CALL_1,
                    "content": [
                        {"type": "text", "text": "got"},
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}},
                    ],
                },
                {
                    "type": "tool_result",
                    "tool_use_id": "call_2",
                    "content": [{"type": "text", "text": "no such file"}],
                    "is_error": True,
                },
                {"type": "text", "text": "and go on", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ],
    "openai": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look"},
                {"type": "image_url", "image_url": {"url": DATA_URL}},
                {"type": "text", "text": '{"a":[1]}'},
            ],
        },
        {
            "role": "assistant",
            "reasoning_content": "Chat",
            "content": "Fine.",
            "tool_calls": [
                {"id": CALL_1, "type": "function", "function": {"name": "Read_File_", "arguments": '{"p":"ä"}'}},
                {"id": "call_2", "type": "function", "function": {"name": "b", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": CALL_1, "content": "got"},
        {"role": "tool", "tool_call_id": "call_2", "content": "Error: no such file"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": f"Images in the result of {CALL_1}:"},
                {"type": "image_url", "image_url": {"url": DATA_URL}},
                {"type": "text", "text": "and go on"},
            ],
        },
    ],
    "responses": [
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "Look"},
                {"type": "input_image", "image_url": DATA_URL, "detail": "auto"},
                {"type": "input_text", "text": '{"a":[1]}'},
            ],
        },
        {
            "type": "reasoning",
            "id": "rs_9",
            "summary": [{"type": "summary_text", "text": "Resp"}],
            "encrypted_content": "enc",
        },
        {"type": "message", "role": "assistant", "content": "Fine."},
        {"type": "function_call", "call_id": CALL_1, "name": "Read_File_", "arguments": '{"p":"ä"}'},
        {"type": "function_call", "call_id": "call_2", "name": "b", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": CALL_1,
            "output": [
                {"type": "input_text", "text": "got"},
                {"type": "input_image", "image_url": DATA_URL, "detail": "auto"},
            ],
        },
        {"type": "function_call_output", "call_id": "call_2", "output": "Error: no such file"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "and go on"}]},
    ],
}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_conversation_is_sent_as_the_dialect_wants_it(kind: str) -> None:
    async with ModelServer(Says("x")) as server:
        await reply_of(model_at(kind, server.url), Prompt(messages=TALK))
        body = server.requests[0].body
    assert body["input" if kind == "responses" else "messages"] == SENT[kind]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_reply_goes_back_as_it_came(kind: str) -> None:
    """What was thought included, as long as the same question is worked on."""
    async with ModelServer(FULL) as server:
        first = (await reply_of(model_at(kind, server.url))).message
        results = [ToolResultBlock(id, [TextBlock("r")]) for id in ("call_1", "call_2")]
        talk = [Message.text("user", "Go."), first, Message(role="user", content=[*results])]
        await reply_of(model_at(kind, server.url), Prompt(messages=talk))
        body = server.requests[1].body
    shown = json.dumps(body, ensure_ascii=False)
    assert all(each in shown for each in ("Hm, hm.", "Grüße 🙂, done.", "call_1", "call_2"))
    assert kind == "openai" or "sig-1" in shown


@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_provider_would_refuse_is_left_out(kind: str) -> None:
    empty = [
        Message(role="user", content=[TextBlock("Hi")]),
        Message(role="assistant", content=[]),
        Message(role="assistant", content=[ThinkingBlock("x", "responses:rs_1 enc")]),
        Message(role="user", content=[ImageBlock(ImageSource(data="PHN2Zz4="), "image/svg+xml")]),
    ]
    async with ModelServer(Says("x")) as server:
        await reply_of(model_at(kind, server.url), Prompt(messages=empty))
        body = server.requests[0].body
    sent = body["input" if kind == "responses" else "messages"]
    assert [each["role"] for each in sent] == ["user", "user"]
    assert "PHN2Zz4=" not in json.dumps(sent)


def test_every_block_of_a_message_can_be_stored() -> None:
    reply = expected("anthropic")
    assert msgspec.json.decode(msgspec.json.encode(reply.message), type=Message) == reply.message


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
def test_a_damaged_stream_is_a_reply_or_an_error_and_nothing_else(kind: str, data: st.DataObject) -> None:
    """Bytes changed, dropped, doubled: nothing escapes that the caller does not expect."""
    damaged = bytearray(stream(FULL, READERS[kind][0], {"model": "m-1"}))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        length = data.draw(st.sampled_from([0, 1, 2, 20, 200]))
        new = data.draw(
            st.one_of(
                st.binary(max_size=4), st.sampled_from([b"\\ud800", b"null", b"[" * 2000, b'"', b"}", b"-1", b"\n\n"])
            )
        )
        damaged[at : at + length] = new
    try:
        assert isinstance(read(kind, [bytes(damaged)])[-1], Reply)
    except (ModelError, ServerFailed):
        pass


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
def test_any_value_in_any_field_is_a_reply_or_an_error(kind: str, data: st.DataObject) -> None:
    events = [
        event
        for event in SseDecoder().feed(stream(FULL, READERS[kind][0], {"model": "m-1"}))
        if event.data.startswith(b"{")
    ]
    reader = READERS[kind][1]()
    target = data.draw(st.integers(0, len(events) - 1))
    try:
        for number, event in enumerate(events):
            tree = json.loads(event.data)
            if number == target:
                _replace(tree, data)
            list(reader.feed(SseEvent("", json.dumps(tree).encode())))
        assert isinstance(reader.finish(), Reply)
    except (ModelError, ServerFailed):
        pass


def _replace(tree: Any, data: st.DataObject) -> None:
    """Put any value in the place of one that is somewhere in the tree."""
    while True:
        keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        key = data.draw(st.sampled_from(keys))
        inner = tree[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            tree[key] = data.draw(ANYTHING)
            return
        tree = inner


@pytest.mark.parametrize("kind", KINDS)
async def test_half_a_character_does_not_keep_a_request_from_being_sent(kind: str) -> None:
    content = [TextBlock("a\ud800b"), JsonBlock({"k\udfff": ["\ud800", 10**30, float("nan")]})]
    talk = [Message(role="user", content=[*content, ToolResultBlock("x", [*content])])]
    async with ModelServer(Says("x")) as server:
        assert await reply_of(model_at(kind, server.url), Prompt(messages=talk, system="\udc80"))
        assert "a?b" in json.dumps(server.requests[0].body)
