"""Responses: items that end, tools that take text, and nothing kept at the server."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callgate.core.content import Message, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from callgate.core.models import ModelError, ModelErrorKind, Prompt, Reply
from callgate.core.tools import ToolDefinition
from callgate.features.chat.models.openai_responses import ResponsesReader, to_request
from callgate.features.chat.models.replies import SseEvent
from callgate.features.chat.settings import ModelTable
from tests.features.chat.models.asking import HELLO, model_at, reply_of
from tests.models_server import Asks, ModelServer, Says, Streams

FREE = ToolDefinition(name="sql", description="D.", input_schema={"type": "object"}, input="text")


def read(*events: dict[str, Any]) -> Reply:
    reader = ResponsesReader()
    for event in events:
        list(reader.feed(SseEvent("", json.dumps(event).encode())))
    return reader.finish()


def event(type: str, **more: Any) -> dict[str, Any]:
    return {"type": f"response.{type}", **more}


def added(index: int, **item: Any) -> dict[str, Any]:
    return event("output_item.added", output_index=index, item=item)


def done(index: int, **item: Any) -> dict[str, Any]:
    return event("output_item.done", output_index=index, item=item)


CALL = {"type": "function_call", "id": "fc", "call_id": "c", "name": "n"}
COMPLETED = event("completed", response={"model": "m", "output": []})
INCOMPLETE = event("incomplete", response={"incomplete_details": {"reason": "max_output_tokens"}})


async def test_a_tool_that_takes_text_is_called_and_answered_as_one() -> None:
    async with ModelServer(Says(calls=[Asks("sql", raw="select '", free_text=True)])) as server:
        prompt = Prompt(messages=HELLO.messages, tools=[FREE])
        reply = await reply_of(model_at("responses", server.url), prompt)
        result = Message(role="user", content=[ToolResultBlock("call_1", [TextBlock("1 row")])])
        again = Prompt(messages=[*HELLO.messages, reply.message, result], tools=[FREE])
        await reply_of(model_at("responses", server.url), again)
        first, second = [request.body for request in server.requests]
    assert reply.message.content == [ToolUseBlock("call_1", "sql", {"text": "select '"})]
    assert first["tools"] == [{"type": "custom", "name": "sql", "description": "D."}]
    assert second["input"][1:] == [
        {"type": "custom_tool_call", "call_id": "call_1", "name": "sql", "input": "select '"},
        {"type": "custom_tool_call_output", "call_id": "call_1", "output": "1 row"},
    ]


def test_nothing_is_kept_at_the_server() -> None:
    table = ModelTable(kind="responses", model="m", effort="low", max_tokens=9)
    assert to_request(Prompt(messages=HELLO.messages, system="S."), table) == {
        "model": "m",
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello."}]}],
        "instructions": "S.",
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "max_output_tokens": 9,
        "reasoning": {"effort": "low", "summary": "auto"},
    }


def test_a_refusal_is_text_and_a_reason() -> None:
    item = {"type": "message", "id": "m", "content": [{"type": "refusal", "refusal": "I won't."}]}
    reply = read(
        added(0, type="message", id="m"),
        event("refusal.delta", output_index=0, delta="I wo"),
        done(0, **item),
        COMPLETED,
    )
    assert (reply.message.content, reply.stop) == ([TextBlock("I won't.")], "refusal")


@pytest.mark.parametrize(
    "events",
    [
        [added(0, **CALL, arguments=""), event("function_call_arguments.delta", output_index=0, delta='{"a":1}')],
        [added(0, **CALL, arguments=""), done(0, **CALL, arguments='{"a":1}', status="incomplete")],
    ],
    ids=["no end", "incomplete"],
)
def test_a_call_that_did_not_end_is_unreadable(events: list[Any]) -> None:
    reply = read(*events, INCOMPLETE)
    assert (reply.message.content, list(reply.unreadable), reply.stop) == (
        [ToolUseBlock("c", "n", {})],
        ["c"],
        "max_tokens",
    )


def test_the_complete_item_counts_and_not_its_pieces() -> None:
    reply = read(
        added(0, **CALL, arguments=""),
        event("function_call_arguments.delta", output_index=0, delta='{"a":'),
        done(0, **CALL, arguments='{"a":2}'),
        COMPLETED,
    )
    assert reply.message.content == [ToolUseBlock("c", "n", {"a": 2})]


def test_a_server_that_sends_all_at_the_end_is_taken() -> None:
    output = [{"type": "message", "content": [{"type": "output_text", "text": "x"}]}, {**CALL, "arguments": "{}"}]
    reply = read(event("completed", response={"output": output}))
    assert (reply.message.content, reply.stop) == ([TextBlock("x"), ToolUseBlock("c", "n", {})], "tool_use")


def test_a_server_that_names_items_and_does_not_count_them_is_taken() -> None:
    call = {key: value for key, value in CALL.items() if key != "id"}
    reply = read(
        event("output_item.added", item={"type": "message", "id": "msg", "content": []}),
        event("output_text.delta", item_id="msg", delta="x"),
        event("output_item.added", item={**call, "arguments": ""}),
        event("function_call_arguments.delta", item_id="c", delta='{"a":1}'),
        event(
            "output_item.done", item={"type": "message", "id": "msg", "content": [{"type": "output_text", "text": "x"}]}
        ),
        event("output_item.done", item={**call, "arguments": '{"a":1}', "status": "completed"}),
        COMPLETED,
    )
    assert (reply.message.content, reply.unreadable) == ([TextBlock("x"), ToolUseBlock("c", "n", {"a": 1})], {})


def test_thoughts_in_several_parts_are_paragraphs() -> None:
    summary = [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}]
    item = {"type": "reasoning", "id": "rs", "summary": summary, "encrypted_content": "enc"}
    assert read(done(0, **item), COMPLETED).message.content == [ThinkingBlock("a\n\nb", "responses:rs enc")]


@pytest.mark.parametrize(
    "events",
    [
        [event("output_text.delta", output_index=0, delta="x")],
        [added(0, **CALL), event("output_text.delta", output_index=0, delta="x")],
        [added(0, type="message"), event("output_text.delta", output_index=0, delta=7)],
        [added(0, type="message"), added(0, type="message")],
        [event("output_item.added", output_index=0)],
        [event("output_item.done")],
        [event("output_item.added", output_index=0, item={"type": None})],
    ],
)
def test_a_piece_that_belongs_nowhere_is_malformed(events: list[dict[str, Any]]) -> None:
    with pytest.raises(ModelError) as caught:
        read(*events)
    assert caught.value.kind is ModelErrorKind.MALFORMED


def test_items_of_kinds_that_are_new_are_passed_over() -> None:
    reply = read(
        added(0, type="web_search_call", id="w"),
        event("web_search_call.searching", output_index=0),
        done(0, type="web_search_call"),
        COMPLETED,
    )
    assert reply.message.content == []


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("server_error", ModelErrorKind.OVERLOADED),
        ("rate_limit_exceeded", ModelErrorKind.RATE),
        ("context_length_exceeded", ModelErrorKind.CONTEXT),
    ],
)
async def test_a_failed_response_has_its_kind(code: str, kind: ModelErrorKind) -> None:
    text = json.dumps(event("failed", response={"error": {"code": code, "message": "sorry"}}))
    async with ModelServer(Streams(f"data: {text}\n\n".encode())) as server:
        with pytest.raises(ModelError) as caught:
            await reply_of(model_at("responses", server.url, retries=0))
    assert caught.value.kind is kind
