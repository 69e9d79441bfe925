"""A host in plain Python, without a line of ours: what any author could write. Well or badly
behaved, as its tools are told and as its config says."""

import json
import os
import sys
import threading
import time

CONFIG = {}
CANCELS = set()
LOCK = threading.Lock()


def send(**frame):
    with LOCK:
        sys.stdout.write(json.dumps({"v": 1, **frame}) + "\n")
        sys.stdout.flush()


def tool(name, **properties):
    schema = {"type": "object", "properties": properties}
    name = os.environ.get("PREFIX", "") + name
    return {"name": name, "description": CONFIG.get("words", "A tool."), "input_schema": schema}


NAMES = "echo raw fail refuse die hang noise parts other late count pid slow reach cwd"


def schemas():
    text = {"text": {"type": "string"}}
    return [tool(name, **text) for name in NAMES.split()]


def execute(id, params):
    name, arguments, state = params["tool_name"], params["arguments"], params["state"]
    name = name.removeprefix(os.environ.get("PREFIX", ""))
    text = arguments.get("text", "")
    if name == "die":
        print("last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), 9)
    if name == "hang":
        time.sleep(1_000)
    if name == "slow":
        while id not in CANCELS:
            time.sleep(0.01)
        return send(id=id, ok=False, error={"type": "Error", "detail": "stopped"})
    if name == "noise":
        print("Loading model...\n[1, 2]\n{}", flush=True)
    if name == "parts":
        for n in range(int(text)):
            send(id=id, event={"type": "part", "payload": {"n": n}})
    if name == "other":
        send(id=id, event={"type": "mood", "payload": "fine"})
        send(id="nobody", event={"type": "part", "payload": 1})
        send(id="nobody", ok=True, result={"value": 1})
    if name == "fail":
        return send(id=id, ok=True, result={"value": {"success": False, "error": text}, "state": {"spoilt": True}})
    if name == "refuse":
        return send(id=id, ok=False, error={"type": "Error", "detail": text, "stack": "at secret line"})
    if name == "raw":
        return send(id=id, ok=True, result={"value": json.loads(text)})
    if name == "pid":
        return send(id=id, ok=True, result={"value": os.getpid()})
    if name == "cwd":
        return send(id=id, ok=True, result={"value": os.getcwd()})
    if name == "count":
        state = {**state, "n": state.get("n", 0) + 1}
        return send(id=id, ok=True, result={"value": state["n"], "state": state})
    if name == "reach":
        return send(id="h1", method="read_file", params={"call": id, "path": text})
    send(id=id, ok=True, result={"value": {"success": True, "result": text}})
    if name == "late":
        send(id=id, event={"type": "part", "payload": "too late"})
    return None


def answer(request):
    id, method, params = request["id"], request.get("method"), request.get("params", {})
    if method is None:  # an answer to what we asked
        value = request["result"]["value"] if request["ok"] else request["error"]["detail"]
        return send(id=REACHING.pop(), ok=True, result={"value": value})
    if method == "init":
        CONFIG.update(params["config"])
        if CONFIG.get("silent"):
            print("I am not ready", file=sys.stderr, flush=True)
            return None
        host = {"host": {"asks": ["read_file"]}} if CONFIG.get("reaches") else {}
        return send(id=id, ok=True, result={"value": {}, "state": CONFIG.get("state", {}), **host})
    if method == "get_tool_schemas":
        return send(id=id, ok=True, result={"value": schemas()})
    if method == "execute_tool":
        if CONFIG.get("version"):
            sys.stdout.write(json.dumps({"v": 2, "id": id, "ok": True, "result": {"value": 1}}) + "\n")
            return sys.stdout.flush()
        if params["tool_name"] == "reach":
            REACHING.append(id)
        if params["tool_name"] in ("slow", "hang"):
            return threading.Thread(target=execute, args=(id, params), daemon=True).start()
        return execute(id, params)
    if method == "cancel" and CONFIG.get("cancels"):
        CANCELS.add(params["id"])
        return send(id=id, ok=True, result={"value": None})
    if method == "get_config_schema" and os.environ.get("SCHEMA"):
        return send(id=id, ok=True, result={"value": json.loads(os.environ["SCHEMA"])})
    if method in CONFIG.get("optional", {}):
        value = CONFIG["optional"][method]
        if value == "raise":
            return send(id=id, ok=False, error={"type": "TypeError", "detail": "broken"})
        if value == "state":
            value = json.dumps(params["state"])
        if value == "models":
            value = [json.dumps(params["models"])]
        return send(id=id, ok=True, result={"value": value})
    return send(id=id, ok=False, error={"type": "MethodNotFound", "detail": method})


REACHING = []
for line in sys.stdin:
    answer(json.loads(line))
