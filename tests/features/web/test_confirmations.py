"""A person is asked over the stream and answers over HTTP: the first answer counts, and nothing
runs before it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.features.web.instances import DONE, LIMIT_S, Client, Instance, Watcher, serving

REQUESTED, RESOLVED = "tool.confirmation_requested", "tool.confirmation_resolved"


def start(client: Client, tool: str, session: str, **arguments: Any) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(client.call(tool, session, **arguments))


async def asked(watcher: Watcher) -> str:
    return str((await watcher.event(REQUESTED))["payload"]["confirmation_request_id"])


async def answer(client: Client, id: str, decision: str = "allow", **more: Any) -> httpx2.Response:
    return await client.post(f"/v1/confirmations/{id}", decision=decision, **more)


@pytest.mark.spec("S4-48", "S4-49", "S4-50", "S4-51")
async def test_a_question_reaches_every_client_of_its_session_and_is_answered_under_its_id(instance: Instance) -> None:
    client = instance.client()
    one, other = await client.session(), await client.session()
    async with client.stream() as first, client.stream() as second, client.stream() as elsewhere:
        for watcher, session in ((first, one), (second, one), (elsewhere, other)):
            await watcher.subscribe(session=session, confirmer=True)
        running = start(client, "put", one, what="a")
        event = await first.event(REQUESTED)
        assert await second.event(REQUESTED) == event
        payload = event["payload"]
        (listed,) = (await client.get("/v1/confirmations", session=one))["confirmations"]
        assert {
            "id": listed["id"],
            "tool": listed["tool"],
            "input": listed["arguments"],
            "effects": listed["side_effects"],
            "projected": listed["projected_modifications"],
            "session": listed["session_id"],
            "turn": listed["turn_id"],
        } == {
            "id": payload["confirmation_request_id"],
            "tool": "put",
            "input": {"what": "a"},
            "effects": "write",
            "projected": [],
            "session": one,
            "turn": None,
        }
        assert listed["expires_at"] > event["timestamp"] and DONE == []
        path = f"/v1/sessions/{one}/turns/-/confirmations/{listed['id']}"
        given = await client.post(path, decision="allow")
        assert (given.status_code, given.json()) == (
            200,
            {"request_id": listed["id"], "decision": "allow", "scope": "once", "by": "http", "applied": True},
        )
        assert (await running)["value"] == "put a" and DONE == ["a"]
        order = [await first.event(each) for each in (RESOLVED, "tool.called", "tool.completed")]
        assert [each["payload"]["call_id"] for each in order] == [listed["call_id"]] * 3
        await client.call("show", other, what="the first thing that is seen there")
        seen = await elsewhere.until(lambda frame: frame["type"] == "event")
        assert seen["event"]["type"] == "tool.called" and seen["session"] == other


@pytest.mark.spec("S4-50")
async def test_the_seeds_own_path_answers_too(instance: Instance) -> None:
    client = instance.client()
    session = await client.session()
    async with client.stream() as watcher:
        await watcher.subscribe(session=session, confirmer=True)
        running = start(client, "put", session, what="a")
        given = await client.post(f"/sessions/{session}/turns/-/confirmations/{await asked(watcher)}", decision="allow")
        assert given.status_code == 200 and (await running)["ok"]


async def test_an_answer_that_names_other_arguments_is_refused_and_the_question_stays_open(instance: Instance) -> None:
    client = instance.client()
    session = await client.session()
    async with client.stream() as watcher:
        await watcher.subscribe(session=session, confirmer=True)
        running = start(client, "put", session, what="a")
        event = await watcher.event(REQUESTED)
        id = str(event["payload"]["confirmation_request_id"])
        refused = await answer(client, id, arguments_sha256="0" * 64)
        assert (refused.status_code, refused.json()["error"]["reason"]) == (409, "other_arguments")
        (listed,) = (await client.get("/v1/confirmations", session=session))["confirmations"]
        assert listed["arguments_sha256"] == event["payload"]["input_hash"]
        assert (await answer(client, id, arguments_sha256=listed["arguments_sha256"])).status_code == 200
        assert (await running)["ok"]


async def test_a_question_says_from_where_its_call_came_and_what_the_client_calls_itself(instance: Instance) -> None:
    client = instance.client()
    session = await client.session()
    async with client.stream() as watcher:
        await watcher.subscribe(session=session, confirmer=True)
        running = start(client, "put", session, what="a")
        id = await asked(watcher)
        (listed,) = (await client.get("/v1/confirmations", session=session))["confirmations"]
        assert listed["caller"] == "http"
        assert listed["client"]["address"].startswith("127.0.0.1:")
        assert "httpx" in listed["client"]["name"]
        await answer(client, id, "deny")
        assert not (await running)["ok"]


@pytest.mark.spec("S4-52")
async def test_a_no_ends_the_call_and_nothing_runs(instance: Instance) -> None:
    client = instance.client()
    session = await client.session()
    async with client.stream() as watcher:
        await watcher.subscribe(session=session, confirmer=True)
        running = start(client, "put", session, what="a")
        assert (await answer(client, await asked(watcher), "deny", reason="not today")).status_code == 200
        result = await running
        assert (result["ok"], result["error"]["class"], DONE) == (False, "user_denied", [])
        assert (await watcher.event(RESOLVED))["payload"]["decision"] == "deny"
        assert (await watcher.event("tool.failed"))["payload"]["error_class"] == "user_denied"


@pytest.mark.spec("S4-56", "T19")
async def test_of_two_answers_at_once_one_counts_and_the_other_is_told(instance: Instance) -> None:
    one, two = instance.client(), instance.client()
    session = await one.session()
    async with one.stream() as watcher:
        await watcher.subscribe(session=session, confirmer=True)
        for n in range(10):
            running = start(one, "put", session, what=str(n))
            id = await asked(watcher)
            yes, no = await asyncio.gather(answer(one, id), answer(two, id, "deny"))
            assert sorted([yes.status_code, no.status_code]) == [200, 409]
            first, second = (yes, no) if yes.status_code == 200 else (no, yes)
            assert (first.json()["applied"], second.json()["applied"]) == (True, False)
            assert second.json()["decision"] == first.json()["decision"]
            assert (await running)["ok"] is (first is yes)
            again = await answer(two, id, "deny")
            assert (again.status_code, again.json()["decision"]) == (409, first.json()["decision"])
    events = (await one.get(f"/v1/sessions/{session}/events"))["events"]
    resolved = [event["payload"]["confirmation_request_id"] for _, event in events if event["type"] == RESOLVED]
    assert len(resolved) == len(set(resolved)) == 10


@pytest.mark.spec("S4-57", "T31")
async def test_an_id_that_never_was_or_is_anothers_is_not_found(instance: Instance) -> None:
    client = instance.client()
    mine, theirs = await client.session(), await client.session()
    async with client.stream() as watcher:
        await watcher.subscribe(session=mine, confirmer=True)
        running = start(client, "put", mine, what="a")
        id = await asked(watcher)
        wrong = [
            f"/v1/confirmations/{id}x",
            "/v1/confirmations/conf_01M7HKPPB28G8YWK64CR00000A",
            f"/v1/sessions/{theirs}/turns/-/confirmations/{id}",
            f"/v1/sessions/nobody/turns/-/confirmations/{id}",
            f"/v1/sessions/{mine}/turns/turn_1/confirmations/{id}",
            f"/sessions/{theirs}/turns/-/confirmations/{id}",
        ]
        answers = [await client.post(path, decision="allow") for path in wrong]
        assert {(each.status_code, each.text) for each in answers} == {(404, answers[0].text)}
        assert DONE == []
        assert (await answer(client, id)).status_code == 200 and (await running)["ok"]


@pytest.mark.spec("S4-53")
async def test_always_allowing_a_tool_covers_it_in_this_session_and_no_other_tool(instance: Instance) -> None:
    client = instance.client()
    session, other = await client.session(), await client.session()
    async with client.stream() as watcher:
        await watcher.subscribe(confirmer=True)
        running = start(client, "put", session, what="a")
        given = await answer(client, await asked(watcher), "always-allow-this-tool")
        assert given.json()["scope"] == "session" and (await running)["ok"]
        assert (await client.call("put", session, what="b"))["ok"]
        for tool, where in (("run", session), ("put", other)):
            waiting = start(client, tool, where, what="c")
            assert (await answer(client, await asked(watcher), "deny")).status_code == 200
            assert (await waiting)["error"]["class"] == "user_denied"
    assert DONE == ["a", "b"]


@pytest.mark.spec("S4-54")
async def test_no_answer_in_time_ends_the_call_and_a_late_one_is_told(home: Path, tmp_path: Path) -> None:
    async with serving(home, tmp_path / "ws", settings="[limits]\nconfirmation_timeout_s = 0.2\n") as instance:
        client = instance.client()
        session = await client.session()
        async with client.stream() as watcher:
            await watcher.subscribe(session=session, confirmer=True)
            running = start(client, "put", session, what="a")
            id = await asked(watcher)
            assert (await running)["error"]["class"] == "confirmation_timeout"
            assert (await watcher.event(RESOLVED))["payload"]["decision"] == "timeout"
        late = await answer(client, id)
        assert (late.status_code, late.json()["applied"], late.json()["decision"]) == (409, False, "timeout")
        assert DONE == []


@pytest.mark.spec("S4-55")
async def test_clients_that_go_away_do_not_shorten_the_wait(instance: Instance) -> None:
    client, caller = instance.client(), instance.client()
    session = await client.session()
    async with client.stream() as watcher:
        await watcher.subscribe(session=session, confirmer=True)
        running = start(caller, "put", session, what="a")
        id = await asked(watcher)
    (listed,) = (await client.get("/v1/confirmations"))["confirmations"]
    assert (listed["id"], running.done(), DONE) == (id, False, [])
    assert (await answer(client, id)).status_code == 200
    assert (await running)["value"] == "put a"


@pytest.mark.spec("S4-58")
async def test_cancelling_a_waiting_call_withdraws_its_question_everywhere(instance: Instance) -> None:
    client = instance.client()
    session = await client.session()
    async with client.stream() as one, client.stream() as two:
        await one.subscribe(session=session, confirmer=True)
        await two.subscribe()
        running = start(client, "put", session, what="a")
        event = await one.event(REQUESTED)
        call, id = event["payload"]["call_id"], event["payload"]["confirmation_request_id"]
        assert (await client.get(f"/v1/calls/{call}"))["state"] == "asked"
        assert (await client.http.delete(f"/v1/calls/{call}")).json() == {"cancelled": True}
        assert (await running)["error"]["class"] == "cancelled"
        for watcher in (one, two):
            assert (await watcher.event(RESOLVED))["payload"]["decision"] == "cancelled"
        assert (await client.get("/v1/confirmations"))["confirmations"] == []
        late = await answer(client, id)
        assert (late.status_code, late.json()["decision"], DONE) == (409, "cancelled", [])
        assert (await client.http.delete(f"/v1/calls/{call}")).json() == {"cancelled": False}


@pytest.mark.spec("S4-60")
async def test_without_anybody_there_what_must_be_asked_is_refused(instance: Instance) -> None:
    client = instance.client()
    session = await client.session()
    async with client.stream() as watcher:
        await watcher.subscribe(session=session)
        result = await client.call("put", session, what="a")
        assert (result["ok"], result["error"]["class"], DONE) == (False, "permission_denied", [])
        await watcher.subscribe("second", session=session, confirmer=True)
        await watcher.send(type="unsubscribe", id="second")
        await watcher.until(lambda frame: frame["type"] == "unsubscribe_ack")
        assert (await client.call("put", session, what="a"))["error"]["class"] == "permission_denied"


async def test_other_arguments_are_what_runs(instance: Instance) -> None:
    client = instance.client()
    session = await client.session()
    async with client.stream() as watcher:
        await watcher.subscribe(session=session, confirmer=True)
        running = start(client, "put", session, what="a")
        assert (await answer(client, await asked(watcher), arguments={"what": "b"})).status_code == 200
        assert (await running)["value"] == "put b" and DONE == ["b"]


async def test_an_answer_that_means_nothing_answers_nothing(instance: Instance) -> None:
    nonsense: list[dict[str, Any]] = [
        {},
        {"decision": "yes"},
        {"decision": "allow", "scope": "forever"},
        {"decision": "allow", "by": "me"},
        {"decision": "always-allow-this-tool", "scope": "always"},
        {"decision": "allow", "arguments": []},
    ]
    client = instance.client()
    session = await client.session()
    async with client.stream() as watcher:
        await watcher.subscribe(session=session, confirmer=True)
        running = start(client, "put", session, what="a")
        id = await asked(watcher)
        for said in nonsense:
            assert (await client.post(f"/v1/confirmations/{id}", **said)).status_code == 422, said
        assert (await answer(client, id, "deny")).status_code == 200
        await running


async def test_a_caller_that_goes_away_takes_its_call_along(instance: Instance) -> None:
    client = instance.client()
    session = await client.session()
    async with client.stream() as watcher:
        await watcher.subscribe(session=session, confirmer=True)
        async with asyncio.timeout(LIMIT_S):
            leaving = start(instance.client(), "put", session, what="a")
            await asked(watcher)
            leaving.cancel()
            assert (await watcher.event(RESOLVED))["payload"]["decision"] == "cancelled"
            assert (await watcher.event("tool.failed"))["payload"]["error_class"] == "cancelled"
    assert DONE == []
