"""Export the calls of a program as spans of its trace to an OpenTelemetry collector.

The example runs a collector on loopback that counts the received spans, so it runs
anywhere. Remove it, and name your collector in `OTEL_EXPORTER_OTLP_ENDPOINT`. It needs the
extra `otel`:

    pip install 'callgate[otel]'
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from callgate import Gate, ToolContext, tool

RECEIVED: list[str] = []


@tool(side_effects="read")
async def count_words(text: str, context: ToolContext) -> int:
    """Count the words of a text."""
    print("in the span", context.traceparent)  # for requests and processes of the tool
    return len(text.split())


@contextmanager
def collector() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            RECEIVED.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words: Any) -> None:
            """Suppress the access log."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


async def main(home: str) -> None:
    Path(home, "settings.toml").write_text("[telemetry]\nenabled = true\n")
    async with Gate(home, [count_words], home=home) as gate:
        result = await gate.call("count_words", {"text": "one two three"})
        print("words:", result.value)


with tempfile.TemporaryDirectory() as directory, collector() as url:
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = url
    asyncio.run(main(directory))
    print("sent to the collector:", *sorted(set(RECEIVED)))
