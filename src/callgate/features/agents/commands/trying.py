"""`callgate hook test`: the agent's hook must reach an instance, and the agent must obey a refusal.

    entry     the command in the agent's settings, run by a shell as the agent runs it
    program   the agent's own program with another home, and a scripted model that calls one
              command

The instance refuses the command of the test (`events.is_trial`) without a question. The test fails
if the command runs, or if the refusal does not come from the instance.

The scripted model is a local server that speaks four streaming dialects: Anthropic messages,
OpenAI chat completions and responses, and Gemini. Each request contains the results so far; their
number selects the next call.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from callgate.features.agents.commands import editing
from callgate.features.agents.commands.checks import installed_files, look_at_trust
from callgate.features.agents.hooks.events import REASON, REFUSAL, trial_command, trial_output
from callgate.features.agents.hooks.jsonc_edits import parse, value_of
from callgate.features.agents.known import KNOWN, hook_directory, hooks_of, user_file
from callgate.socket.instances import lasting

DONE = "scripted model: done"

Events = list[tuple[str | None, Any]]


class Step(NamedTuple):
    """One call that the scripted model requests."""

    tool: str
    arguments: dict[str, Any]


class ScriptedModel:
    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = tuple(steps)
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        """The received requests."""
        self.numbers = itertools.count(1)

    def next_step(self, results: int) -> Step | None:
        return self.steps[results] if results < len(self.steps) else None


@contextmanager
def serving(steps: Sequence[Step]) -> Iterator[ScriptedModel]:
    """Serve a scripted model on a free loopback port while the context is active."""
    model = ScriptedModel(steps)

    class Handler(_Handler):
        scripted = model

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    model.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def tool_results(request: dict[str, Any]) -> Iterator[str]:
    """Yield the results of tool calls in a request to a model, as text."""
    for message in request.get("messages", []):  # Anthropic, OpenAI chat
        if message.get("role") == "tool":
            yield str(message["content"])
        for block in message["content"] if isinstance(message["content"], list) else ():
            if block.get("type") == "tool_result":
                yield json.dumps(block["content"])
    for item in request["input"] if isinstance(request.get("input"), list) else ():
        if str(item.get("type")).endswith("_call_output"):  # OpenAI responses
            yield str(item["output"])
    for content in request.get("contents", []):  # Gemini
        for part in content["parts"]:
            if "functionResponse" in part:
                yield json.dumps(part["functionResponse"])


class _Handler(BaseHTTPRequestHandler):
    scripted: ScriptedModel
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._send(b"", "application/json")

    def do_GET(self) -> None:
        rows = [{"id": "scripted", "object": "model", "type": "model", "display_name": "scripted"}]
        self._send_json({"object": "list", "data": rows, "models": [], "has_more": False})

    def do_POST(self) -> None:
        body = json.loads(self._body() or b"{}")
        path = self.path.partition("?")[0]
        if path.endswith("/count_tokens"):
            return self._send_json({"input_tokens": 10})
        if ":countTokens" in path:
            return self._send_json({"totalTokens": 10})
        self.scripted.requests.append(body)
        if path.endswith("/messages"):
            return self._answer(anthropic(self.scripted, body))
        if path.endswith("/responses"):
            return self._answer(responses(self.scripted, body))
        if path.endswith("/chat/completions"):
            return self._answer([*chat(self.scripted, body), (None, "[DONE]")])
        if ":streamGenerateContent" in path:
            return self._answer([(None, gemini(self.scripted, body))])
        if ":generateContent" in path:
            return self._send_json(gemini(self.scripted, body))
        return self.send_error(404)

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        pieces = []
        while size := int(self.rfile.readline().strip() or b"0", 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def _answer(self, events: Events) -> None:
        lines = []
        for name, data in events:
            if name is not None:
                lines.append(f"event: {name}")
                data = {"type": name, **data}
            lines.append(f"data: {data if isinstance(data, str) else json.dumps(data)}\n")
        self._send(("\n".join(lines) + "\n").encode(), "text/event-stream")

    def _send_json(self, value: Any) -> None:
        self._send(json.dumps(value).encode(), "application/json")

    def _send(self, body: bytes, media_type: str) -> None:
        self.send_response(200)
        self.send_header("content-type", media_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def anthropic(model: ScriptedModel, body: dict[str, Any]) -> Events:
    contents = [each["content"] for each in body.get("messages", [])]
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    results = sum(block.get("type") == "tool_result" for block in blocks)
    step = model.next_step(results) if body.get("tools") else None
    number, usage = next(model.numbers), {"input_tokens": 10, "output_tokens": 5}
    message = {
        "id": f"msg_{number}", "type": "message", "role": "assistant", "usage": usage,
        "model": body.get("model", "scripted"), "content": [], "stop_reason": None,
        "stop_sequence": None,
    }  # fmt: skip
    if step is None:
        block: dict[str, Any] = {"type": "text", "text": ""}
        delta = {"type": "text_delta", "text": DONE}
    else:
        block = {"type": "tool_use", "id": f"toolu_{number}", "name": step.tool, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(step.arguments)}
    stop = {"stop_reason": "end_turn" if step is None else "tool_use", "stop_sequence": None}
    return [
        ("message_start", {"message": message}),
        ("content_block_start", {"index": 0, "content_block": block}),
        ("content_block_delta", {"index": 0, "delta": delta}),
        ("content_block_stop", {"index": 0}),
        ("message_delta", {"delta": stop, "usage": usage}),
        ("message_stop", {}),
    ]


def responses(model: ScriptedModel, body: dict[str, Any]) -> Events:
    given = body.get("input")
    items = given if isinstance(given, list) else []
    results = sum(str(item.get("type", "")).endswith("_call_output") for item in items)
    step = model.next_step(results) if body.get("tools") else None
    number = next(model.numbers)
    if step is None:
        item: dict[str, Any] = {
            "type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": DONE, "annotations": []}],
        }  # fmt: skip
    else:
        item = {
            "type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}",
            "name": step.tool, "arguments": json.dumps(step.arguments), "status": "completed",
        }  # fmt: skip
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15,
             "input_tokens_details": {"cached_tokens": 0},
             "output_tokens_details": {"reasoning_tokens": 0}}  # fmt: skip
    response = {"id": f"resp_{number}", "object": "response", "status": "in_progress", "output": []}
    return [
        ("response.created", {"response": response}),
        ("response.output_item.added", {"output_index": 0, "item": item}),
        ("response.output_item.done", {"output_index": 0, "item": item}),
        ("response.completed",
         {"response": {**response, "status": "completed", "output": [item], "usage": usage}}),
    ]  # fmt: skip


def chat(model: ScriptedModel, body: dict[str, Any]) -> Events:
    results = sum(each.get("role") == "tool" for each in body.get("messages", []))
    step = model.next_step(results) if body.get("tools") else None
    number = next(model.numbers)
    delta: dict[str, Any] = {"role": "assistant", "content": DONE}
    if step is not None:
        function = {"name": step.tool, "arguments": json.dumps(step.arguments)}
        call = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
        delta = {"role": "assistant", "tool_calls": [call]}
    head = {"id": f"chat_{number}", "object": "chat.completion.chunk", "created": 1,
            "model": body.get("model", "scripted")}  # fmt: skip
    reason = "stop" if step is None else "tool_calls"
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return [
        (None, {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}),
        (None, {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}],
                "usage": usage}),
    ]  # fmt: skip


def gemini(model: ScriptedModel, body: dict[str, Any]) -> dict[str, Any]:
    content_parts = [part for each in body.get("contents", []) for part in each.get("parts", [])]
    results = sum("functionResponse" in part for part in content_parts)
    step = model.next_step(results) if body.get("tools") else None
    part: dict[str, Any] = {"text": DONE}
    if step is not None:
        part = {"functionCall": {"name": step.tool, "args": step.arguments}}
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
    content = {"role": "model", "parts": [part]}
    candidate = {"content": content, "finishReason": "STOP", "index": 0}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "scripted"}


PASSED_ON = ("PATH", "LANG", "LC_ALL", "TERM", "TMPDIR", "CALLGATE_HOME")


class Launch(NamedTuple):
    argv: list[str]
    env: dict[str, str]


def launch(
    agent: str, program: str, settings: str, home: str, url: str, *, prompt: str = "go"
) -> Launch:
    """Return the command line of an agent with a scripted model at `url`.

    `settings` is the text of the agent's settings with its hooks; `home` is an empty directory for
    its HOME. Raises `KeyError` for an agent without a scripted run.
    """
    hooks = hooks_of(agent)
    if hooks.scripted_run is None:
        raise KeyError(agent)
    started = hooks.scripted_run(home, url, prompt)
    if started.members:
        settings = _merged(settings, started.members)
    settings_files = {hooks.user.removeprefix("~/"): started.before_settings + settings}
    for path, text in {**started.files, **settings_files}.items():
        _write(home, path, text)
    if started.packages:
        users = os.path.dirname(os.path.dirname(user_file(agent)))
        _share_packages(users, os.path.join(home, started.packages))
    env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    env |= {"HOME": home, "XDG_CONFIG_HOME": os.path.join(home, ".config"), **started.env}
    return Launch([program, *started.options], env)


def can_launch(agent: str) -> bool:
    return hooks_of(agent).scripted_run is not None


def run(launched: Launch, cwd: str, limit_s: float) -> subprocess.CompletedProcess[str]:
    """Run an agent. Raises `OSError` or `SubprocessError`."""
    return subprocess.run(
        launched.argv, env=launched.env, cwd=cwd, timeout=limit_s, check=False,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
    )  # fmt: skip


def _write(home: str, path: str, text: str) -> None:
    path = os.path.join(home, path)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _merged(text: str, more: Mapping[str, Any]) -> str:
    found = value_of(text, parse(text)) if text.strip() else {}
    return json.dumps({**found, **more})


def _share_packages(directory: str, into: str) -> None:
    """Link the packages that the agent has installed for its plugins."""
    packages = os.path.join(directory, "node_modules")
    if not os.path.isdir(packages):
        return
    os.symlink(packages, os.path.join(into, "node_modules"))
    for name in ("package.json", "package-lock.json", "bun.lock"):
        if os.path.isfile(os.path.join(directory, name)):
            shutil.copy(os.path.join(directory, name), into)


_LIMIT_S = 120.0
_ENTRY_S = 30.0
_LONGEST = 300


class Trial(NamedTuple):
    ok: bool
    message: str


def try_agent(home: str, agent: str, workspace: str) -> Trial:
    """Test the hook entry, then the program, in a workspace."""
    label, name = KNOWN[agent].label, KNOWN[agent].program
    found = installed_files(home, agent, workspace)
    if not found:
        return Trial(False, f"{label} lacks callgate's hook: run callgate protect {agent}")
    if not lasting(home):
        return Trial(False, f"No callgate instance is running: run callgate protect {agent}")
    entry = _try_entry(home, agent, workspace, next(iter(found.values()))[0])
    if not entry.ok:
        return entry
    # The run below uses the hook even if the agent would skip it in normal use.
    for problem in look_at_trust(agent, home, workspace)[1]:
        return Trial(False, f"{problem.reason}: {problem.fix}")
    program = shutil.which(name)
    if program is None or not can_launch(agent):
        why = "callgate cannot start it with a scripted model"
        if program is None:
            why = f"{name} is not in PATH"
        return Trial(True, f"{entry.message} {label} itself was not run: {why}.")
    return _try_program(home, agent, program, workspace, editing.read(next(iter(found))) or "")


def _try_entry(home: str, agent: str, workspace: str, entry: dict[str, object]) -> Trial:
    """Run the hook entry on an event, without the agent."""
    label, word = KNOWN[agent].label, secrets.token_hex(8)
    hooks = hooks_of(agent)
    tool, arguments = hooks.shell_call(trial_command(word))
    event = {
        "session_id": trial_output(word),
        "cwd": workspace,
        "hook_event_name": "PreToolUse",
        "tool_name": tool,
        "tool_input": arguments,
    }
    try:
        done = subprocess.run(
            _entry_command(home, agent, entry), capture_output=True,
            input=json.dumps(hooks.dialect.own_event(event)), text=True, errors="replace",
            cwd=workspace, timeout=_ENTRY_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return Trial(False, f"The hook of {label} could not be run: {error}")
    if REFUSAL in done.stdout:
        return Trial(True, f"The hook of {label} reaches callgate, and a denied call is denied.")
    return Trial(False, f"The hook of {label} gave an unexpected answer: {_reason(done.stdout)}")


def _entry_command(home: str, agent: str, entry: dict[str, object]) -> list[str]:
    """Return the command line of an entry; a plugin starts the script itself."""
    hooks = entry.get("hooks")
    hook = hooks[0] if isinstance(hooks, list) else entry
    if "command" in hook:
        return ["/bin/sh", "-c", str(hook["command"])]
    return [os.path.join(hook_directory(home, agent), "hook"), "pre"]


def _try_program(home: str, agent: str, program: str, workspace: str, settings: str) -> Trial:
    label, word = KNOWN[agent].label, secrets.token_hex(8)
    step = Step(*hooks_of(agent).shell_call(trial_command(word)))
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as agent_home, serving([step]) as model:
        launched = launch(agent, program, settings, agent_home, model.url)
        try:
            ended = run(launched, workspace, _LIMIT_S)
        except (OSError, subprocess.SubprocessError) as error:
            return Trial(False, f"{label} could not be run: {error}")
        results = "\n".join(tool_results(model.requests[-1])) if model.requests else ""
        output = (ended.stderr or ended.stdout).strip()
    seconds = time.monotonic() - started
    if trial_output(word) in results:
        return Trial(False, f"{label} is NOT protected: it ran a call that callgate did not allow.")
    if not results:
        return Trial(False, f"{label} did not make the test's call: {_short(output)}")
    if not _is_recorded(home, word):
        return Trial(False, f"{label} did not ask callgate about the call: {_short(results)}")
    return Trial(
        True,
        f"{label} asked callgate about a test call and obeyed the refusal ({seconds:.1f} s).",
    )


def _is_recorded(home: str, word: str) -> bool:
    """Return whether the last lines of the audit log contain the refusal."""
    try:
        with open(os.path.join(home, "audit.jsonl"), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 1_000_000))
            lines = file.read().splitlines()
    except OSError:
        return False
    found = [json.loads(line) for line in lines if word.encode() in line]
    return any(each.get("reason") == REASON for each in found)


def _reason(answer: str) -> str:
    """Return the reason in a refusal, in any agent's format."""
    try:
        found = json.loads(answer)
    except (ValueError, RecursionError):
        return _short(answer)
    found = found.get("hookSpecificOutput", found) if isinstance(found, dict) else {}
    reasons = [
        found.get(key)
        for key in ("permissionDecisionReason", "reason", "user_message", "errorMessage")
    ]
    return next((each for each in reasons if isinstance(each, str)), _short(answer))


def _short(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:_LONGEST] if lines else "it printed nothing"
