"""Servers that cut, forge or exaggerate: what reaches the agent is bounded, and never half a call."""

from __future__ import annotations

import json
from typing import Any

import pytest

from callgate.core.content import ToolUseBlock
from callgate.core.models import ModelError, ModelErrorKind, Reply, Usage
from callgate.features.chat.models import replies
from callgate.features.chat.models.anthropic import AnthropicReader
from callgate.features.chat.models.make import find_table
from callgate.features.chat.models.openai_chat import ChatReader
from callgate.features.chat.models.openai_responses import ResponsesReader
from callgate.features.chat.models.replies import (
    MAX_BODY,
    MAX_CALLS,
    Reader,
    ServerFailed,
    ServerFailure,
    SseEvent,
    stream_error,
)
from callgate.redaction.texts import Masked
from tests.features.chat.models.asking import KINDS, model_at, reply_of
from tests.models_server import Asks, ModelServer, Says

CUT = [
    ("anthropic", "max_tokens"),
    ("anthropic", "refusal"),
    ("anthropic", "model_context_window_exceeded"),
    ("anthropic", "new_word"),
    ("openai", "length"),
    ("openai", "content_filter"),
    ("openai", "error"),
    ("openai", "abort"),
    ("responses", "max_output_tokens"),
    ("responses", "content_filter"),
]


def read(reader: Reader, *events: dict[str, Any]) -> Reply:
    for event in events:
        list(reader.feed(SseEvent("", json.dumps(event).encode())))
    return reader.finish()


@pytest.mark.parametrize(("kind", "stop"), CUT)
async def test_a_call_without_arguments_in_a_reply_that_was_cut_never_runs(kind: str, stop: str) -> None:
    """It may be one whose arguments were still to come."""
    some = [Asks("whole", {"a": 1}, "call_1"), Asks("wipe", id="call_2", raw="")]
    async with ModelServer(Says(calls=some, stop=stop)) as server:
        reply = await reply_of(model_at(kind, server.url))
    assert list(reply.unreadable) == ["call_2"]


def test_a_text_input_in_a_response_that_was_cut_never_runs() -> None:
    item = {"type": "custom_tool_call", "call_id": "1", "name": "run", "input": "rm -rf /tmp/x"}
    done = {"type": "response.output_item.done", "output_index": 0, "item": item}
    cut = read(ResponsesReader(), done, {"type": "response.incomplete", "response": {}})
    assert list(cut.unreadable) == ["1"]
    whole = read(ResponsesReader(), done, {"type": "response.completed", "response": {}})
    assert whole.unreadable == {}


@pytest.mark.parametrize("kind", KINDS)
async def test_counts_that_cannot_be_true_are_bounded(kind: str) -> None:
    async with ModelServer(Says("x", usage=(10**300, 10**30, 0, 0))) as server:
        reply = await reply_of(model_at(kind, server.url))
    assert reply.usage == Usage(input=10**12, output=10**12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ids", ["each", "none"])
async def test_a_reply_has_a_limit_of_calls(kind: str, ids: str) -> None:
    many = [Asks("a", id=f"c{n}" if ids == "each" else None) for n in range(MAX_CALLS + 1)]
    async with ModelServer(Says(calls=many)) as server:
        with pytest.raises(ModelError) as caught:
            await reply_of(model_at(kind, server.url))
    assert caught.value.kind is ModelErrorKind.MALFORMED


@pytest.mark.parametrize("kind", KINDS)
async def test_a_reply_has_a_limit_of_characters(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "MAX_CHARS", 20)
    async with ModelServer(Says("x" * 20), Says("x" * 21)) as server:
        await reply_of(model_at(kind, server.url))
        with pytest.raises(ModelError) as caught:
            await reply_of(model_at(kind, server.url))
    assert caught.value.kind is ModelErrorKind.MALFORMED


@pytest.mark.spec("T42")
def test_names_and_ids_of_a_server_are_short_and_a_model_s_is_visible() -> None:
    function = {"name": "n" * 5_000, "arguments": "{}"}
    delta = {"tool_calls": [{"index": 0, "id": "i" * 5_000, "function": function}]}
    choice = {"delta": delta, "finish_reason": "tool_calls"}
    name = "\x1b[31mm\u202e" + "x" * 5_000
    reply = read(ChatReader(), {"model": name, "choices": [choice]})
    (use,) = reply.message.content
    assert isinstance(use, ToolUseBlock)
    assert (len(use.name), len(use.id) < 100) == (200, True)
    assert reply.model.isprintable()
    assert len(reply.model) <= 200


def test_an_error_within_a_stream_is_cut_and_no_half_of_a_key_is_left() -> None:
    key = "canary-9f8e7d6c5b4a"
    message = "x" * (MAX_BODY - 10) + key + "y" * MAX_BODY
    reader = AnthropicReader()
    with pytest.raises(ServerFailed) as caught:
        read(reader, {"type": "error", "error": {"type": "t", "message": message}})
    said: ServerFailure = caught.value.failure
    assert len(said.message) == MAX_BODY
    assert "canary" not in Masked([key])(said.message)
    assert stream_error(said, Masked([key])).kind is ModelErrorKind.OVERLOADED


def test_a_key_in_place_of_a_name_is_not_repeated() -> None:
    key = "sk-ant-api03-" + "aB1x" * 12
    with pytest.raises(ModelError) as caught:
        find_table(key, {}, {})
    assert key not in str(caught.value)


async def test_this_machine_is_reached_by_its_newer_address_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ModelServer(Says("x")) as proxy:
        monkeypatch.setenv("http_proxy", proxy.origin)
        with pytest.raises(ModelError) as caught:
            await reply_of(model_at("openai", "http://[::1]:9/v1", retries=0))
        assert caught.value.kind is ModelErrorKind.UNREACHABLE
        assert proxy.requests == []
