"""An MCP server in nothing but Python, which does as it is told: well, or in one odd way.

    python odd_server.py [--modern] [--mute] [--file DEFINITIONS]

Each tool is one behaviour. `--file` is read again at each `tools/list`, so a test can change what
the server says of itself.
"""

import json
import os
import subprocess
import sys
import threading

ANY = {"type": "object"}
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOLS = {
    "echo": TEXT,
    "pid": ANY,
    "fail": ANY,
    "structured": ANY,
    "progress": ANY,
    "hang": ANY,
    "die": ANY,
    "cwd": ANY,
    "roots": ANY,
    "form": ANY,
    "link": ANY,
    "sample": ANY,
    "image": ANY,
    "flood": ANY,
    "stderr": ANY,
    "huge": ANY,
    "other_id": ANY,
    "noise": ANY,
    "child": ANY,
    "error": ANY,
    "change": ANY,
    "write": TEXT,
    "environ": ANY,
    "twice": ANY,
    "wrong": ANY,
    "stopped": ANY,
}
MODERN = "--modern" in sys.argv
BESIDE = {"resources": {}, "prompts": {}, "completions": {}} if "--more" in sys.argv else {}
FILE = sys.argv[sys.argv.index("--file") + 1] if "--file" in sys.argv else None
LAST_WORDS = os.environ.get("LAST_WORDS")
lock = threading.Lock()
asked = {}
hanging, begun, stopped = [], threading.Event(), threading.Event()


def send(message):
    line = json.dumps({"jsonrpc": "2.0", **message}) + "\n"
    with lock:
        sys.stdout.write(line)
        sys.stdout.flush()


def ask(method, params):
    """A request of ours, and its answer."""
    id, done = f"s{len(asked)}", threading.Event()
    asked[id] = (done, [])
    send({"id": id, "method": method, "params": params})
    assert done.wait(60)
    return asked[id][1][0]


def listed():
    if FILE is not None:
        with open(FILE) as file:
            return json.load(file)
    return [{"name": name, "description": f"Does {name}.", "inputSchema": schema} for name, schema in TOOLS.items()]


def text(said, **more):
    return {"content": [{"type": "text", "text": said}], **more}


FORM = {"type": "object", "properties": {"name": {"type": "string"}, "sure": {"type": "boolean"}}, "required": ["name"]}


def call(id, params):
    name, arguments = params["name"], params.get("arguments", {})
    token = params.get("_meta", {}).get("progressToken")
    if name == "echo":
        return text(arguments["text"])
    if name == "pid":
        return text(str(os.getpid()))
    if name == "cwd":
        return text(os.getcwd())
    if name == "environ":
        return text(json.dumps(dict(os.environ)))
    if name == "write":
        with open(arguments["text"], "w") as file:
            file.write("written")
        return text("done")
    if name == "fail":
        return text("It is broken.", isError=True)
    if name == "error":
        return {"__error__": {"code": -32011, "message": LAST_WORDS or "No such thing.\x1b[2J"}}
    if name == "wrong":
        return {"content": "nothing of the kind"}
    if name == "matched":
        return {**text("said"), "structuredContent": {"text": "a" * 200 + "!"}}
    if name == "structured":
        return {**text("three"), "structuredContent": {"n": 3}}
    if name == "image":
        return {
            "content": [
                {"type": "image", "data": "aGk=", "mimeType": "image/png"},
                {"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}},
                {"type": "resource_link", "uri": "file:///b", "name": "b"},
            ]
        }
    if name == "progress":
        for step in (1, 2):
            send(
                {
                    "method": "notifications/progress",
                    "params": {"progressToken": token, "progress": step, "total": 2, "message": f"step {step}"},
                }
            )
        return text("done")
    if name == "hang":
        hanging.append(id)
        begun.set()
        send({"method": "notifications/progress", "params": {"progressToken": token, "progress": 0}})
        return None
    if name == "stopped":
        assert begun.wait(60) and stopped.wait(60)
        return text("yes")
    if name == "die":
        sys.stderr.write((LAST_WORDS or "I have had enough") + "\n")
        sys.stderr.flush()
        os._exit(7)
    if name == "roots":
        if MODERN and "inputResponses" not in params:
            return {
                "resultType": "input_required",
                "requestState": "opaque",
                "inputRequests": {"r": {"method": "roots/list", "params": {}}},
            }
        said = params["inputResponses"]["r"] if MODERN else ask("roots/list", {})
        return text(json.dumps([root["uri"] for root in said["roots"]]))
    if name == "form":
        wanted = {"mode": "form", "message": "Who is it?", "requestedSchema": FORM}
        if MODERN and "inputResponses" not in params:
            return {
                "resultType": "input_required",
                "requestState": "opaque",
                "inputRequests": {"f": {"method": "elicitation/create", "params": wanted}},
            }
        said = params["inputResponses"]["f"] if MODERN else ask("elicitation/create", wanted)
        return text(json.dumps(said))
    if name == "link":
        wanted = {
            "mode": "url",
            "message": "Log in.",
            "url": arguments.get("url", "https://example.com/x"),
            "elicitationId": "e1",
        }
        return text(json.dumps(ask("elicitation/create", wanted)))
    if name == "sample":
        wanted = {"messages": [{"role": "user", "content": {"type": "text", "text": "Hi?"}}], "maxTokens": 9}
        return text(json.dumps(ask("sampling/createMessage", wanted)))
    if name == "flood":
        line = json.dumps({"jsonrpc": "2.0", "method": "notifications/what", "params": {}}) + "\n"
        with lock:
            for _ in range(600):
                sys.stdout.write(line * 1000)
            sys.stdout.flush()
        return text("done")
    if name == "stderr":
        for _ in range(100):
            sys.stderr.write("x" * 100_000)
        sys.stderr.flush()
        return text("done")
    if name == "noise":
        with lock:
            sys.stdout.write('Listening on nothing\n[1, 2]\n{"jsonrpc": "2.0"}\n{broken\n\xff\n')
            sys.stdout.flush()
        return text("done")
    if name == "huge":
        with lock:
            sys.stdout.write('{"jsonrpc": "2.0", "id": ' + json.dumps(id))
            sys.stdout.write(', "result": {"content": [{"type": "text", "text": "')
            for _ in range(100):
                sys.stdout.write("x" * 1_000_000)
            sys.stdout.write('"}]}}\n')
            sys.stdout.flush()
        return None
    if name == "other_id":
        send({"id": 999_999, "result": text("for somebody else")})
        return text("for you")
    if name == "twice":
        send({"id": id, "result": text("first")})
        return text("second")
    if name == "child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        return text(str(child.pid))
    if name == "change":
        send({"method": "notifications/tools/list_changed"})
        return text("done")
    return {"__error__": {"code": -32602, "message": f"There is no {name}."}}


MORE = {
    "resources/list": {"resources": [{"uri": "odd://a", "name": "a"}]},
    "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "odd://{x}", "name": "x"}]},
    "resources/read": {"contents": [{"uri": "odd://a", "text": "inside"}]},
    "prompts/list": {"prompts": [{"name": "greet"}]},
    "prompts/get": {"messages": [{"role": "user", "content": {"type": "text", "text": "Greet."}}]},
    "completion/complete": {"completion": {"values": ["green"]}},
}


def answer(message):
    id, method, params = message["id"], message["method"], message.get("params", {})
    if method == "server/discover" and MODERN:
        result = {
            "supportedVersions": ["2026-07-28"],
            "capabilities": {"tools": {}, **BESIDE},
            "resultType": "complete",
            "ttlMs": 0,
            "cacheScope": "public",
        }
    elif method == "initialize" and not MODERN:
        result = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {"listChanged": True}, **BESIDE},
            "serverInfo": {"name": "odd", "version": "1"},
        }
    elif method == "tools/list":
        result = {"tools": listed()}
    elif method == "tools/call":
        result = call(id, params)
    elif method in MORE and "--more" in sys.argv:
        result = dict(MORE[method])
    elif method == "ping":
        result = {}
    else:
        result = {"__error__": {"code": -32601, "message": "Method not found"}}
    if result is None:
        return
    if "__error__" in result:
        send({"id": id, "error": result["__error__"]})
        return
    if MODERN:
        result.setdefault("resultType", "complete")
        if method.startswith(("tools/list", "resources/", "prompts/list")):
            result |= {"ttlMs": 0, "cacheScope": "public"}
    send({"id": id, "result": result})


if "--mute" in sys.argv:
    sys.stdin.read()

for line in sys.stdin:
    message = json.loads(line)
    if "method" in message and "id" in message:
        threading.Thread(target=answer, args=(message,), daemon=True).start()
    elif "id" in message:
        done, said = asked[message["id"]]
        said.append(message.get("result", {"error": message.get("error")}))
        done.set()
    elif message["method"] == "notifications/cancelled":
        if message["params"]["requestId"] in hanging:
            stopped.set()
