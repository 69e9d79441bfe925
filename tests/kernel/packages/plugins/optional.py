"""Has every optional method."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]


def init() -> Object:
    return {}


def get_tool_schemas() -> list[Object]:
    schema = {"type": "object"}
    return [
        {"type": "function", "function": {"name": "one", "description": "One.", "parameters": schema}},
        {"type": "function", "name": "two", "description": "Two.", "parameters": schema},
        {"name": "three", "description": "Three.", "input_schema": schema},
        {"name": "four", "description": "Four.", "inputSchema": schema},
    ]


def execute_tool(tool_name: str) -> Object:
    return {"success": True, "result": tool_name}


def get_config_schema() -> Object:
    return {"type": "object", "properties": {"root": {"type": "string"}}}


def get_ui_elements() -> list[Object]:
    return [{"kind": "button", "label": "Go"}]


async def get_tags(config: Object, models: list[Object]) -> list[str]:
    return [*config, *(each["id"] for each in models)]


def required_tags() -> list[str]:
    return ["vision"]


def format_tool_result(result: Object) -> str:
    return f"The result is {result['result']}."


def format_tool_call_preview(params: Object) -> str:
    return f"{params['tool_name']} of {params['arguments']['path']}"


def to_display_format() -> Object:
    raise ValueError("nothing to display")
