"""Asks the runtime back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from callgate import ToolContext, ToolError


def get_tool_schemas() -> list[dict[str, Any]]:
    names = ("copy", "bytes", "everything", "many", "refused")
    return [{"name": name, "input_schema": {"type": "object"}} for name in names]


def execute_tool(tool_name: str, arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    return {"success": True, "result": run(tool_name, arguments, context)}


def run(tool_name: str, arguments: dict[str, Any], context: Any) -> Any:
    files = context.workspace_files
    match tool_name:
        case "copy":
            text = files.read(arguments["source"])
            files.write(arguments["target"], text.upper())
            return [context.session_id, text]
        case "bytes":
            content = files.read_bytes(arguments["source"])
            files.write_bytes(arguments["target"], content[::-1])
            return len(content)
        case "everything":
            files.append("a", "1")
            files.patch("a", "1", "2")
            files.delete("a")
            return [files.exists("a"), files.list("."), context.artifact("log"), context.is_cancelled()]
        case "many":
            times = arguments["times"]
            with ThreadPoolExecutor(times) as pool:
                return sum(pool.map(files.exists, map(str, range(times))))
    try:
        return files.read("x")
    except ToolError as error:
        words = "not_offered" if error.reason == "not_offered" else error.error_class
        return ["".join(map(str.capitalize, words.split("_"))), error.message, error.reason]
