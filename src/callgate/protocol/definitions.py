"""A tool's definition in the shapes that models and MCP clients take."""

from __future__ import annotations

from typing import Any

from callgate.core.effects import Capability, SideEffects
from callgate.core.tools import ToolDefinition


def to_anthropic(definition: ToolDefinition) -> dict[str, Any]:
    return {
        "name": definition.name,
        "description": definition.description,
        "input_schema": definition.input_schema,
    }


def to_openai_chat(definition: ToolDefinition) -> dict[str, Any]:
    """A function also where the tool takes text: few compatible servers know custom tools."""
    return {
        "type": "function",
        "function": {
            "name": definition.name,
            "description": definition.description,
            "parameters": definition.input_schema,
        },
    }


def to_openai_responses(definition: ToolDefinition) -> dict[str, Any]:
    named = {"name": definition.name, "description": definition.description}
    if definition.input == "text":
        return {"type": "custom", **named}
    # Strict mode wants every property required; ours may be left out.
    return {"type": "function", **named, "parameters": definition.input_schema, "strict": False}


def to_mcp(definition: ToolDefinition) -> dict[str, Any]:
    return {
        "name": definition.name,
        "description": definition.description,
        "inputSchema": definition.input_schema,
        "annotations": _hints(definition),
    }


def _hints(definition: ToolDefinition) -> dict[str, bool]:
    capabilities = definition.capabilities
    effect = definition.effect
    destructive = Capability.DESTRUCTIVE in capabilities
    match effect:
        case SideEffects.NONE:
            return {"readOnlyHint": True}
        case SideEffects.READ:
            online = Capability.ACCESSES_NETWORK in capabilities
            return {"readOnlyHint": True, "openWorldHint": online}
        case SideEffects.WRITE:
            return {"readOnlyHint": False, "destructiveHint": destructive}
        case SideEffects.NETWORK:
            return {"readOnlyHint": False, "destructiveHint": destructive, "openWorldHint": True}
        case SideEffects.EXECUTE:
            return {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": True}
