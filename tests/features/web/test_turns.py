"""A person talks to the agent over HTTP: prompts, questions in a turn, cancelling, taking over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from callgate.core.models import ModelError, ModelErrorKind
from callgate.features.chat.agent.agent import Agent
from callgate.instance.wiring.runtime import Wired
from tests.features.chat.agent.talks import PlayedModel, Step, text, uses
from tests.features.web.instances import DONE, LIMIT_S, Instance, serving, watching

GREETING = "Good day to you.\n" * 40
"""Long enough to be shown while it is being said."""


@asynccontextmanager
async def talking(home: Path, tmp_path: Path, *steps: Step) -> AsyncIterator[Instance]:
    models: dict[str | None, PlayedModel] = {}

    def open_agent(wired: Wired, name: str | None) -> Agent:
        if name == "unknown":
            raise ModelError(ModelErrorKind.REQUEST, "There is no such model.")
        assert name not in models, "one agent for each model"
        models[name] = PlayedModel(steps, native=True, chunk=3)
        runtime = wired.runtime
        return Agent(runtime, models[name])

    async with serving(home, tmp_path / "ws", open_agent=open_agent) as instance:
        yield instance


async def hang(prompt: Any) -> AsyncIterator[Any]:
    await asyncio.Event().wait()
    yield text("never")


async def test_a_prompt_begins_a_turn_and_the_stream_tells_the_rest(home: Path, tmp_path: Path) -> None:
    async with talking(home, tmp_path, text(GREETING), text("Again.")) as instance:
        client = instance.client()
        session = await client.session()
        async with client.stream() as watcher:
            await watcher.subscribe(session=session, preset="chat")
            begun = await client.post(f"/v1/sessions/{session}/turns", prompt="Hello")
            assert begun.status_code == 202
            turn = begun.json()["turn_id"]
            frames = []
            while not frames or frames[-1]["event"]["type"] != "turn.completed":
                frames.append(await watcher.until(lambda frame: frame["type"] == "event"))
            types = [each["event"]["type"] for each in frames]
            assert types[0] == "turn.started" and types[-2:] == ["output.chat", "turn.completed"]
            assert set(types[1:-2]) == {"output.chat_delta"}
            assert {each["event"]["turn_id"] for each in frames} == {turn}
            said = "".join(each["event"]["payload"]["text"] for each in frames[1:-2])
            assert said and GREETING.startswith(said)
            await client.post(f"/sessions/{session}/turns", prompt="Once more")
            await watcher.event("turn.completed")
        messages = (await client.get(f"/v1/sessions/{session}/messages"))["messages"]
        assert [(each["role"], each["content"][0]["text"]) for each in messages] == [
            ("user", "Hello"),
            ("assistant", GREETING),
            ("user", "Once more"),
            ("assistant", "Again."),
        ]
        assert (await client.get(f"/v1/sessions/{session}"))["title"] == "Hello"


@pytest.mark.spec("S4-49", "S4-50", "S4-51", "T31")
async def test_a_question_of_a_turn_is_answered_under_its_turn(home: Path, tmp_path: Path) -> None:
    async with talking(home, tmp_path, uses(("u1", "put", {"what": "a"})), text("Done.")) as instance:
        client = instance.client()
        session = await client.session()
        async with client.stream() as watcher:
            await watcher.subscribe(session=session)
            turn = (await client.post(f"/v1/sessions/{session}/turns", prompt="go")).json()["turn_id"]
            asked = await watcher.event("tool.confirmation_requested")
            id = asked["payload"]["confirmation_request_id"]
            assert (await client.get(f"/v1/sessions/{session}"))["turn_id"] == turn
            busy = await client.post(f"/v1/sessions/{session}/turns", prompt="and this")
            assert (busy.status_code, busy.json()["error"]["reason"]) == (409, "turn_under_way")
            where = f"/v1/sessions/{session}/turns"
            for wrong in (f"{where}/-/confirmations/{id}", f"{where}/turn_x/confirmations/{id}"):
                assert (await client.post(wrong, decision="allow")).status_code == 404
            assert DONE == []
            assert (await client.post(f"{where}/{turn}/confirmations/{id}", decision="allow")).status_code == 200
            await watcher.event("turn.completed")
        assert DONE == ["a"]


@pytest.mark.parametrize("by_frame", [True, False])
async def test_a_turn_is_cancelled_over_http_and_over_the_stream_and_twice_is_once(
    home: Path, tmp_path: Path, by_frame: bool
) -> None:
    async with talking(home, tmp_path, hang, text("Here.")) as instance:
        client = instance.client()
        session = await client.session()
        async with client.stream() as watcher:
            await watcher.subscribe(session=session)
            turn = (await client.post(f"/v1/sessions/{session}/turns", prompt="go")).json()["turn_id"]
            await watcher.event("llm.call_started")
            if by_frame:
                await watcher.send(type="cancel", session=session, turn_id=turn)
                ack = await watcher.until(lambda frame: frame["type"] == "cancel_ack")
                assert ack["cancelled"] is True
            else:
                given = await client.http.delete(f"/v1/sessions/{session}/turns/{turn}")
                assert (given.status_code, given.json()) == (202, {"turn_id": turn, "cancelled": True})
            ended = await watcher.event("turn.cancelled")
            assert (ended["turn_id"], ended["payload"]["reason"]) == (turn, "user_cancel")
            again = await client.http.delete(f"/v1/sessions/{session}/turns/{turn}")
            assert (again.status_code, again.json()["cancelled"]) == (202, False)
            other = await client.session()
            for wrong in (f"{session}/turns/turn_x", f"{other}/turns/{turn}", f"nobody/turns/{turn}"):
                assert (await client.http.delete(f"/v1/sessions/{wrong}")).status_code == 404
            assert (await client.post(f"/v1/sessions/{session}/turns", prompt="go")).status_code == 202
            await watcher.event("turn.completed")


@pytest.mark.spec("T31")
async def test_whoever_is_attached_to_one_session_cannot_stop_the_turn_of_another(home: Path, tmp_path: Path) -> None:
    async with talking(home, tmp_path, hang) as instance:
        client = instance.client()
        mine, theirs = await client.session(), await client.session()
        turn = (await client.post(f"/v1/sessions/{theirs}/turns", prompt="go")).json()["turn_id"]
        token = (await client.get(f"/v1/sessions/{mine}"))["attach_token"]
        async with watching(instance.port, f"?attach={token}") as watcher:
            await watcher.send(type="cancel", session=theirs, turn_id=turn)
            ack = await watcher.until(lambda frame: frame["type"] == "cancel_ack")
            assert (ack["cancelled"], instance.sessions.turn_of(theirs)) == (False, turn)


async def test_a_turn_waits_for_a_person_although_every_client_has_gone(home: Path, tmp_path: Path) -> None:
    async with talking(home, tmp_path, uses(("u1", "put", {"what": "a"})), text("Done.")) as instance:
        client = instance.client()
        session = await client.session()
        async with client.stream() as watcher:
            await watcher.subscribe(session=session)
            await client.post(f"/v1/sessions/{session}/turns", prompt="go")
            await watcher.event("tool.confirmation_requested")
        (asked,) = (await client.get("/v1/confirmations", session=session))["confirmations"]
        async with client.stream() as watcher:
            await watcher.subscribe(session=session)
            await client.post(f"/v1/confirmations/{asked['id']}", decision="allow")
            await watcher.event("turn.completed")
        assert DONE == ["a"]


async def test_a_model_that_is_not_there_begins_nothing(home: Path, tmp_path: Path) -> None:
    async with talking(home, tmp_path) as instance:
        client = instance.client()
        session = await client.session()
        answer = await client.post(f"/v1/sessions/{session}/turns", prompt="go", model="unknown")
        assert (answer.status_code, answer.json()["error"]["reason"]) == (422, "model_request")
        assert (await client.get(f"/v1/sessions/{session}"))["turn_id"] is None
        assert (await client.post("/v1/sessions/nobody/turns", prompt="go")).status_code == 404


async def test_a_session_whose_process_is_gone_is_taken_over_and_its_turn_is_over(home: Path, tmp_path: Path) -> None:
    steps = uses(("u1", "put", {"what": "a"})), text("Done.")
    async with talking(home, tmp_path, *steps) as first:
        client = first.client()
        session = await client.session()
        async with client.stream() as watcher:
            await watcher.subscribe(session=session)
            await client.post(f"/v1/sessions/{session}/turns", prompt="go")
            await watcher.event("tool.confirmation_requested")
    async with talking(home, tmp_path, text("I am back.")) as second:
        client = second.client()
        shown = await client.get(f"/v1/sessions/{session}")
        assert (shown["live"], shown["turn_id"] is not None, len(shown["confirmations"])) == (False, True, 1)
        async with client.stream() as watcher:
            await watcher.subscribe(session=session)
            begun = await client.post(f"/v1/sessions/{session}/turns", prompt="are you there?")
            assert begun.status_code == 202
            assert (await watcher.event("turn.cancelled"))["payload"]["reason"] == "interrupted"
            await watcher.event("turn.completed")
        shown = await client.get(f"/v1/sessions/{session}")
        assert (shown["live"], shown["turn_id"], shown["confirmations"]) == (True, None, [])
    assert DONE == []


async def test_a_session_that_another_has_is_left_alone(home: Path, tmp_path: Path) -> None:
    async with talking(home, tmp_path) as instance:
        other = instance.wired.session(instance.workspace)
        await instance.runtime.sessions.conversations.keep(other)  # as a peer on the socket has one
        client = instance.client()
        assert (await client.get(f"/v1/sessions/{other.id}"))["owned"] is True
        for answer in (
            await client.post(f"/v1/sessions/{other.id}/turns", prompt="go"),
            await client.post("/v1/calls", tool="show", session=other.id),
            await client.http.patch(f"/v1/sessions/{other.id}", json={"mode": "write"}),
            await client.http.delete(f"/v1/sessions/{other.id}"),
        ):
            assert (answer.status_code, answer.json()["error"]["reason"]) == (409, "session_locked")


async def test_closing_a_session_stops_its_turn(home: Path, tmp_path: Path) -> None:
    async with talking(home, tmp_path, hang) as instance:
        client = instance.client()
        session = await client.session()
        async with client.stream() as watcher:
            await watcher.subscribe(session=session)
            await client.post(f"/v1/sessions/{session}/turns", prompt="go")
            await watcher.event("llm.call_started")
            assert (await client.http.delete(f"/v1/sessions/{session}")).json() == {"closed": True}
            await watcher.event("turn.cancelled")
        shown = await client.get(f"/v1/sessions/{session}")
        assert (shown["live"], shown["owned"], shown["turn_id"]) == (False, False, None)


async def test_an_instance_that_stops_ends_its_turns(home: Path, tmp_path: Path) -> None:
    async with talking(home, tmp_path, hang) as instance:
        client = instance.client()
        session = await client.session()
        async with client.stream() as watcher:
            await watcher.subscribe(session=session)
            await client.post(f"/v1/sessions/{session}/turns", prompt="go")
            await watcher.event("llm.call_started")
            async with asyncio.timeout(LIMIT_S):
                await instance.server.close()
            assert await watcher.closed() == (1001, "stopping")
