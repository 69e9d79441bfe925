"""The same durable call through callgate and through engines for workflows, round by round.

    python benchmarks/workflow_engines.py [--rounds N] [--calls N] [--json]

A call is started, its step runs, its end is on the disk, and its caller gets the answer; 64 at
once. callgate: two servers on one PostgreSQL (fsync on), over their sockets, with policy and audit.
DBOS: one process on the same PostgreSQL. Temporal: its development server with a file. Restate: its
server. Those are installed by `sh scripts/get_engines.sh`; one that is not there is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

from benchmarks import report, scale
from callgate.features.fleet.postgres import PostgresLocation
from tests.postgres import running

ROOT = Path(__file__).resolve().parent.parent
ENGINES = ROOT / ".build" / "engines"
SERVER = ENGINES / "node_modules/@restatedev/restate-server-linux-x64/bin/restate-server"
_LIMIT_S = 300.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=1_000)
    parser.add_argument("--json", action="store_true", help="only the line of JSON")
    options = parser.parse_args(argv)
    load = os.getloadavg()
    with ExitStack() as stack:
        measures = _open(stack, options.calls)
        rates: dict[str, list[float]] = {name: [] for name in measures}
        for _ in range(options.rounds):
            for name, measure in measures.items():
                rates[name].append(measure())
    found = {name: round(median(each), 1) for name, each in rates.items()}
    if not options.json:
        for name, rate in found.items():
            print(f"  {name:<40} {rate:>10,} calls/s")
    values = {"machine": report.machine(), "load": load, "calls_per_s": found, "rounds": rates}
    print(json.dumps(values))
    return 0


def _open(stack: ExitStack, calls: int) -> dict[str, Callable[[], float]]:
    """What is measured, by name, each ready to make so many calls."""
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="callgate-engines-")))
    cluster = stack.enter_context(running(durable=True))
    location = PostgresLocation(url=cluster.url, schema="engines")
    servers = [
        stack.enter_context(scale._server(directory / name, location)) for name in ("a", "b")
    ]
    measures: dict[str, Callable[[], float]] = {
        "callgate": lambda: scale._call_all(servers, "note", {"text": "x"}, calls)
    }
    if _has("dbos"):
        database = cluster.url.replace("/postgres?", "/dbos?")
        measures["DBOS"] = lambda: _peer("dbos_calls.py", database, calls=calls)
    if _has("temporalio") and (ENGINES / "bin" / "temporal").exists():
        address = stack.enter_context(_temporal(directory))
        measures["Temporal"] = lambda: _peer("temporal_calls.py", address, calls=calls // 10)
    if _has("restate") and SERVER.exists():
        ingress, administration = stack.enter_context(_restate(directory))
        measures["Restate"] = lambda: _peer(
            "restate_calls.py", ingress, administration, calls=calls
        )
    return measures


def _has(package: str) -> bool:
    return any(ENGINES.glob(f"lib/python3*/site-packages/{package}"))


def _peer(program: str, *places: str, calls: int) -> float:
    command = [ENGINES / "bin" / "python", ROOT / "benchmarks" / "engines" / program]
    words = [*places, str(calls), str(scale.WRITERS)]
    ran = subprocess.run(
        [*command, *words], capture_output=True, text=True, timeout=_LIMIT_S, check=True
    )
    return float(ran.stdout.split()[-1])


@contextmanager
def _temporal(directory: Path) -> Iterator[str]:
    port = _free_port()
    words = ["server", "start-dev", "--headless", "--ip", "127.0.0.1", "--port", str(port)]
    file = ["--db-filename", str(directory / "temporal.db"), "--log-level", "error"]
    with _running([str(ENGINES / "bin" / "temporal"), *words, *file], port):
        yield f"127.0.0.1:{port}"


@contextmanager
def _restate(directory: Path) -> Iterator[tuple[str, str]]:
    ingress, administration, node = _free_port(), _free_port(), _free_port()
    settings = {
        "RESTATE_BASE_DIR": str(directory / "restate"),
        "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress}",
        "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{administration}",
        "RESTATE_BIND_ADDRESS": f"127.0.0.1:{node}",
    }
    with _running([str(SERVER), "--node-name", "one"], ingress, administration, **settings):
        yield f"127.0.0.1:{ingress}", f"127.0.0.1:{administration}"


@contextmanager
def _running(command: Sequence[str], *ports: int, **environment: str) -> Iterator[None]:
    """A server that listens."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 60
        for port in ports:
            while not _listens(port):
                assert process.poll() is None and time.monotonic() < until, command[0]
                time.sleep(0.1)
        yield
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
