"""What HTTP and WebSocket cost: events to many, a call, and what was missed.

    python benchmarks/http.py [--rounds N] [--json]

Clients are in a process of their own. CPU is that of the instance's process, all its threads
together. The raw fan-out writes the same events as lines to as many plain connections in the same
loop; the bare route is starlette's, on the same server, and answers the same bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from callgate import tool
from callgate.config.home import Home
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.events import Event
from callgate.core.ids import ulid
from callgate.core.sessions import Mode, Session
from callgate.core.stores import EventPage
from callgate.features.web.access import Access, Names
from callgate.features.web.application import Serving
from callgate.features.web.contexts import Context, Served
from callgate.features.web.frames import event_tail
from callgate.features.web.responses import encode
from callgate.features.web.server import HttpServer
from callgate.instance.wiring.runtime import Wired
from callgate.socket.listening import Address, bind

CLIENTS = (100, 1_000)
BURST = 20
KEPT = 100_000
REQUESTS = 300

CHILD = """
import asyncio, sys
kind, port, count, token = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

def masked(payload):
    return bytes([0x81, 0x80 | len(payload)]) + b"\\0\\0\\0\\0" + payload

class Reads(asyncio.Protocol):
    def __init__(self, ready):
        self.ready = ready
    def connection_made(self, transport):
        self.transport, self.asked = transport, False
        if kind == "raw":
            transport.write(b"hello")
        else:
            lines = ["GET /v1/stream HTTP/1.1", f"host: 127.0.0.1:{port}", "upgrade: websocket",
                     "connection: upgrade", "sec-websocket-version: 13",
                     "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
                     f"authorization: Bearer {token}", "", ""]
            transport.write("\\r\\n".join(lines).encode())
    def data_received(self, data):
        if kind == "ws" and not self.asked and b"101" in data:
            self.asked = True
            self.transport.write(masked(b'{"type":"subscribe","id":"live"}'))
        elif not self.ready.done():
            self.ready.set_result(None)

async def main():
    loop = asyncio.get_running_loop()
    waiting = []
    for _ in range(count):
        ready = loop.create_future()
        waiting.append(ready)
        await loop.create_connection(lambda: Reads(ready), "127.0.0.1", port)
        if kind == "ws":
            await ready
    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)

asyncio.run(main())
"""

ASKS = """
import json, socket, sys, time
port, count, token, session = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
body = json.dumps({"tool": "noop", "arguments": {}, "session": session}).encode()
lines = ["POST /v1/calls HTTP/1.1", f"host: 127.0.0.1:{port}", f"authorization: Bearer {token}",
         "content-type: application/json", f"content-length: {len(body)}", "", ""]
head = "\\r\\n".join(lines).encode()
made = socket.create_connection(("127.0.0.1", port))
made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
file, took = made.makefile("rb"), []
for _ in range(count):
    began = time.perf_counter()
    made.sendall(head + body)
    length = 0
    while (line := file.readline()) != b"\\r\\n":
        if line.lower().startswith(b"content-length"):
            length = int(line.split(b":")[1])
    file.read(length)
    took.append(time.perf_counter() - began)
print(sorted(took)[count // 2])
"""


@tool(side_effects="none")
async def noop() -> str:
    """Do nothing."""
    return "done"


class Instance:
    def __init__(self, home: Path, workspace: Path) -> None:
        self.wired = Wired(Home(str(home)))
        self.wired.register(noop)
        self.listening = bind(Address("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self.access = Access(str(home / "run" / "1.token"))
        served = Served(
            pid=1,
            version="",
            started_at=0.0,
            workspaces=[str(workspace)],
            mode=Mode.ASK,
            ceiling=None,
            model=None,
            models=[],
            home=str(home),
            audit=str(home / "audit.jsonl"),
        )
        self.serving = Serving(
            Context(
                runtime=self.wired.runtime,
                open_session=self.open_session,
                open_agent=self.wired.open_agent,
                hosts=None,
                served=served,
                access=self.access,
                names=Names(Address("127.0.0.1", self.port)),
            )
        )
        self.workspace = str(workspace)

    def open_session(self, cwd: str | None, id: str) -> Session:
        made = self.wired.session(self.workspace)
        made.id = id
        return made

    @property
    def token(self) -> str:
        return Path(self.access.path).read_text().strip()


@asynccontextmanager
async def serving() -> AsyncIterator[Instance]:
    with tempfile.TemporaryDirectory() as base:
        home, workspace = Path(base) / "home", Path(base) / "ws"
        home.mkdir(mode=0o700)
        workspace.mkdir()
        instance = Instance(home, workspace)
        instance.serving.start(instance.listening)
        try:
            yield instance
        finally:
            await instance.wired.runtime.close()
            await instance.serving.close()
            await instance.wired.close()


@asynccontextmanager
async def child(code: str, *words: object) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, *map(str, words), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


def page(count: int, first: int) -> EventPage:
    events = [
        Event(
            id=ulid(),
            timestamp=time.time(),
            session_id="sess_1",
            type="tool.completed",
            actor="tool",
            payload={
                "success": True,
                "output_size_bytes": 6,
                "latency_ms": 0.26,
                "tool_use_id": ulid(),
                "call_id": ulid(),
            },
        )
        for _ in range(count)
    ]
    seqs = list(range(first, first + count))
    return EventPage(events, [f"c{n}" for n in seqs], f"c{seqs[-1]}", seqs)


async def measure(rounds: int, told: int, tell: Callable[[EventPage], Awaitable[None]]) -> float:
    """CPU seconds for telling so many events at once to all, the median of rounds."""
    took: list[float] = []
    for n in range(rounds):
        some = page(told, n * told + 1)
        began = time.process_time()
        await tell(some)
        took.append(time.process_time() - began)
        await asyncio.sleep(0.02)  # clients read
    return median(took)


async def fan_out(rounds: int, clients: int) -> dict[str, Any]:
    found: dict[str, Any] = {"clients": clients}
    async with (
        serving() as instance,
        child(CHILD, "ws", instance.port, clients, instance.token) as process,
    ):
        assert process.stdout is not None
        await process.stdout.readline()
        fanout = instance.serving.context.fanout

        async def tell(some: EventPage) -> None:
            places = zip(some.events, some.seqs, some.cursors, strict=True)
            fanout._send_page(some, [event_tail(*each) for each in places])
            await fanout._all_sent.wait()

        for told in (1, BURST):
            found[f"stream_{told}"] = await measure(rounds, told, tell) / clients / told * 1e6
    async with (
        raw_server() as (port, transports),
        child(CHILD, "raw", port, clients, "") as process,
    ):
        assert process.stdout is not None
        await process.stdout.readline()
        while len(transports) < clients:
            await asyncio.sleep(0.01)

        async def tell_raw(some: EventPage) -> None:
            for event in some.events:
                line = encode(event) + b"\n"
                for transport in transports:
                    transport.write(line)

        for told in (1, BURST):
            took = await measure(rounds, told, tell_raw)
            found[f"raw_{told}"] = took / clients / told * 1e6
    return found


@asynccontextmanager
async def raw_server() -> AsyncIterator[tuple[int, list[asyncio.WriteTransport]]]:
    transports: list[asyncio.WriteTransport] = []

    class Writes(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.WriteTransport)
            transports.append(transport)

    loop = asyncio.get_running_loop()
    server = await loop.create_server(Writes, "127.0.0.1", 0, backlog=1024)
    try:
        yield server.sockets[0].getsockname()[1], transports
    finally:
        server.close()
        for transport in transports:
            transport.abort()


async def asked(port: int, token: str, session: str) -> tuple[float, float]:
    """CPU and time of one request, in microseconds."""
    began = time.process_time()
    async with child(ASKS, port, REQUESTS, token, session) as process:
        assert process.stdout is not None
        said = await process.stdout.read()
    return (time.process_time() - began) / REQUESTS * 1e6, float(said) * 1e6


async def calls(rounds: int) -> dict[str, Any]:
    async with serving() as instance:
        context = instance.serving.context
        session = await context.sessions.open(None, None, None)
        call = ToolCall(tool="noop", arguments={}, session=session, caller=CallerKind.HTTP)
        body = encode(await instance.wired.runtime.calls.run(call))

        async def answer(request: Request) -> Response:
            await request.json()
            return Response(body, media_type="application/json")

        bare = HttpServer(Starlette(routes=[Route("/v1/calls", answer, methods=["POST"])]))
        listening = bind(Address("127.0.0.1", 0))
        port = listening.getsockname()[1]
        bare.start(listening)
        ours: list[tuple[float, float]] = []
        theirs: list[tuple[float, float]] = []
        alone: list[float] = []
        for _ in range(rounds):
            ours.append(await asked(instance.port, instance.token, session.id))
            theirs.append(await asked(port, instance.token, session.id))
            began = time.process_time()
            for _ in range(REQUESTS):
                made = ToolCall(tool="noop", arguments={}, session=session, caller=CallerKind.HTTP)
                await instance.wired.runtime.calls.run(made)
            alone.append((time.process_time() - began) / REQUESTS * 1e6)
        await bare.close()
    return {
        "calls_cpu": median(each for each, _ in ours),
        "calls_time": median(each for _, each in ours),
        "bare_cpu": median(each for each, _ in theirs),
        "bare_time": median(each for _, each in theirs),
        "alone_cpu": median(alone),
    }


REPLAYS = """
import json, sys, time, urllib.request
url, token, session, kept = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
from websockets.sync.client import connect
headers = {"authorization": f"Bearer {token}"}
began, after = time.perf_counter(), 0
while after < kept:
    path = f"{url}/v1/sessions/{session}/events?after={after}&limit=1000"
    asked = urllib.request.Request(path, headers=headers)
    after += urllib.request.urlopen(asked).read().count(b'"sensitivity"')
paged = time.perf_counter() - began
where, plain = url.replace("http", "ws") + "/v1/stream", {"proxy": None, "compression": None}
with connect(where, additional_headers=headers, **plain) as made:
    began = time.perf_counter()
    said = {"type": "subscribe", "id": "s", "session": session, "since": after - 10000}
    made.send(json.dumps(said))
    for _ in range(10001):
        made.recv()
    streamed = time.perf_counter() - began
print(paged, streamed)
"""


async def replay() -> dict[str, Any]:
    async with serving() as instance:
        session = await instance.serving.context.sessions.open(None, None, None)
        conversations = instance.wired.runtime.sessions.conversations
        for n in range(KEPT - 1):
            conversations.emit(session, "test.counted", "system", {"n": n, "text": "x" * 100})
            if n % 5_000 == 0:
                await conversations.flush()
        await conversations.flush()
        url = f"http://127.0.0.1:{instance.port}"
        async with child(REPLAYS, url, instance.token, session.id, KEPT) as process:
            assert process.stdout is not None
            paged, streamed = map(float, (await process.stdout.read()).split())
    return {"paged_s": paged, "streamed_s": streamed}


async def run(rounds: int) -> dict[str, Any]:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    return {
        "fan_out": [await fan_out(rounds * 20, clients) for clients in CLIENTS],
        "calls": await calls(rounds),
        "replay": await replay(),
    }


def show(found: dict[str, Any]) -> None:
    print("| to | stream, 1 event | raw lines | stream, 20 events | raw lines |")
    print("| --- | --- | --- | --- | --- |")
    for each in found["fan_out"]:
        keys = ("stream_1", "raw_1", f"stream_{BURST}", f"raw_{BURST}")
        cells = " | ".join(f"{each[key]:.1f} µs" for key in keys)
        print(f"| {each['clients']:,} clients | {cells} |")
    made, told = found["calls"], found["replay"]
    print("\n| request | CPU | until answered |\n| --- | --- | --- |")
    print(f"| `POST /v1/calls` | {made['calls_cpu']:.0f} µs | {made['calls_time']:.0f} µs |")
    print(f"| a bare starlette route | {made['bare_cpu']:.0f} µs | {made['bare_time']:.0f} µs |")
    print(f"| the call without HTTP | {made['alone_cpu']:.0f} µs | |")
    print("\n| replay | took | a second |\n| --- | --- | --- |")
    paged, streamed = told["paged_s"], told["streamed_s"]
    print(f"| {KEPT:,} events, page by page | {paged:.1f} s | {KEPT / paged:,.0f} |")
    print(f"| 10,000 events, over the stream | {streamed:.2f} s | {10_000 / streamed:,.0f} |")


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    measured = asyncio.run(run(chosen.rounds))
    print(json.dumps(measured)) if chosen.json else show(measured)
