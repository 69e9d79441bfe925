"""Owners that die or stop: others take over, or say clearly what is not known."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from tests.features.fleet.servers.clusters import Cluster, stopped
from tests.features.web.instances import Client


async def events_of(client: Client, session: str) -> list[Any]:
    return [event for _, event in (await client.get(f"/v1/sessions/{session}/events"))["events"]]


async def ends_of(client: Client, session: str, type: str) -> list[Any]:
    return [each for each in await events_of(client, session) if each["type"] == type]


async def test_the_session_of_a_killed_server_is_taken_over_and_its_call_interrupted_once(cluster: Cluster) -> None:
    a, b, c = cluster.start(), cluster.start(), cluster.start()
    session = await a.client().session(mode="write")
    near = asyncio.create_task(b.client().post("/v1/calls", tool="hold", arguments={"name": "x"}, session=session))
    await cluster.until_done("begin x")
    a.kill()
    lost = await near
    assert (lost.status_code, lost.json()["error"]["reason"]) == (503, "outcome_unknown")
    assert "retry-after" not in lost.headers, "a program must not send it again by itself"
    results = await asyncio.gather(*(each.client().call("show", session, what="y") for each in (b, c) * 3))
    (winner,) = {each["value"] for each in results}
    assert winner in (f"y {b.pid}", f"y {c.pid}")
    for server in (b, c):
        failed = await ends_of(server.client(), session, "tool.failed")
        assert [each["payload"]["reason"] for each in failed] == ["interrupted"]
    assert [line.partition(" ")[2] for line in cluster.done()] == ["begin x"]


async def test_a_turn_of_a_killed_server_ends_as_interrupted_once(cluster: Cluster) -> None:
    cluster.settings("", 'chunk = 4\ndelay_s = 3600\n[[replies]]\ntext = "never"\n')
    a, b, c = cluster.start(), cluster.start(), cluster.start()
    session = await a.client().session()
    begun = await b.client().post(f"/v1/sessions/{session}/turns", prompt="Hello")
    assert begun.status_code == 202
    assert (await c.client().get(f"/v1/sessions/{session}"))["turn_id"] == begun.json()["turn_id"]
    a.kill()
    values = await asyncio.gather(*(each.client().call("show", session) for each in (b, c)))
    assert len({each["value"] for each in values}) == 1
    cancelled = await ends_of(c.client(), session, "turn.cancelled")
    assert [each["payload"]["reason"] for each in cancelled] == ["interrupted"]


async def test_a_stopped_owner_gives_a_clear_refusal_and_nothing_runs(cluster: Cluster) -> None:
    a, b = cluster.start(), cluster.start()
    session = await a.client().session(mode="write")
    await stopped(a)
    answer = await b.client().post("/v1/calls", tool="put", arguments={"what": "x"}, session=session)
    assert (answer.status_code, answer.json()["error"]["reason"]) == (503, "owner_unreachable")
    assert answer.headers["retry-after"] == "2"
    a.signal(signal.SIGCONT)
    assert (await b.client().call("put", session, what="y"))["ok"]
    assert cluster.done_by(a) == ["put y"]


async def test_an_owner_that_stops_within_a_call_leaves_its_outcome_unknown_and_runs_it_once(cluster: Cluster) -> None:
    a, b = cluster.start(), cluster.start(SERVERS_PATIENCE="0.5")
    session = await a.client().session(mode="write")
    calling = asyncio.create_task(b.client().post("/v1/calls", tool="hold", arguments={"name": "x"}, session=session))
    await cluster.until_done("begin x")
    await stopped(a)
    answer = await calling
    assert (answer.status_code, answer.json()["error"]["reason"]) == (503, "outcome_unknown")
    a.signal(signal.SIGCONT)
    await cluster.until_done("cancelled x")  # its caller is gone
    assert cluster.done_by(a) == ["begin x", "cancelled x"]


async def test_a_session_whose_server_was_killed_is_closed_by_another(cluster: Cluster) -> None:
    a, b = cluster.start(), cluster.start()
    session = await a.client().session()
    a.kill()
    closed = await b.client().http.delete(f"/v1/sessions/{session}")
    assert (closed.status_code, closed.json()) == (200, {"closed": True})
    assert (await b.client().get(f"/v1/sessions/{session}"))["owned"] is False


async def test_a_server_that_ends_gives_its_sessions_to_whoever_asks(cluster: Cluster) -> None:
    a, b = cluster.start(), cluster.start()
    session = await a.client().session()
    await a.close()
    assert (await b.client().call("show", session, what="x"))["value"] == f"x {b.pid}"
    assert [each["label"] for each in (await b.client().get("/v1/servers"))["servers"]] == ["b"]


@pytest.mark.parametrize("cluster", ["sqlite"], indirect=True)  # with a database it ends: test_taken_for_dead
async def test_an_owner_that_was_taken_for_dead_is_fenced_and_carries_what_it_is_asked(cluster: Cluster) -> None:
    a, b = cluster.start(), cluster.start()
    session = await a.client().session(mode="write")
    for lock in (cluster.home / "run").glob("own_*.lock"):
        if lock.read_text().strip() == str(a.pid):
            lock.unlink()  # as a database takes a server for dead that it does not hear
    assert (await b.client().call("put", session, what="b"))["ok"]
    late = await a.client().post("/v1/calls", tool="put", arguments={"what": "late"}, session=session)
    assert late.status_code == 200 and not late.json()["ok"], "its fence is old"
    assert (await a.client().call("put", session, what="again"))["ok"]
    assert (cluster.done_by(a), cluster.done_by(b)) == ([], ["put b", "put again"])
