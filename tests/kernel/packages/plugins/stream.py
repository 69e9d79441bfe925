"""Says things while it works."""

from __future__ import annotations

from typing import Any

LATE: list[Any] = []


class Stream:
    def get_tool_schemas(self) -> list[dict[str, Any]]:
        names = ("count", "say", "leave", "haunt")
        return [{"name": name, "input_schema": {"type": "object"}} for name in names]

    def execute_tool(self, tool_name: str, arguments: dict[str, Any], emit: Any, context: Any) -> dict[str, Any]:
        return {"success": True, "result": getattr(self, tool_name)(arguments, emit, context)}

    def count(self, arguments: dict[str, Any], emit: Any, context: Any) -> int:
        for n in range(arguments["parts"]):
            emit({"n": n})
        return arguments["parts"]  # type: ignore[no-any-return]

    def say(self, arguments: dict[str, Any], emit: Any, context: Any) -> None:
        context.progress("half", 0.5)
        context.log("opened", "debug")
        context.output("line\n", "stdout")
        emit({"type": "odd", "payload": [1]})

    def leave(self, arguments: dict[str, Any], emit: Any, context: Any) -> None:
        LATE.append(emit)

    def haunt(self, arguments: dict[str, Any], emit: Any, context: Any) -> list[bool]:
        return [late({"type": "part", "payload": "late"}) for late in LATE]
