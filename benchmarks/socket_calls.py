"""What a call over the local socket costs, beside a bare echo of the same bytes on uvloop.

    python benchmarks/socket_calls.py [--against REV] [--rounds N] [--quick] [--json]

Each server is a process of its own, and so is its client, which keeps one call in flight for each
caller. In every round each server does a batch, in turn; ratios are taken within a round. The
echo reads lines and answers each with the very bytes that callgate answers with: no JSON is read,
no tool is called. CPU is what the server's process used for a call, all its threads together; of
it `loop` is what the thread with the event loop used, the rest is the store's writer. With
`--against` the server of another commit does its batches in turn with the others.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from benchmarks import report
from benchmarks.trees import ROOT, checkout, environment

CALLERS = (1, 8, 64)
IDLE = 1_000
TOOL = '''\
from callgate import tool


@tool(side_effects="none")
async def noop() -> str:
    """Do nothing."""
    return "done"
'''
CALL = b'{"type":"tool_call","protocol":1,"requestId":"r1","toolName":"noop","arguments":{}}\n'


class Server(NamedTuple):
    name: str
    path: str
    process: subprocess.Popen[bytes]

    def cpu(self) -> tuple[float, float]:
        """Seconds of all its threads, and of the one with the event loop."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        spent = {
            each.name: int((each / "schedstat").read_text().split()[0]) for each in tasks.iterdir()
        }
        return sum(spent.values()) / 1e9, spent[str(self.process.pid)] / 1e9

    def memory(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


class Batch(NamedTuple):
    calls: int
    seconds: float
    cpu: float
    """Of the server."""
    loop: float

    @property
    def cpu_us(self) -> float:
        return self.cpu / self.calls * 1e6

    @property
    def loop_us(self) -> float:
        return self.loop / self.calls * 1e6

    @property
    def per_second(self) -> float:
        return self.calls / self.seconds


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=8_000, help="in a batch")
    parser.add_argument("--against", metavar="REV", help="another commit, a branch or a tag")
    parser.add_argument("--quick", action="store_true", help="a look at whether it works")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--echo", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.echo:
        echo(*options.echo)
        return 0
    if find_spec("uvloop") is None:
        print("The echo needs uvloop: pip install uvloop, or make bench first.", file=sys.stderr)
        return 1
    rounds, calls = (2, 64) if options.quick else (options.rounds, options.calls)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8_192), hard))
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cg")))
        trees = {"callgate": ROOT}
        if options.against is not None:
            trees[f"callgate at {options.against}"] = stack.enter_context(checkout(options.against))
        found = measure(directory, trees, rounds, calls, 50 if options.quick else IDLE)
    if not options.json:
        show(found)
    print(json.dumps(found))
    return 0


def measure(
    directory: Path, trees: Mapping[str, str], rounds: int, calls: int, idle: int
) -> dict[str, Any]:
    """`trees`: the checkout that each of our servers runs from."""
    with contextlib.ExitStack() as stack:
        ourselves = [stack.enter_context(ours(directory, *each)) for each in trees.items()]
        callgate = ourselves[0]
        servers = [stack.enter_context(bare(directory, answer_of(callgate))), *ourselves]
        found: dict[str, Any] = {"callers": {}}
        for callers in CALLERS:
            batches: dict[str, list[Batch]] = {each.name: [] for each in servers}
            for _ in range(rounds):
                for each in servers:
                    batches[each.name].append(batch(each, callers, calls))
            found["callers"][callers] = figures(batches)
        found["idle"] = with_idle(callgate, rounds, max(calls // 4, 16), idle)
    return found


def figures(batches: dict[str, list[Batch]]) -> dict[str, Any]:
    by = {
        name: {
            "cpu_us": round(median(each.cpu_us for each in found), 1),
            "least_cpu_us": round(min(each.cpu_us for each in found), 1),
            "loop_us": round(median(each.loop_us for each in found), 1),
            "per_second": round(median(each.per_second for each in found)),
        }
        for name, found in batches.items()
    }
    pairs = list(zip(batches["callgate"], batches["echo"], strict=True))
    return {
        **by,
        "cpu_ratio": round(median(a.cpu_us / max(b.cpu_us, 1e-3) for a, b in pairs), 2),
        "throughput_ratio": round(median(a.per_second / b.per_second for a, b in pairs), 2),
    }


def with_idle(server: Server, rounds: int, calls: int, idle: int) -> dict[str, Any]:
    """A call beside connections that lie idle, in turn with one without them."""
    alone, beside, grown = [], [], []
    for _ in range(rounds):
        alone.append(batch(server, 1, calls).seconds / calls)
        before = server.memory()
        peers = [connect(server.path) for _ in range(idle)]
        for peer in peers:  # each is known by the time it is answered
            peer.sendall(b'{"type":"check_alive"}\n')
        for peer in peers:
            peer.recv(4_096)
        grown.append((server.memory() - before) / idle)
        beside.append(batch(server, 1, calls).seconds / calls)
        for peer in peers:
            peer.close()
    return {
        "connections": idle,
        "bytes_each": round(max(grown)),
        "alone_us": round(median(alone) * 1e6, 1),
        "beside_us": round(median(beside) * 1e6, 1),
        "ratio": round(median(b / a for a, b in zip(alone, beside, strict=True)), 2),
    }


def batch(server: Server, callers: int, calls: int) -> Batch:
    """One call in flight for each caller, until all are done."""
    each = max(calls // callers, 1)
    asyncio_run(drive(server.path, callers, min(each, 20)))  # warm
    (cpu, loop), began = server.cpu(), time.perf_counter()
    asyncio_run(drive(server.path, callers, each))
    seconds, (cpu_after, loop_after) = time.perf_counter() - began, server.cpu()
    return Batch(each * callers, seconds, cpu_after - cpu, loop_after - loop)


def asyncio_run(work: Any) -> None:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


class Caller(asyncio.Protocol):
    def __init__(self, calls: int, done: asyncio.Future[None]) -> None:
        self.left, self.done = calls, done

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(CALL)

    def data_received(self, data: bytes) -> None:
        if not data.endswith(b"\n"):
            return
        self.left -= 1
        if self.left:
            self.transport.write(CALL)
        else:
            self.transport.close()
            self.done.set_result(None)


async def drive(path: str, callers: int, calls: int) -> None:
    loop = asyncio.get_running_loop()
    done = [loop.create_future() for _ in range(callers)]
    for each in done:
        await loop.create_unix_connection(lambda each=each: Caller(calls, each), path)  # type: ignore[misc]
    await asyncio.gather(*done)


@contextmanager
def ours(directory: Path, name: str = "callgate", tree: str = ROOT) -> Iterator[Server]:
    # A process that has to compile what it runs is a fifth slower for as long as it lives.
    compile_all = [sys.executable, "-m", "compileall", "-q", os.path.join(tree, "src")]
    subprocess.run(compile_all, check=True)
    base = Path(tempfile.mkdtemp(dir=directory))
    home, workspace = base / "h", base / "ws"
    home.mkdir(mode=0o700)
    workspace.mkdir()
    (home / "noop.py").write_text(TOOL)
    (home / "settings.toml").write_text('[tools]\nload = ["noop.py"]\n')
    command = [sys.executable, "-m", "callgate", "serve", "--workspace", str(workspace)]
    env = {**environment(tree), "CALLGATE_HOME": str(home)}
    with running(name, command, str(home / "run" / "callgate.sock"), env) as server:
        yield server


@contextmanager
def bare(directory: Path, answer: bytes) -> Iterator[Server]:
    path, file = str(directory / "echo.sock"), directory / "answer"
    file.write_bytes(answer)
    command = [sys.executable, os.path.abspath(__file__), "--echo", path, str(file)]
    with running("echo", command, path, dict(os.environ)) as server:
        yield server


@contextmanager
def running(name: str, command: list[str], path: str, env: dict[str, str]) -> Iterator[Server]:
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), f"{name} did not start"
        yield Server(name, path, process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)


def answer_of(server: Server) -> bytes:
    with connect(server.path) as peer:
        peer.sendall(CALL)
        answer = peer.makefile("rb").readline()
    assert b'"content":"done"' in answer, answer
    return answer


def connect(path: str) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(path)
    return peer


class Echo(asyncio.Protocol):
    answer = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(self.answer * data.count(b"\n"))


def echo(path: str, answer: str) -> None:
    import uvloop

    Echo.answer = Path(answer).read_bytes()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        stopped = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stopped.set)
        await loop.create_unix_server(Echo, path)
        print("ready", flush=True)
        await stopped.wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


def show(found: dict[str, Any]) -> None:
    head = ["callers", "server", "CPU, µs", "least", "of it the loop", "calls/s"]
    rows = [
        [
            str(callers),
            name,
            f"{each['cpu_us']:,}",
            f"{each['least_cpu_us']:,}",
            f"{each['loop_us']:,}",
            f"{each['per_second']:,}",
        ]
        for callers, servers in found["callers"].items()
        for name, each in servers.items()
        if isinstance(each, dict)
    ]
    print(report.table(head, rows))
    idle = found["idle"]
    print(
        f"\n{idle['connections']:,} idle connections: {idle['bytes_each']:,} bytes each; a call "
        f"alone {idle['alone_us']:,} µs, beside them {idle['beside_us']:,} µs ({idle['ratio']})\n"
    )


if __name__ == "__main__":
    sys.exit(main())
