"""What one caller pays while another floods: the wait for a small read, quiet and flooded in turn.

    python benchmarks/flood.py [--rounds N] [--reads N] [--parts N] [--only NAME] [--json]

    host       a tool in a host that says 100,000 things, as fast as they can be written
    command    a command that prints without end
    socket     a peer that sends requests without waiting for their answers
    stream     a WebSocket client that does the same
    sse        the host's tool, called over HTTP with its events as the answer
    readers    the host's tool, while 200 WebSocket clients watch all that happens
    editor     `callgate acp`: cancellations of nothing without end, while a turn reads 20 times
    updates    `callgate acp`: a command that prints without end in another session

One `callgate serve`, and one `callgate acp`. In every round the reads are timed while nothing else
runs, and then while a flood does; the ratio is taken within a round, and the median of the rounds
is what counts. On a machine with other work a process that has much to do waits for a core, which
a quiet one does not. `loop` does not depend on that: what the thread of the event loop worked from
one read to the next, for it and for whoever floods. Who floods is a process of its own: beside the
one that takes the time, it would measure how two threads share an interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from benchmarks import report

PARTS = 100_000
PLUGIN = '''
from callgate import ToolContext, tool

@tool(side_effects="none")
def flood(context: ToolContext) -> int:
    """Say much."""
    for number in range({parts}):
        context.output(f"part {{number}}\\n", "text")
    return {parts}
'''
SETTINGS = """
[hosts.flood]
command = ["{python}", "-P", "-m", "callgate", "host", "{plugin}"]
effects = {{ flood = "none" }}
"""
LIMIT_S = 600.0
FLOWS = 64 * 1024
"""Bytes of a flood that have come when it is in full flow."""
READERS = 200
TURN = 20
"""Reads in a turn of a model."""
PRINTS = "yes the same line again and again"


# Who floods: a process of its own, with the place that it is to flood as JSON.


def come(made: socket.socket, until: bytes = b"") -> None:
    """Read all that comes, until there is nothing more; say when it is in full flow."""
    got = 0
    with suppress(OSError):
        while data := made.recv(1 << 20):
            got += len(data)
            if got > FLOWS >= got - len(data):
                print("flows", flush=True)
            if until and until in data:
                return


def by_host(place: dict[str, Any]) -> None:
    made = local(place)
    made.sendall(tool_call("flood", place))
    come(made, b'"type":"tool_result"')


def by_command(place: dict[str, Any]) -> None:
    made = local(place)
    made.sendall(tool_call("shell", place, command=PRINTS))
    come(made)


def by_socket(place: dict[str, Any]) -> None:
    made = local(place)
    threading.Thread(target=come, args=(made,), daemon=True).start()
    send_for_ever(made, b'{"type":"list_tools","requestId":"%d"}\n')


def by_stream(place: dict[str, Any]) -> None:
    made = web(place, "GET /v1/stream", UPGRADE)
    made.recv(65_536)
    threading.Thread(target=come, args=(made,), daemon=True).start()
    send_for_ever(made, masked(b'{"type":"unsubscribe","id":"none"}'))


def by_sse(place: dict[str, Any]) -> None:
    body = json.dumps({"tool": "flood", "arguments": {}, "workspace": place["workspace"]}).encode()
    head = {
        "accept": "text/event-stream",
        "content-type": "application/json",
        "content-length": str(len(body)),
    }
    made = web(place, "POST /v1/calls", head)
    made.sendall(body)
    come(made, b"event: result")


def by_readers(place: dict[str, Any]) -> None:
    for _ in range(READERS):
        made = web(place, "GET /v1/stream", UPGRADE)
        made.recv(65_536)
        made.sendall(masked(b'{"type":"subscribe","id":"live"}'))
        threading.Thread(target=read_all, args=(made,), daemon=True).start()
    by_host(place)


UPGRADE = {
    "upgrade": "websocket",
    "connection": "upgrade",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}
FLOODS: dict[str, Callable[[dict[str, Any]], None]] = {
    "host": by_host,
    "command": by_command,
    "socket": by_socket,
    "stream": by_stream,
    "sse": by_sse,
    "readers": by_readers,
}
EDITORS = ("editor", "updates")


def local(place: dict[str, Any]) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.connect(place["path"])
    return made


def web(place: dict[str, Any], request: str, headers: dict[str, str]) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", place["port"]))
    lines = [
        f"{request} HTTP/1.1",
        f"host: 127.0.0.1:{place['port']}",
        f"authorization: Bearer {place['token']}",
    ]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    made.sendall("\r\n".join([*lines, "", ""]).encode())
    return made


def masked(payload: bytes) -> bytes:
    return bytes([0x81, 0x80 | len(payload)]) + b"\0\0\0\0" + payload


def read_all(made: socket.socket) -> None:
    with suppress(OSError):
        while made.recv(1 << 20):
            pass


def send_for_ever(made: socket.socket, frame: bytes) -> None:
    numbered = b"%d" in frame
    numbers = iter(range(1 << 60))
    with suppress(OSError):
        while True:
            made.sendall(
                b"".join(frame % next(numbers) if numbered else frame for _ in range(1_000))
            )


def tool_call(tool: str, place: dict[str, Any], **arguments: Any) -> bytes:
    frame = {"type": "tool_call", "requestId": "r", "toolName": tool, "arguments": arguments}
    return json.dumps({**frame, "clientInfo": {"cwd": place["workspace"]}}).encode() + b"\n"


# Who reads, and takes the time.


class Peer:
    def __init__(self, place: dict[str, Any]) -> None:
        self._place = place
        self.socket = local(place)
        self.socket.settimeout(LIMIT_S)
        self._file = self.socket.makefile("rb")

    def read(self) -> None:
        self.socket.sendall(tool_call("read_file", self._place, path="a.txt"))
        for line in self._file:
            frame: dict[str, Any] = json.loads(line)
            if frame["type"] == "tool_result":
                assert frame["result"]["ok"]
                return
        raise EOFError


class Editor:
    """Of one `callgate acp`: a session that reads, and one that can be flooded."""

    def __init__(self, home: Path, workspace: Path) -> None:
        reading = 'calls = [{ tool = "read_file", input = { path = "a.txt" } }]\n'
        script = f"[[replies]]\n{reading}" * TURN + '[[replies]]\ntext = "Done."\n'
        (workspace / "turn.toml").write_text("repeat = true\n" + script)
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "callgate",
                "acp",
                "--mode",
                "write",
                "--model",
                f"scripted:{workspace / 'turn.toml'}",
            ],
            cwd=workspace,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "CALLGATE_HOME": str(home)},
        )
        self.pid = self._process.pid
        self._ids = iter(range(1 << 60))
        self._lock = threading.Lock()
        self.ask("initialize", protocolVersion=1, clientCapabilities={})
        place = {"cwd": str(workspace), "mcpServers": []}
        self._reads, self._floods = (
            self.ask("session/new", **place)["sessionId"] for _ in range(2)
        )

    def send(self, method: str, id: int | None, **params: Any) -> None:
        assert self._process.stdin is not None
        numbered = {} if id is None else {"id": id}
        said = {"jsonrpc": "2.0", **numbered, "method": method, "params": params}
        with self._lock:
            self._process.stdin.write(json.dumps(said).encode() + b"\n")
            self._process.stdin.flush()

    def ask(self, method: str, **params: Any) -> Any:
        id = next(self._ids)
        self.send(method, id, **params)
        return self._until(id)

    def _until(self, id: int) -> Any:
        assert self._process.stdout is not None
        begins = b'{"jsonrpc":"2.0","id":%d,' % id
        for line in self._process.stdout:
            if line.startswith(begins):
                return json.loads(line)["result"]
        raise EOFError

    def _prompt(self, session: str, text: str) -> dict[str, Any]:
        return {"sessionId": session, "prompt": [{"type": "text", "text": text}]}

    def read(self) -> None:
        text = '/tool read_file {"path": "a.txt"}'
        assert self.ask("session/prompt", **self._prompt(self._reads, text))

    @contextmanager
    def updates(self) -> Iterator[None]:
        command = json.dumps({"command": PRINTS, "timeout_s": 300})
        prompt = self._prompt(self._floods, f"/tool shell {command}")
        self.send("session/prompt", next(self._ids), **prompt)
        try:
            yield
        finally:
            self.send("session/cancel", None, sessionId=self._floods)

    def turn(self, *, flooded: bool) -> float:
        """Milliseconds of a turn that reads; what floods follows its prompt."""
        began, id, ended = time.perf_counter(), next(self._ids), threading.Event()
        self.send("session/prompt", id, **self._prompt(self._reads, "go"))

        def flood() -> None:
            while not ended.is_set():
                self.send("session/cancel", None, sessionId="none")

        thread = threading.Thread(target=flood, daemon=True)
        if flooded:
            thread.start()
        self._until(id)
        took = time.perf_counter() - began
        ended.set()
        if flooded:
            thread.join()
        return took * 1000

    def close(self) -> None:
        self._process.communicate(timeout=LIMIT_S)


@contextmanager
def instance(base: Path, parts: int) -> Iterator[dict[str, Any]]:
    """Where an instance is, and the workspace that it serves."""
    home, workspace = base / "h", base / "ws"
    workspace.mkdir()
    (workspace / "a.txt").write_text("hello\n")
    plugin = workspace / "plugin.py"
    plugin.write_text(PLUGIN.format(parts=parts))
    home.mkdir(mode=0o700)
    (home / "settings.toml").write_text(SETTINGS.format(python=sys.executable, plugin=plugin))
    served = subprocess.Popen(
        [sys.executable, "-m", "callgate", "serve", "--mode", "write"],
        cwd=workspace,
        env={**os.environ, "CALLGATE_HOME": str(home)},
        stdout=subprocess.PIPE,
    )
    try:
        assert served.stdout is not None
        served.stdout.readline()
        address = served.stdout.readline().decode()
        yield {
            "pid": served.pid,
            "path": str(home / "run" / "callgate.sock"),
            "workspace": str(workspace),
            "port": int(address.split("127.0.0.1:")[1].split(":")[0]),
            "token": next((home / "run").glob("*.token")).read_text().strip(),
        }
    finally:
        served.terminate()
        served.wait()


@contextmanager
def flooding(name: str, place: dict[str, Any]) -> Iterator[None]:
    child = subprocess.Popen(
        [sys.executable, os.path.abspath(__file__), "--flood", name, json.dumps(place)],
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"flows\n", name
        yield
    finally:
        child.kill()
        child.wait()


def waits(read: Callable[[], None], reads: int) -> list[float]:
    """Milliseconds of each read."""
    found = []
    for _ in range(reads):
        began = time.perf_counter()
        read()
        found.append((time.perf_counter() - began) * 1000)
    return found


def worked(pid: int) -> float:
    """Milliseconds that the thread of the event loop has had a core."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e6


def timed(pid: int, read: Callable[[], None], reads: int) -> tuple[float, float]:
    """The median, and what the event loop worked for each read, and for others meanwhile."""
    before = worked(pid)
    found = waits(read, reads)
    return median(found), (worked(pid) - before) / reads


def measure(rounds: int, reads: int, parts: int, only: str | None) -> dict[str, dict[str, float]]:
    found = {}
    with (
        tempfile.TemporaryDirectory(prefix="cg", dir="/var/tmp") as directory,
        ExitStack() as stack,
    ):
        place = stack.enter_context(instance(Path(directory), parts))
        peer = Peer(place)
        waits(peer.read, reads)
        for name in FLOODS:
            if only in (None, name):
                found[name] = _rounds(
                    place["pid"], peer.read, partial(flooding, name, place), rounds, reads
                )
        if only is None or only in EDITORS:
            editor = Editor(Path(directory) / "h2", Path(place["workspace"]))
            stack.callback(editor.close)
            waits(editor.read, reads)
            if only in (None, "editor"):
                found["editor"] = _turns(editor, rounds)
            if only in (None, "updates"):
                found["updates"] = _rounds(editor.pid, editor.read, editor.updates, rounds, reads)
    return found


def _rounds(
    pid: int, read: Callable[[], None], flood: Callable[[], Any], rounds: int, reads: int
) -> dict[str, float]:
    quiet, flooded = [], []
    for _ in range(rounds):
        quiet.append(timed(pid, read, reads))
        with flood():
            flooded.append(timed(pid, read, reads))
        waits(read, reads)  # what is left of it passes
    return _summary(quiet, flooded)


def _turns(editor: Editor, rounds: int) -> dict[str, float]:
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    editor.turn(flooded=False)
    for _ in range(rounds):
        for flooded, times in found.items():
            before = worked(editor.pid)
            took = editor.turn(flooded=flooded)
            times.append((took / TURN, (worked(editor.pid) - before) / TURN))
            editor.read()  # what is left of it passes
    return _summary(found[False], found[True])


def _summary(
    quiet: list[tuple[float, float]], flooded: list[tuple[float, float]]
) -> dict[str, float]:
    ratios, loops = (
        [one[kind] / other[kind] for one, other in zip(flooded, quiet, strict=True)]
        for kind in (0, 1)
    )
    return {
        "quiet_ms": round(median(each[0] for each in quiet), 2),
        "flooded_ms": round(median(each[0] for each in flooded), 2),
        "ratio": round(median(ratios), 2),
        "worst": round(max(ratios), 2),
        "quiet_loop_ms": round(median(each[1] for each in quiet), 2),
        "flooded_loop_ms": round(median(each[1] for each in flooded), 2),
        "loop_ratio": round(median(loops), 2),
    }


def main() -> None:
    if sys.argv[1:2] == ["--flood"]:
        FLOODS[sys.argv[2]](json.loads(sys.argv[3]))
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--reads", type=int, default=40)
    parser.add_argument("--parts", type=int, default=PARTS)
    parser.add_argument("--only", choices=[*FLOODS, *EDITORS])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.rounds, options.reads, options.parts, options.only)
    if not options.json:
        names = (
            "quiet_ms",
            "flooded_ms",
            "ratio",
            "worst",
            "quiet_loop_ms",
            "flooded_loop_ms",
            "loop_ratio",
        )
        rows = [[name, *(f"{each[key]:.2f}" for key in names)] for name, each in found.items()]
        heads = [
            "flood",
            "quiet, ms",
            "flooded, ms",
            "ratio",
            "worst round",
            "quiet, loop ms",
            "flooded, loop ms",
            "loop ratio",
        ]
        print(report.table(heads, rows) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
