"""A model server for Claude Code on loopback: it asks for one tool, and then ends the turn."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_USAGE = {"input_tokens": 1, "output_tokens": 1, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}


class ModelServer(ThreadingHTTPServer):
    """`results` are what it was told of the call."""

    daemon_threads = True

    def __init__(self, tool: str, arguments: dict[str, Any]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.tool, self.arguments = tool, arguments
        self.results: list[str] = []

    def reply(self, request: dict[str, Any]) -> tuple[dict[str, Any], str]:
        blocks = [
            block
            for message in request.get("messages", [])
            if isinstance(message["content"], list)
            for block in message["content"]
        ]
        results = [block for block in blocks if block.get("type") == "tool_result"]
        if results:
            self.results = [_text(each.get("content")) for each in results]
        names = [each.get("name") for each in request.get("tools", [])]
        if results or self.tool not in names:  # it also has titles made, without any tools
            return {"type": "text", "text": "done"}, "end_turn"
        return {"type": "tool_use", "id": "toolu_1", "name": self.tool, "input": self.arguments}, "tool_use"


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(block.get("text", "") for block in content or ())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ModelServer

    def log_message(self, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._send(b"{}")

    def do_GET(self) -> None:
        self._send(b'{"data": [], "has_more": false}')

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)) or b"{}")
        if "count_tokens" in self.path:
            return self._send(b'{"input_tokens": 1}')
        block, reason = self.server.reply(request)
        message = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": request.get("model", "m"),
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _USAGE,
        }
        if not request.get("stream"):
            whole = {**message, "content": [block], "stop_reason": reason}
            return self._send(json.dumps(whole).encode())
        is_tool = block["type"] == "tool_use"
        start = {**block, "input": {}} if is_tool else {"type": "text", "text": ""}
        delta = (
            {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            if is_tool
            else {"type": "text_delta", "text": block["text"]}
        )
        events = [
            {"type": "message_start", "message": message},
            {"type": "content_block_start", "index": 0, "content_block": start},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": _USAGE},
            {"type": "message_stop"},
        ]
        body = "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events)
        self._send(body.encode(), "text/event-stream")
        return None

    def _send(self, body: bytes, kind: str = "application/json") -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def serving(tool: str, arguments: dict[str, Any]) -> Iterator[ModelServer]:
    server = ModelServer(tool, arguments)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
