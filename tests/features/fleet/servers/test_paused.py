"""A server that is stopped for a while: another takes its sessions over, and its calls have one end each."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from callgate.audit.reading import newest_first
from callgate.core.events import TERMINAL
from callgate.features.fleet.postgres import PostgresLocation
from tests.features.fleet.servers.clusters import KEY_VARIABLE, LIMIT_S, SECRETS_KEY, Cluster, ServerProcess, stopped

CALLS = 8
only_postgres = pytest.mark.parametrize("cluster", ["postgres"], indirect=True)


def test_a_stopped_server_is_missed_within_ten_seconds() -> None:
    usual = PostgresLocation(url="postgresql://")
    assert usual.beat_s + usual.stopped_s < 10
    assert usual.stopped_s > 2 * usual.beat_s, "one late beat is not silence"


async def taken_over(cluster: Cluster, b: ServerProcess, session: str) -> None:
    """Until another server has the session."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            answer = await b.client().post("/v1/calls", tool="put", arguments={"what": "b"}, session=session)
            if answer.status_code == 200 and answer.json()["ok"]:
                return
            await asyncio.sleep(0.2)


async def in_flight(cluster: Cluster, a: ServerProcess, session: str, tool: str) -> list[asyncio.Task[Any]]:
    """Calls that run in a server and end when they may."""
    begun = [
        asyncio.create_task(a.client().post("/v1/calls", tool=tool, arguments={"name": f"{tool}{n}"}, session=session))
        for n in range(CALLS)
    ]
    await cluster.until_done(*(f"begin {tool}{n}" for n in range(CALLS)))
    return begun


def lines_of(cluster: Cluster) -> Counter[str]:
    """How many lines the logs of all homes have of each call."""
    logs = [str(cluster.home_of(name) / "audit.jsonl") for name in ("a", "b")]
    return Counter(line.call_id for log in logs if os.path.exists(log) for line, _ in newest_first(log))


def verify(cluster: Cluster) -> tuple[int, str]:
    homes = [word for name in ("a", "b") for word in ("--home", str(cluster.home_of(name)))]
    ran = subprocess.run(
        [sys.executable, "-m", "callgate", "audit", "verify", *homes],
        env={**os.environ, KEY_VARIABLE: SECRETS_KEY, "CALLGATE_HOME": str(cluster.home_of("b"))},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    return ran.returncode, ran.stdout + ran.stderr


@only_postgres
@pytest.mark.parametrize("tool", ["hold", "wait"])
async def test_a_paused_server_says_that_it_does_not_know_and_each_call_has_one_end(
    cluster: Cluster, tool: str
) -> None:
    cluster.settings(f"[limits]\nconcurrency = {CALLS}\n")
    a, b = cluster.start(), cluster.start()
    session = await a.client().session(mode="write")
    begun = await in_flight(cluster, a, session, tool)
    await stopped(a)
    await taken_over(cluster, b, session)
    cluster.go()
    a.signal(signal.SIGCONT)
    answers = [each.json() for each in await asyncio.wait_for(asyncio.gather(*begun), LIMIT_S)]
    assert [(each["ok"], each["error"]["reason"]) for each in answers] == [(False, "outcome_unknown")] * CALLS
    await a.close()  # it was taken for dead: `callgate serve` ends
    ids = {each["call_id"] for each in answers}
    again = cluster.start("a")  # in the same home, as a supervisor does it
    async with await cluster.open_store() as store:

        async def ends() -> Counter[str]:
            events = await store.read_events(session)
            return Counter(each.payload["call_id"] for each in events if each.type in TERMINAL)

        async with asyncio.timeout(LIMIT_S):
            while not (ids <= {*(await ends())} and ids <= {*lines_of(cluster)}):
                await asyncio.sleep(0.1)
        found = await ends()
    assert {found[id] for id in ids} == {1}
    assert {lines_of(cluster)[id] for id in ids} == {1}
    await again.close()
    await b.close()
    code, shown = await asyncio.to_thread(verify, cluster)
    assert (code, shown.startswith("intact")) == (0, True), shown
