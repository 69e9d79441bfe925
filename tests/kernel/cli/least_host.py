"""The least that a tool host needs, in nothing but Python; and, if asked for, one fault."""

import json
import os
import signal
import sys
import time

MAX_LINE = 8 * 1024 * 1024
FAULT = sys.argv[1] if len(sys.argv) > 1 else None
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
TOOLS = [
    {"type": "function", "function": {"name": "one", "description": "", "parameters": SCHEMA}},
    {"type": "function", "name": "two", "description": "", "parameters": SCHEMA},
    {"name": "three", "description": "", "input_schema": SCHEMA},
    {"name": "four", "description": "", "inputSchema": SCHEMA},
]


class Refused(Exception):
    pass


def read(line):
    if len(line) > (1024 if FAULT == "short" else MAX_LINE):
        raise Refused(None, "ProtocolError", "too long")
    try:
        request = json.loads(line.decode())
    except ValueError:
        if FAULT == "dies":
            sys.exit(3)
        raise Refused(None, "ProtocolError", "not JSON") from None
    if not isinstance(request, dict) or not isinstance(request.get("id"), str):
        raise Refused(None, "ProtocolError", "no request")
    id, method, params = request["id"], request.get("method"), request.get("params", {})
    if type(request.get("v")) is not int or request["v"] != 1:
        if FAULT != "any v":
            raise Refused("other" if FAULT == "error id" else id, "ProtocolError", "another version")
    if not isinstance(method, str) or not isinstance(params, dict):
        raise Refused(id, "ProtocolError", "no method, or wrong params")
    if "params" not in request and FAULT == "wants params":
        raise Refused(id, "ProtocolError", "no params")
    if FAULT == "strict" and set(request) - {"v", "id", "method", "params"}:
        raise Refused(id, "ProtocolError", "an unknown key")
    return id, method, params


def answer(id, method, params):
    state = params.get("state", {})
    if method == "init":
        if FAULT == "no init":
            raise Refused(id, "Error", "no")
        return {"value": {"opened": True}}
    if method == "get_tool_schemas":
        if FAULT == "schemas":
            return {"value": [{"name": "one", "schema": {}}]}
        if FAULT == "same names":
            return {"value": [TOOLS[2], TOOLS[2]]}
        if FAULT == "no tools":
            return {"value": []}
        return {"value": TOOLS, "state": [] if FAULT == "state" else state}
    if method == "execute_tool":
        name = params.get("tool_name")
        if FAULT == "runs anything":
            return {"value": {"success": True, "result": 0}}
        if name not in ("one", "two", "three", "four"):
            raise Refused(id, "UnknownTool", "there is none")
        if name == "four":
            return {"value": {"success": False, "error": "four fails"}}
        return {"value": {"success": True, "result": params["arguments"].get("n", 0) + 1}}
    if method == "get_tags" and FAULT == "tags":
        return {"value": 5}
    if method == "get_tags" and FAULT == "failing tags":
        raise Refused(id, "Error", "none today")
    raise Refused(id, "Error" if FAULT == "method" else "MethodNotFound", "there is none")


def say(frame):
    sys.stdout.write(json.dumps({"v": 2 if FAULT == "v" else 1, **frame}) + "\n")
    if FAULT == "twice":
        sys.stdout.write(json.dumps({"v": 1, **frame}) + "\n")
    if FAULT == "noise":
        print("debug: answered")
    sys.stdout.flush()


if FAULT == "crash":
    sys.exit("the database is down")
while line := sys.stdin.buffer.readline():
    line = line.rstrip(b"\n").strip(b" \t\r")
    if not line:
        continue
    try:
        id, method, params = read(line)
        result = answer(id, method, params)
        say({"id": "mine" if FAULT == "id" else id, "ok": True, "result": result})
    except Refused as refused:
        id, kind, detail = refused.args
        if FAULT == "mute" and id is None:
            continue
        say({"id": id, "ok": False, "error": {"type": kind, "detail": detail}})
if FAULT == "stays":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(60)
os._exit(0)
