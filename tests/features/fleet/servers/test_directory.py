"""Which servers there are, how they are, and who is at them to be asked."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from callgate.features.web.access import Names, read_advertised
from callgate.socket.listening import Address, BadAddress
from tests.features.fleet.servers.clusters import KEY_VARIABLE, LIMIT_S, SECRETS_KEY, Cluster, stopped


async def test_each_server_lists_all_that_live(cluster: Cluster) -> None:
    a, b, c = cluster.start(), cluster.start(), cluster.start()
    await a.client().session()
    c.kill()
    for server in (a, b):
        found = await answering_servers(server.client())
        assert [(each["label"], each["url"], each["here"]) for each in found] == [
            ("a", a.url, server is a),
            ("b", b.url, server is b),
        ]
        assert [each["sessions"] for each in found] == [1, 0]
        assert all(each["warning"] is None and abs(each["skew_s"]) < 2 for each in found)
    assert [*await entries(cluster)] == ["a", "b"], "who finds a dead server's entry drops it"


async def answering_servers(client: Any) -> list[Any]:
    """List the servers once all of them answer: on a busy machine one may take seconds to do so."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            found: list[Any] = (await client.get("/v1/servers"))["servers"]
            if all(each["healthy"] for each in found):
                return found


async def entries(cluster: Cluster) -> dict[str, Any]:
    """As they stand in the store, by label."""
    async with await cluster.open_store() as store:
        found = [json.loads(each.value) for each in await store.entries("server")]
    return {each["label"]: each for each in found}


async def test_a_server_that_does_not_answer_is_listed_as_such(cluster: Cluster) -> None:
    a, b = cluster.start(), cluster.start()
    a.signal(signal.SIGSTOP)
    found = (await b.client().get("/v1/servers"))["servers"]
    a.signal(signal.SIGCONT)
    assert [(each["label"], each["healthy"]) for each in found] == [("a", False), ("b", True)]
    assert found[0]["warning"]


async def test_a_question_at_one_server_is_put_to_the_only_person_who_is_at_another(standing: Cluster) -> None:
    a, b = standing.start(), standing.start()
    refused = await a.client().call("put", what="before")
    assert refused["error"]["reason"] == "no_confirmer"
    async with b.client().stream() as watcher:
        await watcher.subscribe(confirmer=True)
        calling = asyncio.create_task(a.client().call("put", what="x"))
        question = await watcher.event("tool.confirmation_requested")
        id = question["payload"]["confirmation_request_id"]
        answer = await b.client().post(f"/v1/confirmations/{id}", decision="allow")
        assert answer.json()["applied"] is True
        assert (await calling)["value"] == "put x"
        late = await a.client().post(f"/v1/confirmations/{id}", decision="deny")
        assert (late.status_code, late.json()["decision"], late.json()["applied"]) == (409, "allow", False)
    assert standing.done_by(a) == ["put x"]
    async with asyncio.timeout(LIMIT_S):
        while (await entries(standing))["b"]["people"]:
            pass
    assert (await a.client().call("put", what="after"))["error"]["reason"] == "no_confirmer"


async def test_somebody_who_answers_for_one_session_is_not_there_for_another(standing: Cluster) -> None:
    a, b = standing.start(), standing.start()
    mine, other = await a.client().session(), await a.client().session()
    async with b.client().stream() as watcher:
        await watcher.subscribe(session=mine, confirmer=True)
        assert (await a.client().call("put", other, what="x"))["error"]["reason"] == "no_confirmer"
        calling = asyncio.create_task(a.client().call("put", mine, what="x"))
        question = await watcher.event("tool.confirmation_requested")
        id = question["payload"]["confirmation_request_id"]
        answers = await asyncio.gather(
            *(server.client().post(f"/v1/confirmations/{id}", decision="allow") for server in (a, b) * 3)
        )
        assert sorted(each.status_code for each in answers) == [200, 409, 409, 409, 409, 409]
        assert (await calling)["ok"]
    assert standing.done_by(a) == ["put x"]


async def test_the_arguments_of_a_call_are_amended_from_any_server(standing: Cluster) -> None:
    a, b = standing.start(), standing.start()
    async with b.client().stream() as watcher:
        await watcher.subscribe(confirmer=True)
        calling = asyncio.create_task(a.client().call("put", what="x"))
        id = (await watcher.event("tool.confirmation_requested"))["payload"]["confirmation_request_id"]
        answer = await b.client().post(f"/v1/confirmations/{id}", decision="allow", arguments={"what": "better"})
        assert answer.status_code == 200, answer.text
        assert (await calling)["value"] == "put better"


async def test_the_command_lists_the_servers(cluster: Cluster) -> None:
    a, b = cluster.start(), cluster.start()
    for server in (a, b):
        await server.client().get("/v1/server")
    command = [sys.executable, "-m", "callgate", "servers"]
    environment = {**os.environ, KEY_VARIABLE: SECRETS_KEY, "CALLGATE_HOME": str(cluster.home_of("a"))}

    async def run(*options: str) -> str:
        done = await asyncio.to_thread(
            subprocess.run, [*command, *options], env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    listed = json.loads(await run("--json"))["servers"]
    assert [(each["label"], each["url"], each["healthy"]) for each in listed] == [
        ("a", a.url, True),
        ("b", b.url, True),
    ]
    lines = await run()
    assert a.url in lines and b.url in lines


async def test_clocks_that_differ_are_warned_of_and_logged(cluster: Cluster) -> None:
    a, b = cluster.start(), cluster.start(SERVERS_AHEAD="5")
    found = {each["label"]: each for each in (await a.client().get("/v1/servers"))["servers"]}
    assert 4 < found["b"]["skew_s"] < 6 and "+5" in found["b"]["warning"]
    assert found["a"]["warning"] is None
    assert "differs from this one by" in cluster.log.read_text()
    session = await a.client().session()
    assert (await b.client().call("show", session, what="x"))["value"] == f"x {a.pid}", "it works all the same"


async def test_clocks_that_differ_too_much_refuse_what_is_carried_and_say_so(cluster: Cluster) -> None:
    a, b = cluster.start(), cluster.start(SERVERS_AHEAD="100")
    session = await a.client().session()
    answer = await b.client().post("/v1/calls", tool="put", arguments={"what": "x"}, session=session)
    assert (answer.status_code, answer.json()["error"]["reason"]) == (503, "carried_refused")
    assert "set the clocks of the servers right" in cluster.log.read_text()
    assert cluster.done() == []


async def test_a_server_is_reached_by_the_address_that_its_settings_give(cluster: Cluster) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    cluster.settings(f'[instance]\nadvertise_url = "http://LOCALHOST:{port}/"\n')
    a = cluster.start(SERVERS_HTTP=f"127.0.0.1:{port}")
    cluster.settings("")
    b = cluster.start()
    session = await a.client().session()
    found = (await b.client().get("/v1/servers"))["servers"]
    assert [each["url"] for each in found] == [f"http://localhost:{port}", b.url]
    assert (await b.client().call("show", session, what="x"))["value"] == f"x {a.pid}"


@pytest.mark.parametrize(
    "url", ["gate-1", "ftp://x", "http://", "http://x:y", "http://u:p@x", "http://x/path", "http://x?y"]
)
def test_an_address_that_is_none_is_refused_in_a_sentence(url: str) -> None:
    with pytest.raises(BadAddress, match="is not a URL without a path"):
        read_advertised(url)


def test_the_advertised_name_is_one_of_ours_and_no_other_is() -> None:
    names = Names(Address("10.0.0.7", 4177), None, read_advertised("https://Gate-1.Example"))
    assert names.servers_url == "https://gate-1.example"
    assert names.is_ours("gate-1.example") and names.is_ours("10.0.0.7:4177")
    for host in ("gate-1.example:4177", "gate-2.example", "example", "gate-1.example.evil"):
        assert not names.is_ours(host), host


@pytest.mark.parametrize("cluster", ["postgres"], indirect=True)  # those of one home have one log
async def test_calls_are_counted_in_the_logs_of_all_servers(cluster: Cluster) -> None:
    a, b = cluster.start(), cluster.start()
    for server, calls in ((a, 3), (b, 2)):
        client = server.client()
        session = await client.session()
        for number in range(calls):
            assert (await client.call("show", session, what=str(number)))["ok"]
        assert not (await client.call("read_file", session, path="none.txt"))["ok"]
        await client.call("put", session, what="x")  # nobody is there to ask
    by_server = [await server.client().get("/v1/stats") for server in (a, b)]
    for stats in by_server:
        counts = {each["tool"]: (each["calls"], each["errors"], each["denials"]) for each in stats["tools"]}
        assert counts == {"show": (5, 0, 0), "read_file": (2, 2, 0), "put": (2, 0, 2)}
        assert sum(each["calls"] for each in stats["times"]) == 9
        assert {each["tool"]: each["count"] for each in stats["errors"]} == {"read_file": 2, "put": 2}
        assert stats["missing"] == []
    times = [{each["tool"]: each["p95_ms"] for each in stats["tools"]} for stats in by_server]
    assert times[0] == times[1]
    await stopped(b)
    alone = await a.client().get("/v1/stats")
    b.signal(signal.SIGCONT)
    assert alone["missing"] == ["b"]
    assert {each["tool"]: each["calls"] for each in alone["tools"]} == {"show": 3, "read_file": 1, "put": 1}


@pytest.mark.parametrize("cluster", ["postgres"], indirect=True)
async def test_a_copy_of_a_home_that_is_in_use_is_refused_and_another_server_of_that_home_is_not(
    cluster: Cluster,
) -> None:
    a = cluster.start()
    home, copy = cluster.home_of("a"), cluster.home_of("b")
    shutil.copy(home / "home.id", copy / "home.id")
    refused = await serve_once(copy, cluster)
    assert refused.returncode != 0
    assert "its home was copied from one in which a server runs now" in refused.stderr
    assert "remove the file home.id of the copy" in refused.stderr
    beside = cluster.start("c", CALLGATE_HOME=str(home))
    assert sorted(each["label"] for each in (await a.client().get("/v1/servers"))["servers"]) == ["a", "c"]
    await beside.close()
    a.kill()
    b = cluster.start("b")  # as a home that was moved, with whoever used it gone
    assert [each["label"] for each in (await b.client().get("/v1/servers"))["servers"]] == ["b"]


async def serve_once(home: Path, cluster: Cluster) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "callgate", "serve", "--http", "127.0.0.1:0", "--workspace", str(cluster.ws)]
    environment = {**os.environ, KEY_VARIABLE: SECRETS_KEY, "CALLGATE_HOME": str(home)}
    return await asyncio.to_thread(
        subprocess.run, command, env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
