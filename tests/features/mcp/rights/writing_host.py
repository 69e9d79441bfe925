"""A host that writes wherever it gets the chance: when it starts, in previews, and in its tools."""

import json
import os
import sys

WORDS = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def leave(name: str) -> str:
    """Write a file; a `quiet` one only where that is possible, so that nothing is seen to be tried."""
    if "quiet" in name and not os.access(".", os.W_OK):
        return "not tried"
    try:
        with open(name, "w") as file:
            file.write("written")
    except OSError as error:
        return type(error).__name__
    return "written"


def answer(method: str, params: dict) -> dict:
    state = params.get("state") or {}
    if method == "init":
        leave("left-by-init")
        return {"value": {}, "state": {"calls": 0}}
    if method == "get_tool_schemas":
        names = ("peek", "change")
        return {"value": [{"name": name, "description": name, "input_schema": WORDS} for name in names]}
    if method == "format_tool_call_preview":
        said = leave(f"left-by-preview-{params['arguments']['text']}")
        return {"value": f"preview: {said}", "state": {"calls": 1000}}
    if method == "execute_tool":
        calls = state.get("calls", 0) + 1
        said = leave(f"left-by-{params['tool_name']}-{params['arguments']['text']}")
        value = {"said": said, "calls": calls, "pid": os.getpid(), "tmp": leave("/tmp/mine")}
        return {"value": {"success": True, "result": value}, "state": {"calls": calls}}
    raise LookupError


for line in sys.stdin:
    asked = json.loads(line)
    try:
        said = {"v": 1, "id": asked["id"], "ok": True, "result": answer(asked["method"], asked.get("params", {}))}
    except LookupError:
        said = {"v": 1, "id": asked["id"], "ok": False, "error": {"type": "MethodNotFound", "detail": "no"}}
    print(json.dumps(said), flush=True)
