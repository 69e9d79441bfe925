"""What several servers on one PostgreSQL cost, beside a bare group-committing loop on the same one.

    python benchmarks/scale.py [--only NAME]... [--rounds N] [--url URL] [--quick] [--json]

The database is started here, with fsync on, unless `--url` names one. Every figure is a median over
rounds; what is compared is measured in turn, round by round. Each server is a process of its own.

    appends    durable events, 64 writers in each of 1 and 2 processes, beside the bare loop
    calls      start, end and record of calls, 64 at once in each of 2 processes
    servers    whole calls through two `callgate serve`, over their sockets, with a tool that writes
    hints      from a commit in one process to its event being read in another
    takeover   from the end of a killed server's connections to its sessions being owned elsewhere
    growth     all of the above with 10,000 idle sessions and 1,000,000 events in the store
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import psycopg

from benchmarks import report
from benchmarks.store import event
from callgate.core.effects import SideEffects
from callgate.core.events import CALLED, COMPLETED
from callgate.core.ids import call_id, session_id
from callgate.core.ops import Acquire, Append, ClearOutbox, FinishCall, NewSession, StartCall
from callgate.core.stores import SessionLocked
from callgate.features.fleet.postgres import PostgresLocation
from callgate.features.fleet.postgres.store import PostgresStore

SECTIONS = ("appends", "calls", "servers", "hints", "takeover", "growth")
WRITERS = 64
_CLEARED = 100
"""Calls whose records are cleared at once, as the runtime does it."""
_RECORD = json.dumps({"id": "audit_" + "0" * 26, "tool": "write_file", "args": "x" * 400})


class Effort(NamedTuple):
    rounds: int = 5
    appends: int = 12_800
    calls: int = 6_400
    whole: int = 3_200
    hints: int = 200
    takeovers: int = 10
    sessions: int = 10_000
    events: int = 1_000_000


QUICK = Effort(2, 640, 320, 128, 20, 2, 100, 5_000)


def main(argv: Sequence[str] | None = None) -> int:
    if argv is None and len(sys.argv) > 1 and sys.argv[1] == "child":
        return asyncio.run(_child(sys.argv[2], PostgresLocation(**json.loads(sys.argv[3]))))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=SECTIONS)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--url", help="of a database to use; a schema is made in it")
    parser.add_argument("--quick", action="store_true", help="a look at whether it works")
    parser.add_argument("--json", action="store_true", help="only the line of JSON")
    options = parser.parse_args(argv)
    effort = QUICK if options.quick else Effort()
    if options.rounds is not None:
        effort = effort._replace(rounds=options.rounds)
    values: dict[str, Any] = {"machine": report.machine(), "load_before": os.getloadavg()}
    with _database(options.url) as url:
        for name in options.only or SECTIONS:
            location = PostgresLocation(url=url, schema=f"bench_{name}_{os.getpid()}")
            values[name] = MEASURES[name](location, effort)
            _drop(location)
            if not options.json:
                print(name)
                for what, value in values[name].items():
                    print(f"  {what:<66} {value:>10,}")
                print(flush=True)
    values["load_after"] = os.getloadavg()
    print(json.dumps(values, ensure_ascii=False))
    return 0


@contextmanager
def _database(url: str | None) -> Iterator[str]:
    if url is not None:
        yield url
        return
    from tests.postgres import running

    with running(durable=True) as cluster:
        yield cluster.url


def _drop(location: PostgresLocation) -> None:
    with psycopg.connect(location.url, autocommit=True) as db:
        db.execute(f'drop schema if exists "{location.schema}" cascade')


# Processes that do a part of the work: `go N` on their standard input, a line of JSON back.


class Child:
    def __init__(self, work: str, location: PostgresLocation) -> None:
        place = json.dumps({"url": location.url, "schema": location.schema})
        self.process = subprocess.Popen(
            [sys.executable, __file__, "child", work, place],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ready = self.read()

    def send(self, line: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("a process of the benchmark ended")
        return json.loads(line)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        self.process.wait()


async def _child(work: str, location: PostgresLocation) -> int:
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str] = asyncio.Queue()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line.strip())

    threading.Thread(target=read, daemon=True).start()
    store = await PostgresStore.open(location)
    act = {"appends": _appending, "calls": _calling, "follow": _following, "own": _owning}[work]
    await act(store, lines)
    return 0


def _say(value: object) -> None:
    print(json.dumps(value), flush=True)


async def _owned_sessions(store: PostgresStore, count: int) -> dict[str, int]:
    fences = {}
    for _ in range(count):
        session = session_id()
        made = NewSession(session=session, workspace="/workspace", at=time.time())
        taken = Acquire(session=session, owner=store.owner, at=time.time())
        _, fences[session] = await store.commit(made, taken)
    return fences


async def _appending(store: PostgresStore, lines: asyncio.Queue[str]) -> None:
    fences = await _owned_sessions(store, WRITERS)

    async def append(session: str) -> None:
        one = Append(session=session, fence=fences[session], events=(event(session),))
        await store.commit(one)

    await _work(fences, lines, append)


async def _calling(store: PostgresStore, lines: asyncio.Queue[str]) -> None:
    fences = await _owned_sessions(store, WRITERS)
    ended: list[str] = []

    async def call(session: str) -> None:
        id, fence = call_id(), fences[session]
        start = StartCall(
            session=session,
            fence=fence,
            call=id,
            owner=store.owner,
            tool="write_file",
            side_effects=SideEffects.WRITE,
            arguments_sha256="a" * 64,
            event=event(session, CALLED, id),
        )
        await store.commit(start)
        end = event(session, COMPLETED, id)
        await store.commit(
            FinishCall(
                session=session, fence=fence, call=id, owner=store.owner, event=end, record=_RECORD
            )
        )
        ended.append(id)
        if len(ended) >= _CLEARED:
            store.commit(ClearOutbox(calls=tuple(ended)))
            ended.clear()

    await _work(fences, lines, call)


async def _work(
    fences: dict[str, int], lines: asyncio.Queue[str], act: Callable[[str], Any]
) -> None:
    """`go N`: N times, one at a time in each session."""
    _say("ready")
    while True:
        left = int((await lines.get()).split()[1])
        items = iter(range(left))

        async def work(session: str, items: Iterator[int] = items) -> None:
            for _ in items:
                await act(session)

        started, cpu = time.perf_counter(), time.process_time()
        async with asyncio.TaskGroup() as group:
            for session in fences:
                group.create_task(work(session))
        _say([time.perf_counter() - started, time.process_time() - cpu])


async def _following(store: PostgresStore, lines: asyncio.Queue[str]) -> None:
    """Says when it has read each event, by the clock that all processes share."""
    cursor = (await store.behind()).cursor
    _say("ready")
    with store.wake() as hint:
        while True:
            page = await store.read_all(cursor)
            cursor = page.cursor
            for each in page.events:
                _say([each.id, time.monotonic()])
            if not page.events:
                await hint.wait(0.02 if page.pending else 2.0)


async def _owning(store: PostgresStore, lines: asyncio.Queue[str]) -> None:
    _say([*await _owned_sessions(store, WRITERS)])
    await lines.get()


# Appends, calls.


def measure_appends(location: PostgresLocation, effort: Effort) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for processes in (1, 2):
        ours: list[float] = []
        bare: list[float] = []
        with ExitStack() as stack:
            children = [stack.enter_context(Child("appends", location)) for _ in range(processes)]
            for _ in range(effort.rounds):
                ours.append(_rate(children, effort.appends)[0])
                bare.append(_bare_rate(location, effort.appends, processes))
        name = f"{processes} process{'es' if processes > 1 else ''}"
        found[f"events/s, {WRITERS} writers, {name}"] = round(median(ours))
        found[f"events/s, bare loop, {WRITERS} to a commit, {name}"] = round(median(bare))
        found[f"ours / bare, {name}"] = _ratio(ours, bare)
    return found


def measure_calls(location: PostgresLocation, effort: Effort) -> dict[str, Any]:
    rates, costs = [], []
    with Child("calls", location) as one, Child("calls", location) as other:
        for _ in range(effort.rounds):
            rate, cpu = _rate([one, other], effort.calls)
            rates.append(rate)
            costs.append(cpu)
    return {
        f"calls/s, {WRITERS} at once in each of 2 processes": round(median(rates)),
        "µs of CPU a call in the servers": round(median(costs) * 1e6),
    }


def _rate(children: Sequence[Child], count: int) -> tuple[float, float]:
    """How many a second, of all together, and the seconds of CPU each."""
    each = count // len(children)
    started = time.perf_counter()
    for child in children:
        child.send(f"go {each}")
    answers = [child.read() for child in children]
    took = time.perf_counter() - started
    return count / took, sum(cpu for _, cpu in answers) / count


def _bare_rate(location: PostgresLocation, count: int, processes: int) -> float:
    """Threads would share a lock that processes do not: each loop is a process."""
    each = count // processes
    command = [sys.executable, __file__, "bare", location.url, location.schema, str(each)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(processes)]
    took = [float(one.communicate()[0]) for one in running]
    return count / max(took)


def bare_loop(url: str, schema: str, count: int) -> float:
    """The same rows in the same tables, 64 to a commit: what PostgreSQL itself takes."""
    with psycopg.connect(url, autocommit=True) as db:
        base = time.time_ns()
        ords = [base + n for n in range(WRITERS)]
        db.execute(
            f"insert into {schema}.sessions (ord, id, workspace, fence, last_seq, messages,"
            " updated_at, touch, listed, body)"
            " select *, '/w', 0, 0, 0, 0, 0, 0, '{}' from unnest(%s::bigint[], %s::text[])",
            (ords, [session_id() for _ in ords]),
        )
        started = time.perf_counter()
        for seq in range(1, count // WRITERS + 1):
            events = [event(str(ord)) for ord in ords]
            bodies = [json.dumps(each.payload) + " " * 200 for each in events]
            with db.pipeline():
                db.execute("begin")
                db.execute(
                    f"insert into {schema}.events (n, ord, seq, id, body) select"
                    f" nextval('{schema}.event_numbers'), * from unnest(%s::bigint[],"
                    " %s::bigint[], %s::text[], %s::text[])",
                    (ords, [seq] * WRITERS, [each.id for each in events], bodies),
                )
                db.execute(
                    f"update {schema}.sessions set last_seq = %s, updated_at = %s"
                    " where ord = any(%s)",
                    (seq, time.time(), ords),
                )
                db.execute("commit")
        return time.perf_counter() - started


# Whole calls.

_TOOL = '''\
from callgate import tool


@tool(side_effects="write")
async def note(text: str) -> str:
    """Keep a note."""
    return "kept"
'''


def measure_servers(location: PostgresLocation, effort: Effort) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="callgate-benchmark-") as directory,
        ExitStack() as stack,
    ):
        servers = [
            stack.enter_context(_server(Path(directory, name), location)) for name in ("a", "b")
        ]
        found = {}
        for tool, arguments in (("note", {"text": "x"}), ("read_file", {"path": "f.txt"})):
            rates = [
                _call_all(servers, tool, arguments, effort.whole) for _ in range(effort.rounds)
            ]
            found[f"calls/s of {tool}, {WRITERS // 2} at once on each of 2 servers"] = round(
                median(rates)
            )
        return found


@contextmanager
def _server(directory: Path, location: PostgresLocation) -> Iterator[Path]:
    """A server with a home of its own; where that and its workspace are."""
    home, workspace = directory / "home", directory / "work"
    home.mkdir(parents=True, mode=0o700)
    workspace.mkdir()
    (workspace / "f.txt").write_text("hello")
    (home / "tools.py").write_text(_TOOL)
    (home / "settings.toml").write_text(
        f'[store]\nurl = "{location.url}"\nschema = "{location.schema}"\n'
        '[secrets]\nkey_command = "echo 0123456789abcdefghijklmnopqrstuvwxyz"\n'
        f'[tools]\nload = ["{home}/tools.py"]\n'
        '[[policy.rules]]\ndecision = "allow"\ntool = "note"\n'
        "[limits]\nconcurrency = 64\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "callgate", "serve", "--no-http", "--workspace", str(workspace)],
        env={**os.environ, "CALLGATE_HOME": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for_socket(home / "run" / "callgate.sock")
        yield directory
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _wait_for_socket(path: Path) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(path)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError("a server did not start")


def _call_all(servers: Sequence[Path], tool: str, arguments: object, count: int) -> float:
    """Calls a second, of all servers together: their callers are a process for each server."""
    callers = WRITERS // len(servers)
    command = [sys.executable, __file__, "callers", tool, json.dumps(arguments)]
    each = [str(callers), str(count // len(servers))]
    running = [
        subprocess.Popen([*command, path, *each], stdout=subprocess.PIPE) for path in servers
    ]
    took = [float(one.communicate()[0]) for one in running]
    return count / max(took)


async def call_over_socket(
    tool: str, arguments: Any, directory: Path, callers: int, count: int
) -> float:
    from callgate import connect

    items = iter(range(count))
    async with connect(
        socket=directory / "home" / "run" / "callgate.sock", cwd=directory / "work"
    ) as gate:

        async def work() -> None:
            for _ in items:
                result = await gate.call(tool, arguments)
                if not result.ok:
                    raise RuntimeError(result.error)

        await gate.call(tool, arguments)
        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(callers):
                group.create_task(work())
        return time.perf_counter() - started


# Hints, takeover.


def measure_hints(location: PostgresLocation, effort: Effort) -> dict[str, Any]:
    return asyncio.run(_measure_hints(location, effort))


async def _measure_hints(location: PostgresLocation, effort: Effort) -> dict[str, Any]:
    store = await PostgresStore.open(location)
    [(session, fence)] = (await _owned_sessions(store, 1)).items()
    took = []
    with Child("follow", location) as follower:
        for _ in range(effort.hints):
            one = event(session)
            started = time.monotonic()
            await store.commit(Append(session=session, fence=fence, events=(one,)))
            seen = await asyncio.to_thread(follower.read)
            while seen[0] != one.id:
                seen = await asyncio.to_thread(follower.read)
            took.append((seen[1] - started) * 1e3)
    await store.close()
    took.sort()
    return {
        "ms from the commit to the event on another server, median": round(median(took), 2),
        "the same, 95 of 100 are faster": round(took[int(len(took) * 0.95)], 2),
    }


def measure_takeover(location: PostgresLocation, effort: Effort) -> dict[str, Any]:
    return asyncio.run(_measure_takeover(location, effort))


async def _measure_takeover(location: PostgresLocation, effort: Effort) -> dict[str, Any]:
    store = await PostgresStore.open(location)
    await _owned_sessions(store, 1)
    first, all_of_them = [], []
    for _ in range(effort.takeovers):
        child = await asyncio.to_thread(Child, "own", location)
        sessions = child.ready
        child.process.kill()
        child.process.wait()
        started = time.perf_counter()
        await _acquire(store, sessions[0])
        first.append((time.perf_counter() - started) * 1e3)
        await asyncio.gather(*(_acquire(store, each) for each in sessions[1:]))
        all_of_them.append((time.perf_counter() - started) * 1e3)
    await store.close()
    return {
        "ms from the end of a killed process to its first session, median": round(median(first), 1),
        f"the same, all of its {WRITERS} sessions": round(median(all_of_them), 1),
    }


async def _acquire(store: PostgresStore, session: str) -> None:
    while True:
        try:
            await store.commit(Acquire(session=session, owner=store.owner, at=time.time()))
            return
        except SessionLocked:
            await asyncio.sleep(0.002)


# Growth.


def measure_growth(location: PostgresLocation, effort: Effort) -> dict[str, Any]:
    """Ratios: with much in the store, to without; measured in turn, round by round."""
    large = PostgresLocation(url=location.url, schema=f"{location.schema}_full")
    asyncio.run(_fill(large, effort))
    rounds = [
        [_all_of_it(each, effort._replace(rounds=1)) for each in (location, large)]
        for _ in range(effort.rounds)
    ]
    _drop(large)
    found = {
        f"{name}: full / empty": _ratio(
            [full[name] for _, full in rounds], [empty[name] for empty, _ in rounds]
        )
        for name in rounds[0][0]
    }
    return {"sessions": effort.sessions, "events": effort.events, **found}


def _all_of_it(location: PostgresLocation, effort: Effort) -> dict[str, float]:
    found: dict[str, float] = {}
    for measure in (measure_appends, measure_calls, measure_hints, measure_takeover):
        found |= measure(location, effort)
    return {name: value for name, value in found.items() if "bare" not in name}


async def _fill(location: PostgresLocation, effort: Effort) -> None:
    store = await PostgresStore.open(location)
    each = effort.events // effort.sessions
    for begin in range(0, effort.sessions, 50):
        ids = [session_id() for _ in range(min(50, effort.sessions - begin))]
        await store.commit(*(NewSession(session=id, workspace="/w", at=time.time()) for id in ids))
        await store.commit(
            *(Append(session=id, events=tuple(event(id) for _ in range(each))) for id in ids)
        )
    await store.close()
    with psycopg.connect(location.url, autocommit=True) as db:
        db.execute(f"analyze {location.schema}.events, {location.schema}.sessions")


def _ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return round(median(one / other for one, other in zip(ours, theirs, strict=True)), 2)


MEASURES = {
    "appends": measure_appends,
    "calls": measure_calls,
    "servers": measure_servers,
    "hints": measure_hints,
    "takeover": measure_takeover,
    "growth": measure_growth,
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["bare"]:
        print(bare_loop(sys.argv[2], sys.argv[3], int(sys.argv[4])))
    elif sys.argv[1:2] == ["callers"]:
        _, _, tool, arguments, path, callers, count = sys.argv
        print(
            asyncio.run(
                call_over_socket(tool, json.loads(arguments), Path(path), int(callers), int(count))
            )
        )
    else:
        sys.exit(main())
