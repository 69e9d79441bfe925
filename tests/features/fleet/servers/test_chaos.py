"""Servers are killed while calls with effects go to all of them: nothing is lost, nothing runs twice."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import httpx2
import pytest

from callgate.core.events import CALLED, TERMINAL
from tests.features.fleet.servers.clusters import LIMIT_S, Cluster, ServerProcess
from tests.features.web.instances import Client

SESSIONS = 4
CALLERS = 6


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", [8, pytest.param(60, marks=pytest.mark.soak)])
async def test_calls_with_effects_run_at_most_once_while_their_servers_are_killed(cluster: Cluster, kills: int) -> None:
    chance = random.Random(kills)
    servers = [cluster.start(f"s{number}") for number in range(3)]
    clients = {each.name: each.client() for each in servers}
    sessions = [await clients["s0"].session(mode="write") for _ in range(SESSIONS)]
    good: list[str] = []
    unknown: list[str] = []
    stopping = False

    async def call(name: str, client: Client) -> None:
        try:
            answer = await client.post(
                "/v1/calls", tool="put", arguments={"what": name}, session=chance.choice(sessions)
            )
        except httpx2.HTTPError:
            unknown.append(name)
            return
        assert answer.status_code in (200, 503), answer.text
        (good if answer.status_code == 200 and answer.json()["ok"] else unknown).append(name)

    async def caller(number: int) -> None:
        count = 0
        while not stopping:
            count += 1
            await call(f"{number}-{count}", clients[chance.choice(servers).name])

    async with asyncio.timeout(LIMIT_S * 8), asyncio.TaskGroup() as group:
        for number in range(CALLERS):
            group.create_task(caller(number))
        for number in range(kills):
            before = len(good)
            while len(good) < before + 20:
                await asyncio.sleep(0.01)
            victim: ServerProcess = chance.choice(servers)
            victim.kill()
            fresh = await asyncio.to_thread(cluster.start, f"r{number}")
            clients[fresh.name] = fresh.client()
            servers[servers.index(victim)] = fresh
        stopping = True
    runs = Counter(line.split()[2] for line in cluster.done())
    assert set(runs.values()) == {1}, "nothing runs twice"
    assert set(good) <= runs.keys(), "what was answered was done"
    assert runs.keys() <= {*good, *unknown}
    assert len(good) >= 20 * kills
    reader = clients[servers[0].name]
    for session in sessions:
        assert await unended(reader, session) == []


async def unended(client: Client, session: str) -> list[str]:
    """Calls of a session without exactly one end, once somebody has taken it over."""
    await client.call("show", session)
    after, began, ended = 0, set[str](), Counter[str]()
    while page := (await client.get(f"/v1/sessions/{session}/events", after=after, limit=1000))["events"]:
        for seq, event in page:
            after += 1
            assert seq == after, "no gap"
            call = event["payload"].get("call_id")
            began |= {call} if event["type"] == CALLED else set()
            ended[call] += event["type"] in TERMINAL
    return [each for each in began if ended[each] != 1]
