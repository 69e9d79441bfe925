"""An MCP server that writes wherever it gets the chance, and remembers what was done in it."""

import json
import os
import sys

WORDS = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
done = []


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
    if method == "initialize":
        leave("left-by-initialize")
        info = {"name": "writing", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        leave("left-by-list")
        return {"tools": [{"name": name, "description": name, "inputSchema": WORDS} for name in ("peek", "change")]}
    if method == "tools/call":
        name, text = params["name"], params["arguments"]["text"]
        own = leave(os.path.join(os.environ["OWN"], "kept")) if "OWN" in os.environ else None
        value = {"said": leave(f"left-by-{name}-{text}"), "pid": os.getpid(), "done": list(done), "own": own}
        done.append(name)
        return {"content": [{"type": "text", "text": json.dumps(value)}]}
    return {}


for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        result = answer(asked["method"], asked.get("params", {}))
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
