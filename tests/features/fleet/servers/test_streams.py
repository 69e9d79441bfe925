"""Clients of any server see what happens in every session: each event once, in order, and its deltas."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.features.fleet.servers.clusters import GREETING, LIMIT_S, Cluster
from tests.features.web.instances import Watcher

_LONG = json.dumps("go on, and on\n" * 9_000)
ENDLESS = "chunk = 30\ndelay_s = 0.02\n" + f"[[replies]]\ntext = {_LONG}\n" * 2


async def until_event(watcher: Watcher, type: str) -> list[Any]:
    """The frames up to an event of a type."""
    frames: list[Any] = []
    while not frames or frames[-1]["event"]["type"] != type:
        frames.append(await watcher.until(lambda frame: frame["type"] == "event"))
    return frames


@pytest.mark.parametrize("everything", [False, True])
async def test_a_turn_is_begun_and_watched_at_a_server_that_does_not_own_it(
    standing: Cluster, everything: bool
) -> None:
    a, b = standing.start(), standing.start()
    session = await a.client().session()
    async with b.client().stream() as far, a.client().stream() as near:
        wanted = {} if everything else {"session": session}
        await far.subscribe(preset="chat", **wanted)
        await near.subscribe(preset="chat", session=session)
        begun = await b.client().post(f"/v1/sessions/{session}/turns", prompt="Hello")
        assert begun.status_code == 202, begun.text
        seen, expected = await until_event(far, "turn.completed"), await until_event(near, "turn.completed")
    types = [each["event"]["type"] for each in seen]
    assert types[0] == "turn.started" and types[-2:] == ["output.chat", "turn.completed"]
    assert len(types) > 8 and set(types[1:-2]) == {"output.chat_delta"}
    said = "".join(each["event"]["payload"]["text"] for each in seen[1:-2])
    assert said and GREETING.strip().startswith(said.strip())
    assert [each["event"]["id"] for each in seen] == [each["event"]["id"] for each in expected]


async def test_deltas_come_of_the_sessions_that_are_watched_and_of_no_other(standing: Cluster) -> None:
    a, b = standing.start(), standing.start()
    first, second, third = [await a.client().session() for _ in range(3)]
    async with b.client().stream() as watcher:
        await watcher.subscribe("one", preset="chat", session=first)
        await watcher.subscribe("two", preset="chat", session=second)
        await asyncio.gather(
            *(b.client().post(f"/v1/sessions/{each}/turns", prompt="Hello") for each in (first, second, third))
        )
        ended: dict[str, list[Any]] = {first: [], second: []}
        while not all(each and each[-1]["type"] == "turn.completed" for each in ended.values()):
            frame = await watcher.until(lambda frame: frame["type"] == "event")
            ended[frame["session"]].append(frame["event"])
    for events in ended.values():
        assert "output.chat_delta" in {each["type"] for each in events}


async def test_a_turn_is_cancelled_from_any_server(cluster: Cluster) -> None:
    cluster.settings("", ENDLESS)
    a, b = cluster.start(), cluster.start()
    session = await a.client().session()
    async with b.client().stream() as watcher:
        await watcher.subscribe(preset="chat", session=session)
        turn = (await b.client().post(f"/v1/sessions/{session}/turns", prompt="Hello")).json()["turn_id"]
        await watcher.event("output.chat_delta")
        done = await b.client().http.delete(f"/v1/sessions/{session}/turns/{turn}")
        assert (done.status_code, done.json()) == (202, {"turn_id": turn, "cancelled": True})
        await watcher.event("turn.cancelled")
        again = await b.client().http.delete(f"/v1/sessions/{session}/turns/{turn}")
        assert (again.status_code, again.json()["cancelled"]) == (202, False)
        await b.client().post(f"/v1/sessions/{session}/turns", prompt="Hello again")
        await watcher.event("output.chat_delta")
        await watcher.send(type="cancel", session=session, id="c")
        answer = await watcher.until(lambda frame: frame["type"] == "cancel_ack")
        assert (answer["cancelled"], answer["id"]) == (True, "c")
        await watcher.event("turn.cancelled")
        await watcher.send(type="cancel", session=session)
        assert (await watcher.until(lambda frame: frame["type"] == "cancel_ack"))["cancelled"] is False


async def test_a_turn_under_way_is_seen_as_such_everywhere(cluster: Cluster) -> None:
    cluster.settings("", ENDLESS)
    a, b = cluster.start(), cluster.start()
    session = await a.client().session()
    begun = await a.client().post(f"/v1/sessions/{session}/turns", prompt="Hello")
    second = await b.client().post(f"/v1/sessions/{session}/turns", prompt="Me too")
    error = second.json()["error"]
    assert (second.status_code, error["reason"]) == (409, "turn_under_way")
    assert error["details"] == {"turn_id": begun.json()["turn_id"]}


async def test_events_of_many_calls_at_both_servers_are_seen_once_and_in_order_at_each(standing: Cluster) -> None:
    a, b = standing.start(), standing.start()
    session = await a.client().session(mode="write")
    count = 40

    async def watch(server: Any) -> list[tuple[int, str]]:
        async with server.client().stream() as watcher:
            await watcher.subscribe(session=session, since=0)
            started.release()
            ends, seen = 0, list[tuple[int, str]]()
            while ends < count:
                frame = await watcher.until(lambda frame: frame["type"] == "event")
                seen.append((frame["seq"], frame["event"]["id"]))
                ends += frame["event"]["type"] == "tool.completed"
            return seen

    started = asyncio.Semaphore(0)
    async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
        watching = [group.create_task(watch(each)) for each in (a, b, b)]
        for _ in watching:
            await started.acquire()
        clients = [a.client(), b.client()]
        for number in range(count):
            group.create_task(clients[number % 2].call("put", session, what=str(number)))
    first, *others = [each.result() for each in watching]
    assert [seq for seq, _ in first] == [*range(1, len(first) + 1)]
    assert others == [first, first]


async def test_a_client_sees_the_deltas_of_the_server_that_took_a_session_over(cluster: Cluster) -> None:
    a, b, c = cluster.start(), cluster.start(), cluster.start()
    session = await a.client().session()
    async with b.client().stream() as watcher:
        await watcher.subscribe(preset="chat", session=session)
        a.kill()
        assert (await c.client().call("show", session))["value"].endswith(f" {c.pid}")
        await watcher.event("tool.completed")
        async with asyncio.timeout(LIMIT_S):
            while (await b.client().get(f"/v1/sessions/{session}"))["server"] != "c":
                pass
        begun = await b.client().post(f"/v1/sessions/{session}/turns", prompt="Hello")
        assert begun.status_code == 202
        frames = await until_event(watcher, "turn.completed")
    assert "output.chat_delta" in [each["event"]["type"] for each in frames]


async def test_a_snapshot_shows_what_runs_at_another_server(standing: Cluster) -> None:
    a, b = standing.start(), standing.start()
    session = await a.client().session()
    calling = asyncio.create_task(a.client().call("wait", session, name="x"))
    await standing.until_done("begin x")
    async with b.client().stream() as watcher:
        for id, wanted in (("one", {"session": session}), ("all", {})):
            await watcher.send(type="subscribe", id=id, snapshot=True, **wanted)
            snapshot = await watcher.until(lambda frame: frame["type"] == "snapshot")
            assert [(each["tool"], each["state"]) for each in snapshot["calls"]] == [("wait", "running")]
    standing.go()
    assert (await calling)["value"] == "x"
