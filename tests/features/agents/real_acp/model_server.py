"""A model on loopback that asks real agents for the tools of a plan, one after the other.

    with PlannedModel([Asks("Bash", {"command": "ls"})]) as model:
        ...                      an agent whose model is at model.url
        model.requests           what it was sent

Which step comes next follows from the tool results in a request, so that an agent may repeat one.
Anthropic, OpenAI chat and Gemini are spoken, each as a stream or at once.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from tests.models_server import Asks, Says, stream

DONE = "PLAN-DONE"
_MODELS = {"object": "list", "data": [{"id": "fake-model", "object": "model", "owned_by": "test"}], "has_more": False}


class PlannedModel:
    def __init__(self, plan: Sequence[Asks]) -> None:
        self.plan = list(plan)
        self.requests: list[dict[str, Any]] = []
        self._ids = itertools.count(1)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("_H", (_Handler,), {"model": self}))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def address(self) -> str:
        return self.url.removeprefix("http://")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def reply(self, results: int, has_tools: bool) -> Says:
        """What comes after so many results of tools."""
        if not has_tools or results >= len(self.plan):
            return Says(DONE)
        asked = self.plan[results]
        return Says(calls=[Asks(asked.name, asked.input, f"call_{next(self._ids)}")])


class _Handler(BaseHTTPRequestHandler):
    model: PlannedModel
    protocol_version = "HTTP/1.1"

    def log_message(self, *words: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._send({}, "application/json")

    def do_GET(self) -> None:
        self._send(_MODELS, "application/json")

    def do_POST(self) -> None:
        body = json.loads(self._body() or b"{}")
        path = self.path.partition("?")[0]
        self.model.requests.append({"path": path, "body": body})
        if path.endswith("/count_tokens"):
            self._send({"input_tokens": 10}, "application/json")
        elif ":countTokens" in path:
            self._send({"totalTokens": 10}, "application/json")
        elif "enerateContent" in path:
            self._gemini(body, streams="stream" in path)
        elif path.endswith(("/messages", "/chat/completions")):
            self._sent_by_dialect(path, body)
        else:
            self._send({"error": {"message": "no such path"}}, "application/json", 404)

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        body = b""
        while size := int(self.rfile.readline().strip() or b"0", 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _sent_by_dialect(self, path: str, body: dict[str, Any]) -> None:
        says = self.model.reply(_results(body["messages"]), bool(body.get("tools")))
        if body.get("stream"):
            self._send(stream(says, path, body), "text/event-stream")
        elif path.endswith("/messages"):
            usage = {"input_tokens": 1, "output_tokens": 1}
            content = [{"type": "text", "text": says.text or "{}"}]
            message = {"id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn"}
            self._send({**message, "stop_sequence": None, "content": content, "usage": usage}, "application/json")
        else:
            message = {"role": "assistant", "content": says.text or "{}"}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            whole = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
            self._send({**whole, "choices": [choice], "usage": usage}, "application/json")

    def _gemini(self, body: dict[str, Any], *, streams: bool) -> None:
        parts = [part for each in body.get("contents", []) for part in each.get("parts", [])]
        results = sum("functionResponse" in part for part in parts)
        says = self.model.reply(results, bool(body.get("tools")))
        part: dict[str, Any] = {"text": says.text}
        if says.calls:
            part = {"functionCall": {"id": says.calls[0].id, "name": says.calls[0].name, "args": says.calls[0].input}}
        elif body.get("generationConfig", {}).get("responseMimeType") == "application/json":
            part = {"text": json.dumps({"reasoning": "x", "model_choice": "flash", "next_speaker": "user"})}
        candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
        usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
        answer = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "m", "responseId": "r"}
        if streams:
            self._send(f"data: {json.dumps(answer)}\r\n\r\n".encode(), "text/event-stream")
        else:
            self._send(answer, "application/json")

    def _send(self, body: Any, kind: str, status: int = 200) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _results(messages: list[dict[str, Any]]) -> int:
    """How many tools have answered, in either dialect."""
    count = 0
    for message in messages:
        content = message.get("content")
        count += message.get("role") == "tool"
        if isinstance(content, list):
            count += sum(block.get("type") == "tool_result" for block in content)
    return count
