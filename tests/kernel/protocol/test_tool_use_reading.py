"""Tool calls in the shapes of Anthropic, OpenAI and MCP, read and refused."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from callgate.core.content import ToolUseBlock
from callgate.protocol.provider_shapes import UnreadableUse, read_tool_uses

ARGUMENTS = {"path": "a.txt", "n": 1}
WRITTEN = json.dumps(ARGUMENTS)
USE = ToolUseBlock("id_1", "read_file", ARGUMENTS)
TEXT_USE = ToolUseBlock("id_1", "read_file", {"text": "free text"})

ANTHROPIC = {"type": "tool_use", "id": "id_1", "name": "read_file", "input": ARGUMENTS}
CHAT = {
    "id": "id_1",
    "type": "function",
    "function": {"name": "read_file", "arguments": WRITTEN},
}
CHAT_CUSTOM = {
    "id": "id_1",
    "type": "custom",
    "custom": {"name": "read_file", "input": "free text"},
}
RESPONSES = {
    "type": "function_call",
    "id": "fc_9",
    "call_id": "id_1",
    "name": "read_file",
    "arguments": WRITTEN,
}
RESPONSES_CUSTOM = {
    "type": "custom_tool_call",
    "id": "ctc_9",
    "call_id": "id_1",
    "name": "read_file",
    "input": "free text",
}
MCP = {
    "jsonrpc": "2.0",
    "id": "id_1",
    "method": "tools/call",
    "params": {"name": "read_file", "arguments": ARGUMENTS},
}
TEXT_BLOCK = {"type": "text", "text": "I will look."}


def as_objects(value: Any, keep: tuple[str, ...] = ("input", "arguments")) -> Any:
    """The same as a library's objects, whose arguments stay as they are."""
    if isinstance(value, list):
        return [as_objects(each) for each in value]
    if isinstance(value, dict):
        kept = {k: v if k in keep else as_objects(v) for k, v in value.items()}
        return SimpleNamespace(**kept)
    return value


SHAPES = {
    "our block": (USE, [USE]),
    "anthropic block": (ANTHROPIC, [USE]),
    "anthropic message": (
        {"type": "message", "role": "assistant", "content": [TEXT_BLOCK, ANTHROPIC]},
        [USE],
    ),
    "chat call": (CHAT, [USE]),
    "chat call without a type": ({**CHAT, "type": None}, [USE]),
    "chat call with decoded arguments": (
        {**CHAT, "function": {"name": "read_file", "arguments": ARGUMENTS}},
        [USE],
    ),
    "chat custom call": (CHAT_CUSTOM, [TEXT_USE]),
    "chat message": ({"role": "assistant", "content": None, "tool_calls": [CHAT]}, [USE]),
    "chat message with text": ({"role": "assistant", "content": "hm", "tool_calls": [CHAT]}, [USE]),
    "chat response": (
        {"choices": [{"message": {"tool_calls": [CHAT]}}, {"message": {"tool_calls": [CHAT]}}]},
        [USE],
    ),
    "responses item": (RESPONSES, [USE]),
    "responses custom item": (RESPONSES_CUSTOM, [TEXT_USE]),
    "responses response": (
        {"output": [{"type": "reasoning", "summary": []}, RESPONSES, RESPONSES_CUSTOM]},
        [USE, TEXT_USE],
    ),
    "mcp": (MCP, [USE]),
    "several": ([ANTHROPIC, TEXT_BLOCK, CHAT, USE], [USE, USE, USE]),
    "nothing": (None, []),
    "text": ("words", []),
    "a message without calls": ({"role": "assistant", "content": "words"}, []),
    "results are not calls": (
        {"role": "user", "content": [{"type": "tool_result", "content": [ANTHROPIC]}]},
        [],
    ),
    "a server's own call": ({**ANTHROPIC, "type": "server_tool_use"}, []),
}


@pytest.mark.parametrize(("source", "uses"), SHAPES.values(), ids=SHAPES)
def test_calls_are_found_in_every_shape(source: Any, uses: list[ToolUseBlock]) -> None:
    assert read_tool_uses(source) == uses


@pytest.mark.parametrize(("source", "uses"), SHAPES.values(), ids=SHAPES)
def test_calls_are_found_in_the_objects_of_libraries(source: Any, uses: list[ToolUseBlock]) -> None:
    if isinstance(source, list | dict):
        assert read_tool_uses(as_objects(source)) == uses


def test_mcp_may_leave_arguments_out_and_number_its_requests() -> None:
    request = {"id": 7, "method": "tools/call", "params": {"name": "probe"}}
    assert read_tool_uses(request) == [ToolUseBlock("7", "probe", {})]


def written(arguments: Any) -> list[Any]:
    return [
        {**CHAT, "function": {"name": "read_file", "arguments": arguments}},
        {**RESPONSES, "arguments": arguments},
    ]


@pytest.mark.spec("T37", "T38", "T39", "T40")
@pytest.mark.parametrize(
    "arguments",
    [
        "",
        " ",
        "{",
        '{"command": "rm -rf build',
        '{"a":1}}',
        '{"a":1,"a":2}',
        '{"a":NaN}',
        '{"a":1e400}',
        "[]",
        '"text"',
        "null",
        "1",
        "{'a':1}",
        '{"a":"\\ud800"}',
        '{"a":"\ud800"}',
        '{"a":' + "[" * 64 + "]" * 64 + "}",
        '{"a":' * 5000,
        '```json\n{"a":1}\n```',
        None,
        [],
        1,
    ],
    ids=lambda arguments: ascii(arguments)[:30],
)
def test_arguments_that_are_not_strict_json_objects_make_a_call_unreadable(arguments: Any) -> None:
    uses = read_tool_uses([*written(arguments), {**ANTHROPIC, "input": arguments}])
    assert [type(use) for use in uses] == [UnreadableUse] * 3
    assert {(use.id, use.name) for use in uses} == {("id_1", "read_file")}


def test_an_unreadable_call_does_not_hide_its_neighbours() -> None:
    first, second, third = read_tool_uses([ANTHROPIC, written("{")[0], CHAT])
    assert (first, type(second), third) == (USE, UnreadableUse, USE)


@pytest.mark.parametrize(
    ("block", "id", "name"),
    [
        ({**ANTHROPIC, "id": None}, "", "read_file"),
        ({**ANTHROPIC, "id": ""}, "", "read_file"),
        ({**ANTHROPIC, "id": True}, "", "read_file"),
        ({**ANTHROPIC, "id": None, "name": None}, "", ""),
        ({**ANTHROPIC, "name": None}, "id_1", ""),
        ({**ANTHROPIC, "name": ""}, "id_1", ""),
        ({**ANTHROPIC, "name": ["read_file"]}, "id_1", ""),
        ({**RESPONSES, "call_id": None}, "", "read_file"),
        ({**RESPONSES_CUSTOM, "input": {"a": 1}}, "id_1", "read_file"),
        ({"id": "id_1", "method": "tools/call"}, "id_1", ""),
        ({**MCP, "params": {"name": "read_file", "arguments": []}}, "id_1", "read_file"),
    ],
)
def test_a_call_without_id_name_or_object_is_unreadable(block: Any, id: str, name: str) -> None:
    (use,) = read_tool_uses(block)
    assert isinstance(use, UnreadableUse)
    assert (use.id, use.name) == (id, name)
