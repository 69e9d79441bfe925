"""What one caller pays while another floods: the wait for a small read, quiet and flooded in turn.

    python benchmarks/flood.py [--rounds N] [--reads N] [--only NAME] [--json]

    host       a tool in a host that says 20,000 things, as fast as they can be written
    command    a command that prints without end
    socket     a peer that sends requests without waiting for their answers

One `callgate serve`. In every round the reads are timed while nothing else runs, and then while a
flood does; the ratio is taken within a round, and the median of the rounds is what counts.
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
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from benchmarks import report

PARTS = 20_000
PLUGIN = f'''
from callgate import ToolContext, tool

@tool(side_effects="none")
def flood(context: ToolContext) -> int:
    """Say much."""
    for number in range({PARTS}):
        context.output(f"part {{number}}\\n", "text")
    return {PARTS}
'''
SETTINGS = """
[hosts.flood]
command = ["{python}", "-P", "-m", "callgate", "host", "{plugin}"]
effects = {{ flood = "none" }}
"""
LIMIT_S = 300.0
FLOWS = 64 * 1024
"""Bytes of a flood that have come when it is in full flow."""


class Peer:
    def __init__(self, path: Path, workspace: Path) -> None:
        self._workspace = str(workspace)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(LIMIT_S)
        self.socket.connect(str(path))
        self._file = self.socket.makefile("rb")

    def send(self, tool: str, **arguments: Any) -> None:
        info = {"cwd": self._workspace}
        frame = {"type": "tool_call", "requestId": "r", "toolName": tool, "arguments": arguments}
        self.socket.sendall(json.dumps({**frame, "clientInfo": info}).encode() + b"\n")

    def until(self, kind: str) -> dict[str, Any]:
        for line in self._file:
            frame: dict[str, Any] = json.loads(line)
            if frame["type"] == kind:
                return frame
        raise EOFError

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        self.send(tool, **arguments)
        return self.until("tool_result")

    def close(self) -> None:
        self.socket.close()


@contextmanager
def instance(base: Path) -> Iterator[tuple[Path, Path]]:
    """The socket of an instance, and the workspace that it serves."""
    home, workspace = base / "h", base / "ws"
    workspace.mkdir()
    (workspace / "a.txt").write_text("hello\n")
    plugin = workspace / "plugin.py"
    plugin.write_text(PLUGIN)
    home.mkdir(mode=0o700)
    (home / "settings.toml").write_text(SETTINGS.format(python=sys.executable, plugin=plugin))
    served = subprocess.Popen(
        [sys.executable, "-m", "callgate", "serve", "--mode", "write", "--no-http"], cwd=workspace,
        env={**os.environ, "CALLGATE_HOME": str(home)}, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert served.stdout is not None
        served.stdout.readline()
        yield home / "run" / "callgate.sock", workspace
    finally:
        served.terminate()
        served.wait()


Flood = Callable[[Peer, threading.Event, threading.Event], None]
"""Floods from a connection of its own, until it is told that it is enough; then it may wait for
its result."""


def by_host(peer: Peer, enough: threading.Event, ended: threading.Event) -> None:
    peer.send("flood")
    ended.wait(LIMIT_S)  # the host works on one call at a time


def by_command(peer: Peer, enough: threading.Event, ended: threading.Event) -> None:
    peer.send("shell", command="yes the same line again and again")
    enough.wait()


def by_socket(peer: Peer, enough: threading.Event, ended: threading.Event) -> None:
    frame = b'{"type":"list_tools","requestId":"%d"}\n'
    numbers = iter(range(1 << 60))
    while not enough.is_set():
        peer.socket.sendall(b"".join(frame % next(numbers) for _ in range(1_000)))


FLOODS: dict[str, Flood] = {"host": by_host, "command": by_command, "socket": by_socket}


@contextmanager
def flooding(flood: Flood, path: Path, workspace: Path) -> Iterator[None]:
    peer, enough = Peer(path, workspace), threading.Event()

    flows, ended = threading.Event(), threading.Event()

    def read() -> None:
        got = 0
        with suppress(OSError):
            while data := peer.socket.recv(1 << 20):
                got += len(data)
                if got > FLOWS:
                    flows.set()
                if b'"type":"tool_result"' in data:
                    ended.set()

    def run() -> None:
        with suppress(OSError):
            flood(peer, enough, ended)

    threads = [threading.Thread(target=each, daemon=True) for each in (read, run)]
    for thread in threads:
        thread.start()
    assert flows.wait(LIMIT_S)
    try:
        yield
    finally:
        enough.set()
        threads[1].join()
        peer.socket.shutdown(socket.SHUT_RDWR)
        threads[0].join()
        peer.close()


def waits(peer: Peer, reads: int) -> list[float]:
    """Milliseconds of each read."""
    found = []
    for _ in range(reads):
        began = time.perf_counter()
        assert peer.call("read_file", path="a.txt")["result"]["ok"]
        found.append((time.perf_counter() - began) * 1000)
    return found


def measure(rounds: int, reads: int, only: str | None) -> dict[str, dict[str, float]]:
    found = {}
    with (
        tempfile.TemporaryDirectory(prefix="cg", dir="/var/tmp") as directory,
        instance(Path(directory)) as (path, workspace),
    ):
        peer = Peer(path, workspace)
        waits(peer, reads)
        for name, flood in FLOODS.items():
            if only in (None, name):
                found[name] = _rounds(peer, flood, path, workspace, rounds, reads)
        peer.close()
    return found


def _rounds(
    peer: Peer, flood: Flood, path: Path, workspace: Path, rounds: int, reads: int
) -> dict[str, float]:
    quiet, flooded = [], []
    for _ in range(rounds):
        quiet.append(median(waits(peer, reads)))
        with flooding(flood, path, workspace):
            flooded.append(median(waits(peer, reads)))
        waits(peer, reads)  # what is left of it passes
    ratios = [one / other for one, other in zip(flooded, quiet, strict=True)]
    return {
        "quiet_ms": round(median(quiet), 2),
        "flooded_ms": round(median(flooded), 2),
        "ratio": round(median(ratios), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--reads", type=int, default=40)
    parser.add_argument("--only", choices=list(FLOODS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.rounds, options.reads, options.only)
    if not options.json:
        rows = [
            [name, f"{each['quiet_ms']:.2f}", f"{each['flooded_ms']:.2f}", f"{each['ratio']:.2f}"]
            for name, each in found.items()
        ]
        print(report.table(["flood", "quiet, ms", "flooded, ms", "ratio"], rows) + "\n")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
