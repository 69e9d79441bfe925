"""Gives back what it gets."""

from __future__ import annotations

from typing import Any


def get_tool_schemas() -> list[dict[str, Any]]:
    size = {"type": "object", "properties": {"size": {"type": "integer"}}, "required": ["size"]}
    return [
        {"name": "echo", "description": "Gives its arguments.", "input_schema": {"type": "object"}},
        {"name": "grow", "description": "Gives a text of so many characters.", "input_schema": size},
    ]


def execute_tool(tool_name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"success": True, "result": arguments if tool_name == "echo" else "x" * arguments["size"]}
