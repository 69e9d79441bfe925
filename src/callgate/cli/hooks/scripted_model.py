"""A model on this machine that asks for given tool calls and then says so: for trying agents.

It speaks four dialects, as streams: Anthropic messages, OpenAI chat completions and responses, and
Gemini. Each request of a conversation brings the results so far: their number says which call
is next.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

DONE = "scripted model: done"

Events = list[tuple[str | None, Any]]


class Step(NamedTuple):
    """One call that the model asks for; `id` where a test has to know it."""

    tool: str
    arguments: dict[str, Any]


class ScriptedModel:
    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = tuple(steps)
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        """What was sent to it."""
        self.numbers = itertools.count(1)

    def next_step(self, results: int) -> Step | None:
        return self.steps[results] if results < len(self.steps) else None


@contextmanager
def serving(steps: Sequence[Step]) -> Iterator[ScriptedModel]:
    """Serve on a free port of the loopback, as long as this is entered."""
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
    parts = [part for each in body.get("contents", []) for part in each.get("parts", [])]
    results = sum("functionResponse" in part for part in parts)
    step = model.next_step(results) if body.get("tools") else None
    part: dict[str, Any] = {"text": DONE}
    if step is not None:
        part = {"functionCall": {"name": step.tool, "args": step.arguments}}
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
    content = {"role": "model", "parts": [part]}
    candidate = {"content": content, "finishReason": "STOP", "index": 0}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "scripted"}
