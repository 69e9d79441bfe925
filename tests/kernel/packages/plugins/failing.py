"""Fails in many ways."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

NAMES = ("raise", "reject", "see", "unsayable", "emit")


class UnknownTool(Exception):
    pass


def cycle() -> Any:
    made: dict[str, Any] = {}
    made["cycle"] = made
    return made


def deep(levels: int) -> Any:
    return reduce(lambda inner, _: [inner], range(levels), 0)


UNSAYABLE: dict[str, Callable[[], Any]] = {
    "cycle": cycle,
    "deep": lambda: deep(100),
    "deeper": lambda: deep(100_000),
    "infinity": lambda: {"a": [float("-inf")]},
    "nan": lambda: float("nan"),
    "object": object,
    "surrogate": lambda: "\ud800",
}


def get_tool_schemas() -> list[dict[str, Any]]:
    return [{"name": name, "input_schema": {"type": "object"}} for name in NAMES]


async def execute_tool(tool_name: str, arguments: dict[str, Any], emit: Callable[[Any], bool]) -> Any:
    match tool_name:
        case "raise":
            raise type(arguments["type"], (Exception,), {})(arguments["message"])
        case "reject":
            raise RuntimeError(arguments["message"])
        case "see":
            return {"success": False, "error": arguments["error"]}
        case "unsayable":
            return UNSAYABLE[arguments["kind"]]()
        case "emit":
            return emit({"type": "part", "payload": UNSAYABLE[arguments["kind"]]()})
    raise UnknownTool(tool_name)
