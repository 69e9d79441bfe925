"""A host that has what the protocol requires, and nothing else: what it does with any other method
is the first argument (`ignores`, `exits` or `refuses`). It writes down what it was asked."""

import json
import os
import sys

WAY, ASKED = sys.argv[1:3]


def answer(id, value, **more):
    print(json.dumps({"v": 1, "id": id, "ok": True, "result": {"value": value, **more}}), flush=True)


for line in sys.stdin:
    request = json.loads(line)
    id, method = request["id"], request["method"]
    with open(ASKED, "a") as file:
        file.write(method + "\n")
    if method == "init":
        answer(id, {}, state={})
    elif method == "get_tool_schemas":
        answer(id, [{"name": "echo", "description": "Echo.", "input_schema": {"type": "object"}}])
    elif method == "execute_tool":
        answer(id, {"success": True, "result": request["params"]["arguments"]})
    elif WAY == "exits":
        os._exit(3)
    elif WAY == "refuses":
        print(json.dumps({"v": 1, "id": id, "ok": False, "error": {"type": "Odd", "detail": "no"}}), flush=True)
