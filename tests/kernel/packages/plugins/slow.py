"""Takes as long as it is let."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

HELD: dict[str, asyncio.Future[Any]] = {}


def get_tool_schemas() -> list[dict[str, Any]]:
    names = ("hold", "release", "wait", "ignore")
    return [{"name": name, "input_schema": {"type": "object"}} for name in names]


async def execute_tool(tool_name: str, arguments: dict[str, Any], emit: Callable[[Any], bool]) -> dict[str, Any]:
    return {"success": True, "result": await run(tool_name, arguments, emit)}


async def run(tool_name: str, arguments: dict[str, Any], emit: Callable[[Any], bool]) -> Any:
    if tool_name == "release":
        HELD[arguments["key"]].set_result(arguments["value"])
        return None
    emit({"type": "part", "payload": "begun"})
    waiting = asyncio.get_running_loop().create_future()
    if tool_name == "hold":
        HELD[arguments["key"]] = waiting
        return await waiting
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if tool_name == "wait":
                emit({"type": "part", "payload": "stopped"})
                raise
