"""Counts in the session's state."""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]


def init(config: Object) -> Object:
    return {"count": config.get("start", 0)}


def get_tool_schemas() -> list[Object]:
    return [{"name": name, "input_schema": {"type": "object"}} for name in ("add", "reset", "fail")]


def execute_tool(tool_name: str, arguments: Object, state: Object) -> Object:
    match tool_name:
        case "add":
            state["count"] += arguments["by"]
        case "reset":
            state.clear()
        case "fail":
            state["count"] = -1
            raise RuntimeError("after it changed the state")
    return {"success": True, "result": state.get("count")}
