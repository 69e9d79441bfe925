"""Definitions in the shapes of Anthropic, OpenAI and MCP."""

from __future__ import annotations

from typing import Any

import pytest

from callgate.core.effects import Capability, SideEffects, implied
from callgate.core.tools import ToolDefinition
from callgate.protocol.provider_shapes import to_anthropic, to_mcp, to_openai_chat, to_openai_responses

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def definition(**more: Any) -> ToolDefinition:
    more.setdefault("side_effects", SideEffects.READ)
    return ToolDefinition(name="probe", description="Look.", input_schema=SCHEMA, **more)


def test_anthropic() -> None:
    expected = {"name": "probe", "description": "Look.", "input_schema": SCHEMA}
    assert to_anthropic(definition()) == expected


def test_openai_chat() -> None:
    expected = {
        "type": "function",
        "function": {"name": "probe", "description": "Look.", "parameters": SCHEMA},
    }
    assert to_openai_chat(definition()) == expected
    assert to_openai_chat(definition(input="text")) == expected


def test_openai_responses() -> None:
    assert to_openai_responses(definition()) == {
        "type": "function",
        "name": "probe",
        "description": "Look.",
        "parameters": SCHEMA,
        "strict": False,
    }


def test_openai_responses_gives_free_text_a_custom_tool() -> None:
    expected = {"type": "custom", "name": "probe", "description": "Look."}
    assert to_openai_responses(definition(input="text")) == expected


DESTRUCTIVE = frozenset({Capability.DESTRUCTIVE})
ONLINE = frozenset({Capability.READ_ONLY, Capability.ACCESSES_NETWORK})


@pytest.mark.parametrize(
    ("effect", "more", "hints"),
    [
        ("none", set(), {"readOnlyHint": True}),
        ("read", set(), {"readOnlyHint": True, "openWorldHint": False}),
        ("read", ONLINE, {"readOnlyHint": True, "openWorldHint": True}),
        ("write", set(), {"readOnlyHint": False, "destructiveHint": False}),
        ("write", DESTRUCTIVE, {"readOnlyHint": False, "destructiveHint": True}),
        (
            "network",
            set(),
            {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": True},
        ),
        (
            "network",
            DESTRUCTIVE,
            {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True},
        ),
        (
            "execute",
            set(),
            {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True},
        ),
    ],
)
def test_mcp_hints_follow_the_class(effect: str, more: Any, hints: dict[str, bool]) -> None:
    declared = SideEffects(effect)
    expected = {
        "name": "probe",
        "description": "Look.",
        "inputSchema": SCHEMA,
        "annotations": hints,
    }
    capabilities = implied(declared) | more
    assert to_mcp(definition(side_effects=declared, capabilities=capabilities)) == expected
    assert to_mcp(definition(side_effects=None, capabilities=capabilities)) == expected


def test_mcp_hints_need_no_capabilities_where_the_class_is_declared() -> None:
    hints = to_mcp(definition(side_effects=SideEffects.NONE))["annotations"]
    assert hints == {"readOnlyHint": True}


def test_mcp_hints_assume_the_worst_of_a_tool_that_declares_nothing() -> None:
    worst = to_mcp(definition(side_effects=SideEffects.EXECUTE))["annotations"]
    assert to_mcp(definition(side_effects=None))["annotations"] == worst
