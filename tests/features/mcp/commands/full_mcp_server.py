"""An MCP server in nothing but Python that says all that the protocol lets it say."""

import json
import sys

TOOLS = [
    {
        "name": "zeta",
        "title": "Zeta",
        "description": "Says much of itself.",
        "inputSchema": {"type": "object", "properties": {"x": {"type": "integer"}}},
        "outputSchema": {"type": "object", "properties": {"y": {"type": "integer"}}, "required": ["y"]},
        "annotations": {"title": "Z\u200b", "readOnlyHint": True, "idempotentHint": True, "openWorldHint": False},
    },
    {"name": "alpha", "description": "Says for whom it speaks.", "inputSchema": {"type": "object"}},
    {"name": "twin.a", "description": "One of two.", "inputSchema": {"type": "object"}},
    {"name": "twin_a", "description": "The other.", "inputSchema": {"type": "object"}},
    {"name": "touch", "description": "Changes lists.", "inputSchema": {"type": "object"}},
]
RESULTS = {
    "zeta": {"content": [{"type": "text", "text": '{"y":1}'}], "structuredContent": {"y": 1}},
    "alpha": {
        "content": [
            {"type": "text", "text": "a", "annotations": {"audience": ["user"], "priority": 0.5}},
            {"type": "image", "data": "aGk=", "mimeType": "image/png", "_meta": {"x/y": 1}},
        ]
    },
    "twin.a": {"content": [{"type": "text", "text": "one"}]},
    "twin_a": {"content": [{"type": "text", "text": "other"}]},
    "touch": {"content": []},
}
CAPABILITIES = {
    "tools": {},
    "resources": {"listChanged": True},
    "prompts": {"listChanged": True},
    "completions": {},
    "logging": {},
}
PROMPT = {
    "name": "p",
    "title": "P",
    "arguments": [{"name": "a", "description": "A", "required": True}],
}


def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def call(name):
    if name == "touch":
        send(method="notifications/message", params={"level": "warning", "logger": "l", "data": "said"})
        send(method="notifications/resources/list_changed")
        send(method="notifications/prompts/list_changed")
    return RESULTS[name]


def answer(method, params):
    match method:
        case "initialize":
            me = {"name": "full", "version": "1"}
            return {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "serverInfo": me}
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call":
            return call(params["name"])
        case "resources/list" if "cursor" in params:
            return {"resources": [{"uri": "x://2", "name": "2", "title": "Two", "_meta": {"k": 1}}]}
        case "resources/list":
            return {"resources": [{"uri": "x://1", "name": "1", "size": 3}], "nextCursor": "more"}
        case "resources/templates/list" if "cursor" in params:
            return {"resourceTemplates": [{"uriTemplate": "y://{b}", "name": "b"}]}
        case "resources/templates/list":
            return {"resourceTemplates": [{"uriTemplate": "x://{a}", "name": "a"}], "nextCursor": "more"}
        case "resources/read":
            return {"contents": [{"uri": params["uri"], "text": "T", "mimeType": "text/x", "_meta": {"a": 1}}]}
        case "prompts/list":
            return {"prompts": [PROMPT]}
        case "prompts/get":
            said = {"type": "text", "text": params["arguments"]["a"], "annotations": {"priority": 1.0}}
            return {"description": "D", "messages": [{"role": "user", "content": said}]}
        case "completion/complete":
            return {"completion": {"values": [json.dumps([params["ref"], params.get("context")])]}}
        case "ping" | "logging/setLevel":
            return {}
    return None


for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    result = answer(request["method"], request.get("params") or {})
    if result is None:
        send(id=request["id"], error={"code": -32601, "message": "No such method."})
    else:
        send(id=request["id"], result=result)
