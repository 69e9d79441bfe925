"""An HTTP server on loopback that keeps what it is sent, and answers as a test wants."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

LIMIT_S = 30.0


class Received(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[Received] = []
        self.answers: list[tuple[int, dict[str, str]]] = []
        """What the next ones get; 200 after these."""
        self.largest: int | None = None
        """Bytes of a body; a longer one gets 413."""
        self._changed = threading.Condition()

    def take(self, request: Received) -> tuple[int, dict[str, str]]:
        with self._changed:
            self.requests.append(request)
            answer = self.answers.pop(0) if self.answers else (200, {})
            if self.largest is not None and len(request.body) > self.largest:
                answer = (413, {})
            self._changed.notify_all()
            return answer

    def wait(self, enough: Callable[[list[Received]], Any]) -> list[Received]:
        """Until what came is enough."""
        with self._changed:
            assert self._changed.wait_for(lambda: enough(self.requests), LIMIT_S), self.requests
            return list(self.requests)


@contextmanager
def receiving(port: int = 0) -> Iterator[Receiver]:
    receiver: Receiver

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status, more = receiver.take(Received(self.path, headers, body))
            self.send_response(status)
            for name, value in {"content-length": "0", **more}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *words: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    receiver = Receiver(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
