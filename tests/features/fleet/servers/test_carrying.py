"""A request for a session that another server owns is answered as if it had been sent there."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from callgate.core.ops import Acquire
from tests.features.fleet.servers.clusters import KEY_VARIABLE, SECRETS_KEY, Cluster, until
from tests.features.web.instances import Client


async def test_a_call_in_a_session_of_another_server_runs_there(standing: Cluster) -> None:
    a, b = standing.start(), standing.start()
    session = await a.client().session()
    result = await b.client().call("show", session, what="from afar")
    assert (result["ok"], result["value"]) == (True, f"from afar {a.pid}")
    assert (await a.client().call("show", session, what="near"))["value"] == f"near {a.pid}"


async def test_events_of_a_carried_call_are_streamed_as_they_happen(standing: Cluster) -> None:
    a, b = standing.start(), standing.start()
    session = await a.client().session(mode="write")
    body = {"tool": "hold", "arguments": {"name": "x"}, "session": session}
    accept = {"accept": "text/event-stream"}
    async with b.client().http.stream("POST", "/v1/calls", json=body, headers=accept) as response:
        assert response.headers["content-type"] == "text/event-stream"
        lines = response.aiter_lines()
        seen = [line async for line in until_line(lines, "tool.called")]
        assert seen, "it was told before the call ended"
        standing.go()
        rest = [line async for line in lines]
    result = json.loads(rest[rest.index("event: result") + 1].removeprefix("data: "))
    assert (result["ok"], result["value"]) == (True, "x")
    assert standing.done_by(a) == ["begin x", "end x"]


async def until_line(lines: Any, text: str) -> Any:
    async for line in lines:
        yield line
        if text in line:
            return


async def test_a_caller_who_leaves_takes_its_carried_call_along(standing: Cluster) -> None:
    a, b = standing.start(), standing.start()
    session = await a.client().session(mode="write")
    calling = asyncio.create_task(b.client().call("hold", session, name="x"))
    await standing.until_done("begin x")
    calling.cancel()
    await asyncio.wait({calling})
    await standing.until_done("cancelled x")
    assert standing.done_by(a) == ["begin x", "cancelled x"]


async def test_a_caller_who_stops_reading_the_events_takes_its_carried_call_along(standing: Cluster) -> None:
    a, b = standing.start(), standing.start()
    session = await a.client().session(mode="write")
    body = {"tool": "hold", "arguments": {"name": "x"}, "session": session}
    accept = {"accept": "text/event-stream"}
    async with b.client().http.stream("POST", "/v1/calls", json=body, headers=accept) as response:
        assert response.status_code == 200
        await standing.until_done("begin x")
    await standing.until_done("cancelled x")
    assert standing.done_by(a) == ["begin x", "cancelled x"]


async def test_a_session_is_changed_and_closed_from_any_server(standing: Cluster) -> None:
    a, b = standing.start(), standing.start()
    session = await a.client().session()
    path = f"/v1/sessions/{session}"
    changed = await b.client().http.patch(path, json={"mode": "read", "title": "Renamed"})
    assert (changed.status_code, changed.json()["mode"], changed.json()["title"]) == (200, "read", "Renamed")
    assert (await a.client().get(path))["mode"] == "read"
    refused = await a.client().call("put", session, what="x")
    assert (refused["ok"], refused["error"]["reason"]) == (False, "mode_read")
    closed = await b.client().http.delete(path)
    assert (closed.status_code, closed.json()) == (200, {"closed": True})
    assert (await a.client().get(path))["owned"] is False


@pytest.mark.parametrize("tool", ["hold", "wait"])
async def test_a_call_is_cancelled_from_any_server(standing: Cluster, tool: str) -> None:
    a, b = standing.start(), standing.start()
    session = await a.client().session(mode="write")
    calling = asyncio.create_task(a.client().call(tool, session, name="x"))
    await standing.until_done("begin x")
    (row,) = (await b.client().get("/v1/calls", state="running"))["calls"]
    assert (row["tool"], row["session_id"]) == (tool, session)
    answer = await b.client().http.delete(f"/v1/calls/{row['id']}")
    assert (answer.status_code, answer.json()) == (200, {"cancelled": True})
    assert (await calling)["error"]["class"] == "cancelled"
    again = await b.client().http.delete(f"/v1/calls/{row['id']}")
    assert (again.status_code, again.json()) == (200, {"cancelled": False})
    unknown = await b.client().http.delete("/v1/calls/tu_00000000000000000000000000")
    assert unknown.status_code == 404


async def test_who_asks_is_recorded_by_the_owner_as_its_own_server_found_them(standing: Cluster) -> None:
    a, b = standing.start(), standing.start()
    session = await a.client().session()
    body = {"tool": "show", "arguments": {"what": "x"}, "session": session}
    answer = await b.client().http.post("/v1/calls", json=body, headers={"user-agent": "the-true-caller/1"})
    call = answer.json()["call_id"]
    for server in (a, b):
        row = await server.client().get(f"/v1/calls/{call}")
        assert (row["client"], row["caller"]) == ("the-true-caller/1", "http")


async def test_a_session_of_a_process_that_is_no_server_stays_locked(standing: Cluster) -> None:
    a = standing.start()
    session = await a.client().session()
    await a.client().http.delete(f"/v1/sessions/{session}")
    async with await standing.open_store() as store:
        await store.commit(Acquire(session=session, owner=store.owner, at=0.0))
        answer = await a.client().post("/v1/calls", tool="show", arguments={}, session=session)
        assert (answer.status_code, answer.json()["error"]["reason"]) == (409, "session_locked")
    unknown = await a.client().post("/v1/calls", tool="show", arguments={}, session="sess_nobody")
    assert unknown.status_code == 404


async def test_calls_sent_to_both_servers_at_once_keep_the_cap_of_their_session(cluster: Cluster) -> None:
    cluster.settings("[limits]\nconcurrency = 3\n")
    a, b = cluster.start(), cluster.start()
    session = await a.client().session(mode="write")
    names = [f"n{number}" for number in range(10)]
    calls = [
        asyncio.create_task((a, b)[number % 2].client().call("hold", session, name=name))
        for number, name in enumerate(names)
    ]
    await until(lambda: len(cluster.done()) >= 3)
    cluster.go()
    assert sorted([(await each)["value"] for each in calls]) == sorted(names)
    running = most = 0
    for line in cluster.done():
        running += 1 if " begin " in line else -1
        most = max(most, running)
    assert (most, len(cluster.done_by(a))) == (3, 20)


async def test_a_change_is_undone_from_any_server(standing: Cluster) -> None:
    a, b = standing.start(), standing.start()
    session = await a.client().session(mode="write")
    (standing.ws / "a.txt").write_text("before")
    written = await b.client().call("write_file", session, path="a.txt", content="after")
    assert written["ok"], written
    assert (standing.ws / "a.txt").read_text() == "after"
    undone = await b.client().post(f"/v1/sessions/{session}/undo", confirmed=True)
    assert (undone.status_code, undone.json()["ok"]) == (200, True), undone.text
    assert (standing.ws / "a.txt").read_text() == "before"


@pytest.mark.parametrize("tool", ["put", "show"])
async def test_what_happened_at_one_server_is_read_at_once_at_another(standing: Cluster, tool: str) -> None:
    a, b = standing.start(), standing.start()
    session, near, far = await a.client().session(mode="write"), a.client(), b.client()
    for number in range(6):
        call = (await (near, far)[number % 2].call(tool, session, what=str(number)))["call_id"]
        events = (await far.get(f"/v1/sessions/{session}/events", after=0))["events"]
        assert [each["type"] for _, each in events if each["payload"].get("call_id") == call][-1] == "tool.completed"
        assert (await far.get(f"/v1/calls/{call}"))["events"][-1]["type"] == "tool.completed"


async def test_instances_of_the_command_line_are_servers_too(cluster: Cluster) -> None:
    (cluster.ws / "a.txt").write_text("hello")
    with command_line(cluster, "one") as one, command_line(cluster, "two") as two:
        session = await one.session()
        assert (await two.call("read_file", session, path="a.txt"))["value"] == "hello"
        labels = [each["label"] for each in (await two.get("/v1/servers"))["servers"]]
        assert sorted(labels) == ["one", "two"]
        assert (await two.get(f"/v1/sessions/{session}"))["server"] == "one"
        for each in (one, two):
            await each.http.aclose()


@contextmanager
def command_line(cluster: Cluster, label: str) -> Iterator[Client]:
    """`callgate serve`, as a person starts it."""
    socket = str(cluster.base / "run" / label)
    command = [sys.executable, "-m", "callgate", "serve", "--http", "127.0.0.1:0", "--socket", socket, "--label", label]
    home = cluster.home_of("z")
    environment = {**os.environ, KEY_VARIABLE: SECRETS_KEY, "CALLGATE_HOME": str(home)}
    with cluster.log.open("a") as log:
        process = subprocess.Popen(
            command, cwd=cluster.ws, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline() for _ in range(2)]
        port = int(lines[1].split()[3].rstrip(":").rpartition(":")[2])
        yield Client(port, (home / "run" / f"{process.pid}.token").read_text().strip())
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


async def test_calls_on_record_at_one_server_are_listed_page_by_page_at_another(cluster: Cluster) -> None:
    a, b = cluster.start(), cluster.start()
    made = []
    for n in range(5):
        server = (a, b)[n % 2]
        client = server.client()
        made.append((await client.call("show", await client.session(), what=str(n)))["call_id"])
    for server in (a, b):
        for path in ("/v1/calls", "/v1/audit"):
            assert await listed(server.client(), path, "calls" if path == "/v1/calls" else "records") == made[::-1]


async def listed(client: Client, path: str, name: str) -> list[str]:
    found: list[str] = []
    before = ""
    while True:
        page = (await client.http.get(f"{path}?limit=2{before}")).json()
        found += [each["id"] if name == "calls" else each["call_id"] for each in page[name]]
        if page["before"] is None:
            return found
        before = f"&before={page['before']}"


@pytest.mark.parametrize("standing", ["postgres"], indirect=True)  # those of one home have their own
async def test_servers_of_one_store_take_the_same_token(standing: Cluster) -> None:
    a, b = standing.start(), standing.start()
    token = (standing.home_of("a") / "run" / f"{a.pid}.token").read_text().strip()
    await until(lambda: (standing.home_of("b") / "run" / f"{b.pid}.token").read_text().strip() == token)
    for server in (a, b):
        assert (await server.client(token).http.get("/v1/instance")).status_code == 200
        assert (await server.client("x").http.get("/v1/instance")).status_code == 401


@pytest.mark.parametrize("standing", ["postgres"], indirect=True)
async def test_a_login_link_of_one_server_logs_a_browser_in_at_all_of_them(standing: Cluster) -> None:
    a, b = standing.start(), standing.start()
    token = (standing.home_of("a") / "run" / f"{a.pid}.token").read_text().strip()
    await until(lambda: (standing.home_of("b") / "run" / f"{b.pid}.token").read_text().strip() == token)
    link = (await a.client(token).post("/v1/login")).json()["url"]
    path = "/login?" + link.partition("/login?")[2]
    answers = [await server.client(None).http.get(path) for server in (b, a)]
    assert [each.status_code for each in answers] == [303, 401]
    cookie = answers[0].headers["set-cookie"].partition(";")[0].partition("=")[2]
    for server in (a, b):
        headers = {"cookie": f"callgate_{server.port}={cookie}"}
        assert (await server.client(None).http.get("/v1/instance", headers=headers)).status_code == 200
