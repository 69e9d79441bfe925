"""What only Anthropic's dialect has: thoughts that are signed or sealed, cache marks, pauses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callgate.core.content import Message, RedactedThinkingBlock, TextBlock, ThinkingBlock, ToolUseBlock
from callgate.core.models import ModelError, ModelErrorKind, Prompt, Usage
from callgate.core.tools import ToolDefinition
from callgate.features.chat.models.anthropic import AnthropicReader, to_request
from callgate.features.chat.models.replies import SseEvent
from callgate.features.chat.settings import ModelTable
from tests.features.chat.models.asking import HELLO, KEY, model_at, pieces_of, reply_of
from tests.models_server import ModelServer, Says

MARK = {"cache_control": {"type": "ephemeral"}}
TABLE = ModelTable(kind="anthropic", model="m-1")


def tool(name: str) -> ToolDefinition:
    return ToolDefinition(name=name, description="D.", input_schema={"type": "object"})


def test_system_tools_and_the_last_message_are_marked_for_the_cache() -> None:
    prompt = Prompt(messages=HELLO.messages, system="Be brief.", tools=[tool("a"), tool("b")])
    described = {"description": "D.", "input_schema": {"type": "object"}}
    assert to_request(prompt, TABLE) == {
        "model": "m-1",
        "max_tokens": 8192,
        "stream": True,
        "system": [{"type": "text", "text": "Be brief.", **MARK}],
        "tools": [{"name": "a", **described}, {"name": "b", **described, **MARK}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello.", **MARK}]}],
    }


CLOSED = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
OPEN = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize(
    ("table", "asked", "sent"),
    [
        (
            {"thinking_tokens": 2000, "max_tokens": 500},
            {},
            {"max_tokens": 2500, "thinking": {"type": "enabled", "budget_tokens": 2000}},
        ),
        ({"effort": "high"}, {}, {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}),
        ({"temperature": 0.5}, {"max_tokens": 7}, {"temperature": 0.5, "max_tokens": 7}),
        ({}, {"output_schema": CLOSED}, {"output_config": {"format": {"type": "json_schema", "schema": CLOSED}}}),
        ({}, {"output_schema": OPEN}, {"output_config": None}),
    ],
)
def test_settings_become_fields(table: Any, asked: Any, sent: dict[str, Any]) -> None:
    request = to_request(Prompt(messages=HELLO.messages, **asked), ModelTable(kind="anthropic", model="m", **table))
    assert {key: request.get(key) for key in sent} == sent


async def test_the_key_goes_into_their_header_and_nowhere_else() -> None:
    async with ModelServer(Says("x")) as server:
        await reply_of(model_at("anthropic", server.url))
        (request,) = server.requests
    assert request.target == "/v1/messages"
    assert [name for name, value in request.headers.items() if KEY in value] == ["x-api-key"]
    assert request.headers["anthropic-version"] == "2023-06-01"
    assert KEY not in json.dumps(request.body)


async def test_a_sealed_thought_comes_and_goes_back_as_it_is() -> None:
    async with ModelServer(Says("x", thinking="t", redacted="c2VhbGVk")) as server:
        reply = await reply_of(model_at("anthropic", server.url))
        await reply_of(
            model_at("anthropic", server.url), Prompt(messages=[*HELLO.messages, reply.message, *HELLO.messages])
        )
        sent = server.requests[1].body["messages"][1]["content"]
    assert reply.message.content == [ThinkingBlock("t", "sig-1"), RedactedThinkingBlock("c2VhbGVk"), TextBlock("x")]
    assert sent == [
        {"type": "thinking", "thinking": "t", "signature": "sig-1"},
        {"type": "redacted_thinking", "data": "c2VhbGVk"},
        {"type": "text", "text": "x"},
    ]


async def test_a_paused_reply_goes_on_until_it_is_whole() -> None:
    async with ModelServer(Says("One, ", stop="pause_turn"), Says("two.")) as server:
        got = await pieces_of(model_at("anthropic", server.url))
        sent = [request.body["messages"] for request in server.requests]
    reply = got[-1]
    assert reply.message == Message(role="assistant", content=[TextBlock("One, "), TextBlock("two.")])
    assert (reply.stop, reply.usage) == ("end_turn", Usage(input=30, output=10, cache_read=6, cache_write=4))
    assert sent[1][1:] == [{"role": "assistant", "content": [{"type": "text", "text": "One, "}]}]


async def test_an_endless_pause_has_an_end() -> None:
    async with ModelServer(Says("x", stop="pause_turn")) as server:
        assert (await reply_of(model_at("anthropic", server.url))).stop == "end_turn"
        assert len(server.requests) == 9


def feed(*events: dict[str, Any]) -> AnthropicReader:
    reader = AnthropicReader()
    for event in events:
        list(reader.feed(SseEvent("", json.dumps(event).encode())))
    return reader


def begins(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def goes_on(index: int, **delta: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": delta}


STOP = {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}}
END = {"type": "message_stop"}
USE = {"type": "tool_use", "id": "u", "name": "n", "input": {}}


@pytest.mark.parametrize(
    "events",
    [
        [goes_on(0, type="text_delta", text="x")],
        [begins(0, type="text", text=""), goes_on(1, type="text_delta", text="x")],
        [begins(0, type="text", text=""), goes_on(0, type="input_json_delta", partial_json="{}")],
        [begins(0, **USE), goes_on(0, type="text_delta", text="x")],
        [begins(0, type="text", text=""), begins(0, type="text", text="")],
        [
            begins(0, type="text", text=""),
            {"type": "content_block_stop", "index": 0},
            goes_on(0, type="text_delta", text="x"),
        ],
        [{"type": "content_block_start", "index": 0}],
        [begins(-1, type="text", text="")],
        [goes_on(0, type="text_delta", text=7)],
        [{"type": "content_block_delta", "index": 0, "delta": "x"}],
    ],
)
def test_a_piece_that_belongs_nowhere_is_malformed(events: list[dict[str, Any]]) -> None:
    with pytest.raises(ModelError) as caught:
        feed(*events)
    assert caught.value.kind is ModelErrorKind.MALFORMED


def test_a_call_whose_block_was_not_closed_is_unreadable() -> None:
    reply = feed(begins(0, **USE), goes_on(0, type="input_json_delta", partial_json='{"a": 1}'), STOP, END).finish()
    assert reply.message.content == [ToolUseBlock("u", "n", {})]
    assert (list(reply.unreadable), reply.stop) == (["u"], "max_tokens")


def test_what_is_new_in_the_protocol_is_passed_over() -> None:
    reader = feed(
        {"type": "new_event", "x": 1},
        begins(0, type="new_block", y=2),
        goes_on(0, type="text_delta", text="z"),
        {"type": "content_block_stop", "index": 0},
        begins(1, type="text", text="a"),
        goes_on(1, type="citations_delta", citation={}),
        goes_on(1, type="text_delta", text="b"),
        STOP,
        END,
    )
    assert reader.finish().message.content == [TextBlock("ab")]


@pytest.mark.spec("T38")
def test_an_input_that_comes_at_once_is_read_as_strictly() -> None:
    data = b'{"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "u", "name": "n", "input": %s}}'
    for given, unreadable in ((b'{"a": 1}', []), (b'{"a": 1, "a": 2}', ["u"]), (b"[1]", ["u"])):
        reader = AnthropicReader()
        list(reader.feed(SseEvent("", data % given)))
        for event in ({"type": "content_block_stop", "index": 0}, STOP, END):
            list(reader.feed(SseEvent("", json.dumps(event).encode())))
        assert list(reader.finish().unreadable) == unreadable
