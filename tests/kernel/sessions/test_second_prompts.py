"""A second prompt while a turn is under way: refused at once, each way in saying so in its words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate
from callgate.core.events import TURN_CANCELLED, TURN_STARTED, Event
from callgate.runtime import Runtime
from callgate.sessions.session_turns import TurnInProgress
from tests.features.chat.agent.talks import PlayedModel, Step, text
from tests.features.editor.clients import connected
from tests.features.web.test_turns import talking

LIMIT_S = 60.0
ASKS = """
[[replies]]
calls = [{ tool = "write_file", input = { path = "made.txt", content = "x" } }]
[[replies]]
text = "Done."
"""
"""A turn that waits for an answer that nobody gives."""


def silent(asked: asyncio.Event) -> Step:
    async def step(prompt: Any) -> AsyncIterator[Any]:
        asked.set()
        await asyncio.Event().wait()
        yield text("never")

    return step


def turns_of(runtime: Runtime, session: str) -> list[tuple[str, str | None]]:
    told: list[tuple[str, str | None]] = []

    def hear(event: Event) -> None:
        if event.type in (TURN_STARTED, TURN_CANCELLED):
            told.append((event.type, event.turn_id))

    runtime.sessions.listen(hear, session)
    return told


async def test_the_library_is_told_which_turn_there_is(tmp_path: Path) -> None:
    asked = asyncio.Event()
    model = PlayedModel([silent(asked)], native=True)
    async with Gate(tmp_path, [], home=tmp_path / "home") as gate, asyncio.timeout(LIMIT_S):
        told = turns_of(gate.runtime, gate.session.id)
        turn = asyncio.ensure_future(gate.run("one", model=model))
        await asked.wait()
        with pytest.raises(ValueError) as run:
            await gate.run("two", model=model)
        with pytest.raises(ValueError) as taken:
            async with gate.turn("two"):
                pass
        for refused in (run.value, taken.value):
            assert isinstance(refused, TurnInProgress)
            assert refused.turn_id == gate.session.turn_id
        turn.cancel()
        await asyncio.wait([turn])
    assert [kind for kind, _ in told] == [TURN_STARTED, TURN_CANCELLED]
    assert len(model.prompts) == 1


async def test_a_turn_that_the_program_takes_is_one_for_the_model_too(tmp_path: Path) -> None:
    model = PlayedModel([text("Here.")], native=True)
    async with Gate(tmp_path, [], home=tmp_path / "home") as gate, asyncio.timeout(LIMIT_S):
        async with gate.turn("one"):
            with pytest.raises(ValueError):
                await gate.run("two", model=model)
        assert (await gate.run("three", model=model)).text == "Here."


async def test_an_editor_is_refused_with_invalid_params(tmp_path: Path) -> None:
    async with connected(tmp_path / "home", settings='mode = "ask"\n', script=ASKS) as client:
        session = await client.new(tmp_path)
        told = turns_of(client.wired.runtime, session)
        _, first = client.start_prompt(session, "one")
        _, at_once = client.start_prompt(session, "two")
        await client.until(lambda: client.requests("session/request_permission"))
        _, later = client.start_prompt(session, "/tool list_dir {}")
        assert [await client.code(each) for each in (at_once, later)] == [-32602, -32602]
        assert not first.done()
        client.tell("session/cancel", sessionId=session)
        assert (await asyncio.wait_for(first, LIMIT_S))["stopReason"] == "cancelled"
    assert [kind for kind, _ in told] == [TURN_STARTED, TURN_CANCELLED]


async def test_over_http_it_is_a_conflict_that_names_the_turn(home: Path, tmp_path: Path) -> None:
    asked = asyncio.Event()
    async with talking(home, tmp_path, silent(asked)) as instance:
        client = instance.client()
        session = await client.session()
        told = turns_of(instance.runtime, session)
        first = (await client.post(f"/v1/sessions/{session}/turns", prompt="one")).json()
        await asyncio.wait_for(asked.wait(), LIMIT_S)
        second = await client.post(f"/v1/sessions/{session}/turns", prompt="two")
        error = second.json()["error"]
        assert (second.status_code, error["reason"]) == (409, "turn_under_way")
        assert first["turn_id"] in error["message"]
        assert told == [(TURN_STARTED, first["turn_id"])]
        assert instance.runtime.sessions.turns.cancel(session)
        async with asyncio.timeout(LIMIT_S):
            while instance.runtime.sessions.turns.running(session) is not None:
                await asyncio.sleep(0)
        assert told[1:] == [(TURN_CANCELLED, first["turn_id"])]


async def test_an_instance_that_stops_cancels_a_turn_that_does_not_end(home: Path, tmp_path: Path) -> None:
    asked = asyncio.Event()
    async with talking(home, tmp_path, silent(asked)) as instance:
        client = instance.client()
        session = await client.session()
        told = turns_of(instance.runtime, session)
        turn = (await client.post(f"/v1/sessions/{session}/turns", prompt="one")).json()["turn_id"]
        await asyncio.wait_for(asked.wait(), LIMIT_S)
    assert told == [(TURN_STARTED, turn), (TURN_CANCELLED, turn)]
