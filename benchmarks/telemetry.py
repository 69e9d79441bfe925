"""What telemetry costs a call: off and on in turns in one run, with a collector and without one.

    python benchmarks/telemetry.py [CALLS]

`latency` is the median time of one call. `processor` is the processor time of the whole process,
the sending thread included, over calls that were made one after the other without a pause. A
collector on loopback, in a process of its own, takes what is sent. Needs the extra `otel`.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from callgate import Gate, tool

ROUNDS = 7
ALLOWED_US = 15.0
_SERVER = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *words):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@tool(side_effects="none")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Timed(NamedTuple):
    latency_us: float
    processor_us: float


def main(calls: int = 10_000) -> None:
    with _collector() as url, tempfile.TemporaryDirectory() as directory:
        for case, endpoint in (("collector there", url), ("collector away", "http://127.0.0.1:9")):
            os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = endpoint
            os.environ["OTEL_BSP_SCHEDULE_DELAY"] = "200"
            rounds = [
                (
                    asyncio.run(_timed(directory, False, calls)),
                    asyncio.run(_timed(directory, True, calls)),
                )
                for _ in range(ROUNDS)
            ]
            off, on = ([pair[n] for pair in rounds] for n in (0, 1))
            for name in Timed._fields:
                before, after = (
                    statistics.median(getattr(each, name) for each in some) for some in (off, on)
                )
                print(
                    f"{case:<16} {name:<13} off {before:7.1f}  on {after:7.1f}  more "
                    f"{after - before:5.1f} us of {ALLOWED_US:g}, {after / before:.2f} times"
                )


async def _timed(directory: str, enabled: bool, calls: int) -> Timed:
    home = Path(directory, "on" if enabled else "off")
    home.mkdir(mode=0o700, exist_ok=True)
    settings = f"[telemetry]\nenabled = {str(enabled).lower()}\nflush_seconds = 0.1\n"
    (home / "settings.toml").write_text(settings)
    async with Gate(directory, [add], home=home) as gate:
        for _ in range(200):
            await gate.call("add", {"a": 1, "b": 2})
        if enabled:
            await asyncio.sleep(0.5)  # the SDK is loaded with the first records
        began, each = time.process_time(), []
        for _ in range(calls):
            start = time.perf_counter()
            await gate.call("add", {"a": 1, "b": 2})
            each.append(time.perf_counter() - start)
        took = time.process_time() - began
    return Timed(statistics.median(each) * 1e6, took / calls * 1e6)


@contextmanager
def _collector() -> Iterator[str]:
    """In a process of its own: what it costs is not telemetry's."""
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.kill()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
