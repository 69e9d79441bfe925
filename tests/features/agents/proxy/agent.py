"""An ACP agent that does what its prompt says, step by step, and reports what came of it.

    [{"ask": "fs/read_text_file", "params": {"path": "/a"}}, {"run": "echo hi > b"}, {"say": "x"}]

Each step's outcome becomes one line of JSON in a message. Standard library only: it runs in the
sandbox, and knows nothing of callgate.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from itertools import count

_ids = count(1000)
_lock = threading.Lock()
_waiting: dict[int, tuple[threading.Event, list]] = {}
_cancelled: dict[str, threading.Event] = {}
_sessions = count(1)
NAME = os.environ.get("SCRIPTED_NAME", "scripted")


def send(message: dict) -> None:
    with _lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def ask(method: str, params: dict) -> dict:
    id = next(_ids)
    event, answer = threading.Event(), []
    _waiting[id] = event, answer
    send({"id": id, "method": method, "params": params})
    event.wait()
    return answer[0]


def update(session: str, **fields: object) -> None:
    send({"method": "session/update", "params": {"sessionId": session, "update": fields}})


def say(session: str, value: object) -> None:
    content = {"type": "text", "text": json.dumps(value) + "\n"}
    update(session, sessionUpdate="agent_message_chunk", content=content)


def step(session: str, do: dict, memory: dict) -> None:
    if "ask" in do:
        params = json.loads(json.dumps(do.get("params", {})).replace("$TERMINAL", memory.get("terminal", "")))
        answer = ask(do["ask"], {"sessionId": do.get("session", session), **params})
        if isinstance(answer.get("result"), dict) and "terminalId" in answer["result"]:
            memory["terminal"] = answer["result"]["terminalId"]
        say(session, {"ask": do["ask"], **{key: answer[key] for key in ("result", "error") if key in answer}})
    elif "run" in do:
        done = subprocess.run(["/bin/sh", "-c", do["run"]], capture_output=True, text=True)
        say(session, {"run": do["run"], "code": done.returncode, "out": done.stdout, "err": done.stderr})
    elif "update" in do:
        update(session, **json.loads(json.dumps(do["update"]).replace("$TERMINAL", memory.get("terminal", ""))))
    elif "raw" in do:
        sys.stdout.buffer.write(do["raw"].encode() * do.get("times", 1))
        sys.stdout.buffer.flush()
    elif "errors" in do:
        sys.stderr.write(do["errors"])
        sys.stderr.flush()
    elif "exit" in do:
        os._exit(do["exit"])
    elif "kill" in do:
        os.kill(os.getpid(), signal.SIGKILL)
    elif "hang" in do:
        threading.Event().wait()
    elif "until_cancelled" in do:
        say(session, "waiting")
        _cancelled[session].wait()
    elif "all" in do:
        threads = [threading.Thread(target=step, args=(session, each, {})) for each in do["all"]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    elif "say" in do:
        say(session, do["say"])


def prompt(id: object, params: dict) -> None:
    session = params["sessionId"]
    _cancelled[session] = threading.Event()
    memory: dict = {}
    for each in json.loads(params["prompt"][0]["text"]):
        step(session, each, memory)
    stopped = "cancelled" if _cancelled[session].is_set() else "end_turn"
    send({"id": id, "result": {"stopReason": stopped}})


def answer(id: object, method: str, params: dict) -> None:
    if method == "initialize":
        able = params["clientCapabilities"]
        if os.environ.get("SCRIPTED_HANG") == method:
            threading.Event().wait()
        result = {
            "protocolVersion": 1,
            "agentInfo": {"name": NAME, "version": "1", "title": "Scripted"},
            "agentCapabilities": {"loadSession": True, "_meta": {"told": able}},
            "authMethods": json.loads(os.environ.get("SCRIPTED_LOGINS", "[]")),
        }
    elif method == "session/new":
        if early := os.environ.get("SCRIPTED_EARLY"):
            update(early, sessionUpdate="session_info_update", title="early")
        result = {"sessionId": os.environ.get("SCRIPTED_EARLY") or f"s{os.urandom(4).hex()}-{next(_sessions)}"}
        send({"id": id, "result": result})
        command = {"name": "look", "description": "Looks."}
        update(result["sessionId"], sessionUpdate="available_commands_update", availableCommands=[command])
        return
    elif method == "session/load":
        content = {"type": "text", "text": "before"}
        update(params["sessionId"], sessionUpdate="user_message_chunk", content=content)
        result = {}
    elif method == "session/prompt":
        threading.Thread(target=prompt, args=(id, params), daemon=True).start()
        return
    elif method == "_extension/echo":
        result = params
    elif method in ("session/set_mode", "authenticate", "session/close"):
        result = {}
    else:
        send({"id": id, "error": {"code": -32601, "message": f"Method not found: {method}"}})
        return
    send({"id": id, "result": result})


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "method" not in message:
            waiting = _waiting.pop(message["id"], None)
            if waiting is not None:
                waiting[1].append(message)
                waiting[0].set()
        elif "id" in message:
            answer(message["id"], message["method"], message.get("params"))
        elif message["method"] == "session/cancel":
            session = message["params"]["sessionId"]
            if session in _cancelled and not os.environ.get("SCRIPTED_DEAF"):
                _cancelled[session].set()
        elif message["method"] == "_extension/send":
            for each in message["params"]["messages"]:
                send(each)


main()
