"""What the store on disk costs: durable events, replay, a large file, the wait before a call.

    python benchmarks/store.py [--only NAME]... [--rounds N] [--quick] [--json]

Every figure is a median over rounds, and what is compared is measured in turn, round by round,
on the same disk. The bare loops write the same rows to the same tables with the same settings,
without an event loop, a thread or a check: what SQLite itself takes.
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
from collections.abc import Awaitable, Callable, Sequence
from statistics import median, quantiles
from typing import Any, NamedTuple

if not __package__:  # run as a file: its own directory is no place to import from
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import msgspec

from benchmarks import report
from callgate.core.effects import SideEffects
from callgate.core.events import CALLED, COMPLETED, Event
from callgate.core.ids import call_id, session_id, ulid
from callgate.core.ops import Append, FinishCall, NewSession, StartCall
from callgate.storage.sqlite.files import Location, open_writer
from callgate.storage.sqlite.store import SqliteStore
from callgate.storage.sqlite.tables import position_of

SECTIONS = ("appends", "replay", "large", "calls", "hints")
WRITERS = 64


class Scale(NamedTuple):
    rounds: int = 7
    appends: int = 12_800
    alone: int = 300
    """Events with one commit each."""
    replayed: int = 100_000
    sessions: int = 10_000
    events: int = 1_000_000
    calls: int = 1_280


QUICK = Scale(rounds=2, appends=640, alone=20, replayed=500, sessions=20, events=400, calls=64)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, add_help=True)
    parser.add_argument("--only", action="append", choices=SECTIONS)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--quick", action="store_true", help="a look at whether it works")
    parser.add_argument("--json", action="store_true", help="only the line of JSON")
    options = parser.parse_args(argv)
    scale = QUICK if options.quick else Scale()
    if options.rounds is not None:
        scale = scale._replace(rounds=options.rounds)
    values: dict[str, Any] = {"machine": report.machine(), "load_before": os.getloadavg()}
    for name in options.only or SECTIONS:
        with tempfile.TemporaryDirectory(prefix="callgate-benchmark-") as directory:
            values[name] = asyncio.run(MEASURES[name](directory, scale))
        if not options.json:
            print(name)
            for what, value in values[name].items():
                print(f"  {what:<52} {value:>12,}")
            print(flush=True)
    values["load_after"] = os.getloadavg()
    print(json.dumps(values, ensure_ascii=False))
    return 0


def event(session: str, type: str = CALLED, call: str = "") -> Event:
    """Of the size of a real one."""
    return Event(
        id=ulid(),
        timestamp=time.time(),
        session_id=session,
        type=type,
        actor="agent",
        payload={
            "tool_name": "write_file",
            "input_hash": "a" * 64,
            "input_size_bytes": 222,
            "side_effects": "write",
            "tool_use_id": call,
            "call_id": call,
        },
    )


async def sessions_in(store: SqliteStore, count: int) -> list[str]:
    ids = [session_id() for _ in range(count)]
    for begin in range(0, count, 1_000):
        await store.commit(
            *(
                NewSession(session=id, workspace="/workspace", title="A title", at=time.time())
                for id in ids[begin : begin + 1_000]
            )
        )
    return ids


async def spread(items: Sequence[Any], act: Callable[[Any], Awaitable[None]]) -> float:
    """Do something with each, `WRITERS` at once, each waiting for its own; the seconds."""
    rest = iter(items)

    async def work() -> None:
        for item in rest:
            await act(item)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(WRITERS):
            group.create_task(work())
    return time.perf_counter() - started


# Durable events per second.


async def measure_appends(directory: str, scale: Scale) -> dict[str, Any]:
    ours: list[float] = []
    bare: list[float] = []
    alone: list[float] = []
    for round in range(scale.rounds):
        home = os.path.join(directory, f"ours-{round}")
        ours.append(await _append(home, scale.appends))
        location = Location(home=os.path.join(directory, f"bare-{round}"))
        bare.append(_bare_loop(location, scale.appends, WRITERS))
        location = Location(home=os.path.join(directory, f"alone-{round}"))
        alone.append(_bare_loop(location, scale.alone, 1))
    return {
        f"events/s, {WRITERS} writers, each waits for the disk": round_to(median(ours)),
        f"events/s, bare loop, {WRITERS} to a commit": round_to(median(bare)),
        "events/s, bare loop, one commit each": round_to(median(alone)),
        "ours / bare, median of the rounds": ratio(ours, bare),
        "ours / one commit each": ratio(ours, alone),
    }


async def _append(home: str, count: int) -> float:
    async with await SqliteStore.open(home) as store:
        sessions = await sessions_in(store, WRITERS)
        each = [sessions[n % WRITERS] for n in range(count)]

        async def append(session: str) -> None:
            await store.commit(Append(session=session, events=(event(session),)))

        return count / await spread(each, append)


def _bare_loop(location: Location, count: int, batch: int) -> float:
    db = open_writer(location)
    ids = [session_id() for _ in range(WRITERS)]
    db.executemany(
        "insert into sessions values (?, ?, '/w', null, null, 0, 0, 0, 0, ?, '{}')",
        [(ord, id, ord) for ord, id in enumerate(ids, 1)],
    )
    started = time.perf_counter()
    for begin in range(0, count, batch):
        events, sessions = [], []
        for n in range(begin, begin + batch):
            ord, seq = n % WRITERS + 1, n // WRITERS + 1
            one = event(ids[ord - 1])
            text = msgspec.json.encode(one).decode()
            events.append((n + 1, position_of(ord, seq), one.id, text))
            sessions.append((seq, one.timestamp, WRITERS + n + 1, ord))
        db.execute("begin immediate")
        db.executemany("insert into events values (?, ?, ?, ?)", events)
        db.executemany(
            "update sessions set last_seq = ?, updated_at = ?, touch = ? where ord = ?", sessions
        )
        db.execute("commit")
    took = time.perf_counter() - started
    db.close()
    return count / took


# Replay.


async def measure_replay(directory: str, scale: Scale) -> dict[str, Any]:
    async with await SqliteStore.open(directory) as store:
        [session] = await sessions_in(store, 1)
        for _ in range(0, scale.replayed, 500):
            await store.commit(
                Append(session=session, events=tuple(event(session) for _ in range(500)))
            )
        took, first = [], []
        for _ in range(scale.rounds):
            started, read = time.perf_counter(), 0
            while page := await store.read_events(session, after=read):
                if not read:
                    first.append(time.perf_counter() - started)
                read += len(page)
            took.append(time.perf_counter() - started)
            assert read == -(-scale.replayed // 500) * 500
    return {
        f"seconds to replay {read:,} events": round(median(took), 3),
        "events/s replayed": round_to(read / median(took)),
        "ms to the first page of 1,000": round(median(first) * 1e3, 2),
    }


# A large file.


async def measure_large(directory: str, scale: Scale) -> dict[str, Any]:
    async with await SqliteStore.open(directory) as store:
        sessions = await sessions_in(store, scale.sessions)
        each = -(-scale.events // scale.sessions)
        for begin in range(0, len(sessions), 20):
            await store.commit(
                *(
                    Append(session=id, events=tuple(event(id) for _ in range(each)))
                    for id in sessions[begin : begin + 20]
                )
            )
    found: dict[str, list[float]] = {}
    for _ in range(scale.rounds):
        started = time.perf_counter()

        def lap(what: str, started: float = started) -> None:
            found.setdefault(what, []).append((time.perf_counter() - started) * 1e3)

        store = await SqliteStore.open(directory)
        lap("ms to open")
        await store.list_sessions("/workspace")
        lap("ms to open and list 50 sessions")
        await store.read_events(sessions[len(sessions) // 2])
        lap("ms to open, list and read a session")
        one = sessions[len(sessions) // 3]
        await store.commit(Append(session=one, events=(event(one),)))
        lap("ms to open, list, read and commit durably")
        await store.close()
    size = os.stat(os.path.join(directory, "callgate.db")).st_size
    return {what: round(median(times), 2) for what, times in found.items()} | {
        "MB of file": round(size / 1e6)
    }


# The wait before a call.


async def measure_calls(directory: str, scale: Scale) -> dict[str, Any]:
    async with await SqliteStore.open(directory) as store:
        sessions = await sessions_in(store, WRITERS)
        waits: dict[int, list[float]] = {1: [], WRITERS: []}
        rates: list[float] = []

        def call_by(at_once: int) -> Callable[[str], Awaitable[None]]:
            async def call(session: str) -> None:
                id = call_id()
                started = time.perf_counter()
                await store.commit(_start(store, session, id))
                waits[at_once].append((time.perf_counter() - started) * 1e3)
                end = event(session, COMPLETED, id)
                finish = FinishCall(session=session, call=id, owner=store.owner, event=end)
                if at_once == 1:
                    await store.commit(finish)
                else:  # nobody waits for the end of a call to be on the disk
                    store.commit(finish)

            return call

        for _ in range(scale.rounds):
            one = call_by(1)
            for n in range(max(16, scale.calls // 16)):
                await one(sessions[n % WRITERS])
            each = [sessions[n % WRITERS] for n in range(scale.calls)]
            rates.append(scale.calls / await spread(each, call_by(WRITERS)))
    return {
        f"ms before the tool starts, {at_once} at once, {name}": round(value, 2)
        for at_once, times in waits.items()
        for name, value in (("median", median(times)), ("p95", quantiles(times, n=20)[-1]))
    } | {f"calls/s, {WRITERS} at once, start and end recorded": round_to(median(rates))}


def _start(store: SqliteStore, session: str, id: str) -> StartCall:
    return StartCall(
        session=session,
        call=id,
        owner=store.owner,
        tool="write_file",
        tool_use_id=id,
        side_effects=SideEffects.WRITE,
        arguments_sha256="a" * 64,
        event=event(session, CALLED, id),
    )


# From one process to another.

_ANSWERING = """
import asyncio, sys, time
from benchmarks.store import event
from callgate.core.ops import Append
from callgate.storage.sqlite.store import SqliteStore

async def main(home, session):
    async with await SqliteStore.open(home) as store:
        await store.list_sessions()
        print("ready", flush=True)
        for _ in sys.stdin:
            await store.commit(Append(session=session, events=(event(session),)))
            print(time.monotonic(), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


async def measure_hints(directory: str, scale: Scale) -> dict[str, Any]:
    """From the moment a commit is durable in one process to the event in another."""
    async with await SqliteStore.open(directory) as store:
        [session] = await sessions_in(store, 1)
        other = subprocess.Popen(
            [sys.executable, "-c", _ANSWERING, directory, session],
            env={**os.environ, "PYTHONPATH": sys.path[0]},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        times: list[float] = []
        with store.wake(session) as hint:
            for seen in range(scale.rounds * 10):
                other.stdin.write("\n")
                while not await store.read_events(session, after=seen):
                    await hint.wait()
                arrived = time.monotonic()
                times.append((arrived - float(other.stdout.readline())) * 1e3)
        other.stdin.close()
        other.wait()
        other.stdout.close()
    return {
        "ms from another process's commit to its event, median": round(median(times), 1),
        "the same, worst": round(max(times), 1),
    }


def ratio(ours: Sequence[float], others: Sequence[float]) -> float:
    return round(median(a / b for a, b in zip(ours, others, strict=True)), 2)


def round_to(value: float, digits: int = 3) -> int:
    return int(float(f"{value:.{digits}g}"))


MEASURES: dict[str, Callable[[str, Scale], Awaitable[dict[str, Any]]]] = {
    "appends": measure_appends,
    "replay": measure_replay,
    "large": measure_large,
    "calls": measure_calls,
    "hints": measure_hints,
}

if __name__ == "__main__":
    raise SystemExit(main())
