"""Chat completions as the many servers send them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callgate.core.content import Message, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from callgate.core.models import ModelError, ModelErrorKind, Prompt, Reply
from callgate.core.tools import ToolDefinition
from callgate.features.chat.models.openai_chat import ChatReader, to_request
from callgate.features.chat.models.replies import SseEvent
from callgate.features.chat.settings import ModelTable
from tests.features.chat.models.asking import HELLO, KEY, model_at, reply_of
from tests.models_server import ModelServer, Says


def read(*chunks: Any) -> Reply:
    reader = ChatReader()
    for chunk in chunks:
        data = chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode()
        list(reader.feed(SseEvent("", data)))
    return reader.finish()


def delta(finish: str | None = None, **said: Any) -> dict[str, Any]:
    return {"choices": [{"delta": said, "finish_reason": finish}]}


def call(name: str | None = None, arguments: Any = None, **more: Any) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {**more, "type": "function", "function": function}


END = delta("tool_calls")
A = ToolUseBlock("1", "a", {"x": 1})
B = ToolUseBlock("2", "b", {"y": 2})


@pytest.mark.parametrize(
    "chunks",
    [
        [delta(tool_calls=[call("a", '{"x":1}', index=0, id="1"), call("b", '{"y":2}', index=1, id="2")]), END],
        [delta("tool_calls", tool_calls=[call("a", '{"x":1}', id="1"), call("b", '{"y":2}', id="2")])],
        [delta(tool_calls=[call("a", {"x": 1}, id="1")]), delta(tool_calls=[call("b", {"y": 2}, id="2")]), END],
        [
            delta(tool_calls=[call("a", '{"x":1}', index=0, id="1")]),
            delta(tool_calls=[call("b", '{"y":2}', index=0, id="2")]),
            END,
        ],
        [
            delta(tool_calls=[call("a", "", index=0, id="1")]),
            delta(tool_calls=[call("b", None, index=1, id="2")]),
            delta(tool_calls=[call(None, '{"y"', index=1)]),
            delta(tool_calls=[call(None, '{"x":', index=0)]),
            delta(tool_calls=[call(None, "1}", index=0), call(None, ":2}", index=1)]),
            END,
        ],
        [
            delta(tool_calls=[call("a", '{"x"', index=0, id="1")]),
            delta(tool_calls=[call("a", ":1}", index=0, id="1")]),
            delta(tool_calls=[call("b", '{"y"', index=1, id="2")]),
            delta(tool_calls=[call("b", ":2}", index=1, id="2")]),
            END,
        ],
        [
            delta(tool_calls=[call("a", '{"x"', id="1")]),
            delta(tool_calls=[call(None, ":1}")]),
            delta(tool_calls=[call("b", '{"y"', id="2")]),
            delta(tool_calls=[call(None, ":2}", id="2")]),
            END,
        ],
    ],
    ids=[
        "at once",
        "without index",
        "objects",
        "all the first",
        "interleaved",
        "names repeated",
        "no index, in pieces",
    ],
)
def test_calls_are_put_together_however_a_server_sends_them(chunks: list[Any]) -> None:
    reply = read(*chunks, b"[DONE]")
    assert (reply.message.content, reply.stop, reply.unreadable) == ([A, B], "tool_use", {})


def test_no_argument_is_no_argument() -> None:
    for arguments in (None, "", "  ", "{}"):
        reply = read(delta(tool_calls=[call("a", arguments, index=0, id="1")]), END)
        assert (reply.message.content, reply.unreadable) == ([ToolUseBlock("1", "a", {})], {})


def test_a_call_without_a_name_is_unreadable() -> None:
    reply = read(delta(tool_calls=[call(None, "{}", index=0, id="1")]), END)
    assert list(reply.unreadable) == ["1"]


@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_a_call_that_was_cut_is_unreadable(finish: str) -> None:
    begun = delta(tool_calls=[call("a", '{"x":1}', index=0, id="1"), call("b", "", index=1, id="2")])
    half = delta(tool_calls=[call("b", '{"y":', index=2, id="3")])
    assert list(read(begun, half, delta(finish)).unreadable) == ["2", "3"]


def test_the_end_may_lack_its_mark_but_not_its_reason() -> None:
    assert read(delta(content="x"), delta("stop")).message.content == [TextBlock("x")]
    with pytest.raises(ModelError) as caught:
        read(delta(content="x"), b"[DONE]")
    assert caught.value.kind is ModelErrorKind.CUT


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_thoughts_are_kept_with_the_field_they_came_in(field: str) -> None:
    reply = read(delta(**{field: "Hm"}), delta(**{field: "m."}), delta(content="x"), delta("stop"))
    assert reply.message.content == [ThinkingBlock("Hmm.", f"chat:{field}"), TextBlock("x")]


def test_a_thought_that_comes_in_both_fields_counts_once() -> None:
    reply = read(delta(reasoning="Hm", reasoning_content="Hm"), delta("stop"))
    assert reply.message.content == [ThinkingBlock("Hm", "chat:reasoning_content")]


def test_a_refusal_is_text_and_a_reason() -> None:
    reply = read(delta(refusal="I won't."), delta("stop"))
    assert (reply.message.content, reply.stop) == ([TextBlock("I won't.")], "refusal")


def test_only_the_first_alternative_counts() -> None:
    chunk = {
        "choices": [
            {"index": 0, "delta": {"content": "a"}},
            {"index": 1, "delta": {"content": "b"}, "finish_reason": "stop"},
        ]
    }
    assert read(chunk, delta("stop")).message.content == [TextBlock("a")]


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": [{"delta": {"content": 5}}]},
        {"choices": {}},
        {"choices": [{"delta": {"tool_calls": [{"index": "x"}]}}]},
    ],
)
def test_what_is_no_chunk_is_malformed(chunk: Any) -> None:
    with pytest.raises(ModelError) as caught:
        read(chunk)
    assert caught.value.kind is ModelErrorKind.MALFORMED


def test_thoughts_go_back_only_while_a_question_is_worked_on() -> None:
    thought = Message(role="assistant", content=[ThinkingBlock("old", "chat:reasoning"), ToolUseBlock("1", "a", {})])
    result = Message(role="user", content=[ToolResultBlock("1", [TextBlock("r")])])
    table = ModelTable(kind="openai", model="m")
    during = to_request(Prompt(messages=[*HELLO.messages, thought, result]), table)["messages"]
    after = to_request(Prompt(messages=[*HELLO.messages, thought, result, *HELLO.messages]), table)["messages"]
    assert (during[1].get("reasoning"), after[1].get("reasoning")) == ("old", None)


OPEN = {"type": "object", "properties": {"a": {"type": "object"}}}


async def test_the_request_says_all_that_the_settings_say() -> None:
    free = ToolDefinition(name="t", description="D.", input_schema={"type": "object"}, input="text")
    prompt = Prompt(messages=HELLO.messages, system="S.", tools=[free], output_schema=OPEN)
    async with ModelServer(Says("x")) as server:
        await reply_of(model_at("openai", server.url, max_tokens=9, temperature=0, effort="low"), prompt)
        (request,) = server.requests
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.body == {
        "model": "m-1",
        "messages": [{"role": "system", "content": "S."}, {"role": "user", "content": "Hello."}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [
            {"type": "function", "function": {"name": "t", "description": "D.", "parameters": {"type": "object"}}}
        ],
        "max_tokens": 9,
        "temperature": 0,
        "reasoning_effort": "low",
        "response_format": {"type": "json_schema", "json_schema": {"name": "reply", "schema": OPEN, "strict": False}},
    }


async def test_without_a_key_no_header_is_sent() -> None:
    async with ModelServer(Says("x")) as server:
        await reply_of(model_at("openai", server.url, key=None))
        assert "authorization" not in server.requests[0].headers
