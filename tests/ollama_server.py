"""A fake Ollama: the requests that callgate and Ollama's own clients make, with canned replies.

    with OllamaServer({"llama3": False, "qwen3:8b": True}) as server: ...

The values say whether a model has tool calling. Its errors have the words of the real server.
`tests/features/agents/frameworks/test_ollama_clients.py` has an independent client accept it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

CREATED = 1_700_000_000
AT = "2026-01-01T00:00:00Z"


class OllamaServer:
    def __init__(self, models: Mapping[str, bool], *replies: str, port: int = 0) -> None:
        """
        Args:
            models: their names, and whether they have tool calling.
            replies: texts of the model, one a request, the last one again; default: "Hi."
        """
        self.models = models
        self.replies = list(replies or ("Hi.",))
        self.requests: list[dict[str, Any]] = []
        """The bodies of chat requests."""
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self._server.daemon_threads = True

    @property
    def host(self) -> str:
        """The value for OLLAMA_HOST."""
        return f"127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def has_tools(self, name: str) -> bool | None:
        """None: the model was not pulled. A name without a tag is `latest`."""
        return self.models.get(name, self.models.get(name.removesuffix(":latest")))

    def next_reply(self) -> str:
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


def _handler(owner: OllamaServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            if self.path == "/api/tags":
                self._json({"models": [{"name": name, "model": name} for name in owner.models]})
            elif self.path == "/v1/models":
                data = [{"id": n, "object": "model", "created": CREATED, "owned_by": "library"} for n in owner.models]
                self._json({"object": "list", "data": data})
            else:
                self._json({"version": "0.12.3"})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            model = body.get("model", "")
            has_tools = owner.has_tools(model)
            message = None if has_tools is not None else f"model '{model}' not found"
            status = 404
            if message is None and body.get("tools") and not has_tools:
                status, message = 400, f"registry.ollama.ai/library/{model}:latest does not support tools"
            if self.path == "/v1/chat/completions":
                if message is not None:
                    error = {"message": message, "type": "api_error", "param": None, "code": None}
                    self._json({"error": error}, status)
                    return
                owner.requests.append(body)
                self._completion(model, owner.next_reply(), stream=body.get("stream", False))
            elif self.path == "/api/chat":
                if message is not None:
                    self._json({"error": message}, status)
                    return
                owner.requests.append(body)
                said = {"role": "assistant", "content": owner.next_reply()}
                self._json({"model": model, "created_at": AT, "message": said, "done": True, "done_reason": "stop"})
            else:
                self._json({"error": "not found"}, 404)

        def _completion(self, model: str, text: str, *, stream: bool) -> None:
            head = {"id": "chatcmpl-1", "created": CREATED, "model": model, "system_fingerprint": "fp_ollama"}
            usage = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}
            if not stream:
                message = {"role": "assistant", "content": text}
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                self._json({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
                return
            head["object"] = "chat.completion.chunk"
            words = [f"{word} " for word in text.split(" ")]
            words[-1] = words[-1][:-1]
            chunks: list[dict[str, Any]] = [
                {"choices": [{"index": 0, "delta": {"role": "assistant", "content": w}, "finish_reason": None}]}
                for w in words
            ]
            last = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": "stop"}
            chunks += [{"choices": [last]}, {"choices": [], "usage": usage}]
            events = "".join(f"data: {json.dumps({**head, **chunk})}\n\n" for chunk in chunks)
            self._send(200, "text/event-stream", (events + "data: [DONE]\n\n").encode())

        def _json(self, value: Any, status: int = 200) -> None:
            self._send(status, "application/json; charset=utf-8", json.dumps(value).encode())

        def _send(self, status: int, kind: str, data: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler
