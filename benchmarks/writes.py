"""What a durable write costs: `write_file` over the socket and through `Gate`, beside a bare loop.

    python benchmarks/writes.py [--rounds N] [--calls N] [--directory DIR] [--only NAME] [--json]

The bare loop writes a temporary file, syncs it, renames it, syncs the directory, appends a line to
one log and waits for a sync that covers it, which all callers share; each caller is a thread. The
server of the socket is a process of its own, and each caller has a connection. Every figure is a
median over rounds, ratios are taken within a round, and what is compared is measured in turn on
the same disk, which should be a real one: `--directory` says where.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from benchmarks import report
from benchmarks.socket_calls import running
from callgate import Gate
from callgate.audit.syncing import GroupSync
from callgate.core.calls import CallerKind, ToolCall
from callgate.core.sessions import Session

CALLERS = (1, 64)
CONTENT = "x" * 1000
Measure = Callable[[str, int, int], float]
"""Directory, callers and calls of each: seconds for all."""


def bare(directory: str, callers: int, calls: int) -> float:
    log = os.open(os.path.join(directory, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    names = os.open(directory, os.O_RDONLY)
    group = GroupSync(lambda: os.fsync(log))

    def write(caller: int) -> None:
        for turn in range(calls):
            path = os.path.join(directory, f"{caller}-{turn}")
            file = os.open(f"{path}.tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            os.write(file, CONTENT.encode())
            os.fsync(file)
            os.close(file)
            os.rename(f"{path}.tmp", path)
            os.fsync(names)
            os.write(log, f"{path}\n".encode())
            group.request().result()

    with ThreadPoolExecutor(callers) as threads:
        begun = time.perf_counter()
        list(threads.map(write, range(callers)))
        taken = time.perf_counter() - begun
    group.close()
    os.close(names)
    os.close(log)
    return taken


def through_gate(directory: str, callers: int, calls: int) -> float:
    return asyncio.run(_through_gate(directory, callers, calls, "synced"))


def through_fast_gate(directory: str, callers: int, calls: int) -> float:
    return asyncio.run(_through_gate(directory, callers, calls, "fast"))


async def _through_gate(directory: str, callers: int, calls: int, files: str) -> float:
    workspace, home = os.path.join(directory, "ws"), os.path.join(directory, "home")
    os.mkdir(workspace)
    os.mkdir(home, 0o700)
    with open(os.path.join(home, "settings.toml"), "w") as settings:
        settings.write(f'[durability]\nfiles = "{files}"\n')
    async with Gate(workspace, mode="write", home=home) as gate:

        async def write(caller: int) -> None:
            session = Session(workspace=workspace, mode=gate.session.mode)
            for turn in range(-1, calls):
                if turn == 0:  # modules, threads and the session's row are there by now
                    await ready.wait()
                result = await gate.runtime.calls.run_promptly(
                    ToolCall(
                        tool="write_file",
                        arguments={"path": f"{caller}-{turn}", "content": CONTENT},
                        session=session,
                        caller=CallerKind.LIBRARY,
                    )
                )
                if not result.ok:
                    raise RuntimeError(str(result.error))

        ready = asyncio.Barrier(callers + 1)
        async with asyncio.TaskGroup() as group:
            for caller in range(callers):
                group.create_task(write(caller))
            await ready.wait()
            begun = time.perf_counter()
        return time.perf_counter() - begun


def over_socket(directory: str, callers: int, calls: int) -> float:
    workspace, home = os.path.join(directory, "ws"), os.path.join(directory, "home")
    os.mkdir(workspace)
    os.mkdir(home, 0o700)
    command = [sys.executable, "-m", "callgate", "serve", "--mode", "write", "--no-http"]
    env = {**os.environ, "CALLGATE_HOME": home}
    path = os.path.join(home, "run", "callgate.sock")
    with running("callgate", [*command, "--workspace", workspace], path, env):
        return asyncio.run(_over_socket(path, callers, calls))


async def _over_socket(path: str, callers: int, calls: int) -> float:
    loop, here = asyncio.get_running_loop(), os.getcwd()
    os.chdir(os.path.dirname(path))  # a socket's path may have 107 bytes only
    try:
        peers = [
            (await loop.create_unix_connection(lambda n=n: Caller(n), os.path.basename(path)))[1]  # type: ignore[misc]
            for n in range(callers)
        ]
    finally:
        os.chdir(here)
    await asyncio.gather(*(peer.write(-1, 0) for peer in peers))
    begun = time.perf_counter()
    await asyncio.gather(*(peer.write(0, calls) for peer in peers))
    return time.perf_counter() - begun


class Caller(asyncio.Protocol):
    """One connection with one call in flight."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._received = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def write(self, turn: int, end: int) -> asyncio.Future[None]:
        """Write a file for each turn, one after the other."""
        self._turn, self._end = turn, end
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._send()
        return self._done

    def _send(self) -> None:
        arguments = {"path": f"{self._number}-{self._turn}", "content": CONTENT}
        call = {"type": "tool_call", "protocol": 1, "toolName": "write_file"}
        frame = {**call, "requestId": str(self._turn), "arguments": arguments}
        self._transport.write(json.dumps(frame).encode() + b"\n")

    def data_received(self, data: bytes) -> None:
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            if answer["type"] != "tool_result" or "error" in answer:
                self._done.set_exception(RuntimeError(line.decode()))
                return
            self._turn += 1
            if self._turn < self._end:
                self._send()
            else:
                self._done.set_result(None)


BARE = "bare loop"
CONTESTANTS: dict[str, Measure] = {
    BARE: bare,
    "write_file over the socket": over_socket,
    "write_file through Gate": through_gate,
    'the same, files = "fast"': through_fast_gate,
}


def measure(
    contestants: dict[str, Measure], rounds: int, calls: int, directory: str | None
) -> dict[str, dict[int, list[float]]]:
    """Contestant to callers to writes a second in each round."""
    found: dict[str, dict[int, list[float]]] = {
        name: {callers: [] for callers in CALLERS} for name in contestants
    }
    for _ in range(rounds):
        for callers in CALLERS:
            each = max(1, calls // callers)
            for name, run in contestants.items():
                with tempfile.TemporaryDirectory(dir=directory) as place:
                    found[name][callers].append(callers * each / run(place, callers, each))
    return found


def to_bare(found: dict[str, dict[int, list[float]]], name: str, callers: int) -> float:
    pairs = zip(found[name][callers], found[BARE][callers], strict=True)
    return median(rate / bare for rate, bare in pairs)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=640, help="of all callers together")
    parser.add_argument("--directory", help="on the disk to measure")
    parser.add_argument("--only", help="beside the bare loop, contestants whose name has this")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    chosen = {
        name: run
        for name, run in CONTESTANTS.items()
        if name == BARE or not options.only or options.only in name
    }
    found = measure(chosen, options.rounds, options.calls, options.directory)
    rates = {name: {n: median(each[n]) for n in CALLERS} for name, each in found.items()}
    if not options.json:
        place = options.directory or tempfile.gettempdir()
        head = [cell for n in CALLERS for cell in (f"{n} callers", "to the bare loop")]
        rows = [
            [
                name,
                *(
                    cell
                    for n in CALLERS
                    for cell in (f"{rates[name][n]:,.0f}", f"{to_bare(found, name, n):.2f}")
                ),
            ]
            for name in found
        ]
        print(report.table([f"writes a second on {file_system(place)}", *head], rows))
    print(json.dumps(rates))
    return 0


def file_system(place: str) -> str:
    """The kind of a directory's file system and its device, as the system names them."""
    command = ["df", "--output=fstype,source", place]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return " ".join(ran.stdout.splitlines()[-1].split()) if ran.returncode == 0 else place


if __name__ == "__main__":
    sys.exit(main())
