"""What every adapter promises. A test module of a framework imports all of this, and has a fixture
`harness`: the real framework, driven by a scripted model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from callgate import Answer, Gate, Outcome
from callgate.adapters.guard import Guard
from tests.features.agents.frameworks.world import PROMPT, Harness, Person, World, records

LIMIT_S = 30


def short(name: str) -> str:
    """Claude Code calls a tool by its server, too."""
    return name.rpartition("__")[2]


def gate_for(tmp_path: Path, home: Path, person: Person | None = None, mode: str = "ask") -> Gate:
    workspace = tmp_path / "workspace"
    workspace.mkdir(exist_ok=True)
    return Gate(workspace, [], mode=mode, confirm=person, home=home)


async def test_a_call_that_only_reads_runs_unasked(harness: Harness, home: Path, tmp_path: Path) -> None:
    world, person = World(), Person(False)
    async with gate_for(tmp_path, home, person) as gate:
        assert await harness.run(gate, world, "look", {"to": "ann"}) == ["found ann"]
    assert (world.ran, person.asked) == ([("look", "ann")], [])
    (record,) = records(home)
    assert (short(record["tool"]), record["source"], record["decision"]) == ("look", "framework", "allow")


async def test_a_call_with_effects_asks_and_runs_when_allowed(harness: Harness, home: Path, tmp_path: Path) -> None:
    world, person = World(), Person()
    async with gate_for(tmp_path, home, person) as gate:
        told = await harness.run(gate, world, "send_mail", {"to": "ann", "subject": None})
    assert told == ["sent to ann"]
    assert [(short(each.tool), each.arguments["to"]) for each in person.asked] == [("send_mail", "ann")]
    assert world.ran == [("send_mail", "ann", None)]


async def test_a_denied_call_never_starts_and_the_model_is_told_why(
    harness: Harness, home: Path, tmp_path: Path
) -> None:
    world, person = World(), Person(Answer(decision=Outcome.DENY, reason="not to them"))
    async with gate_for(tmp_path, home, person) as gate:
        (told,) = await harness.run(gate, world, "send_mail", {"to": "ann", "subject": None})
    assert "not to them" in told
    assert world.ran == []
    (record,) = records(home)
    assert (record["decision"], record["error_class"]) == ("deny", "user_denied")


async def test_nobody_to_ask_is_a_refusal(harness: Harness, home: Path, tmp_path: Path) -> None:
    world = World()
    async with gate_for(tmp_path, home, mode="read") as gate:
        (told,) = await harness.run(gate, world, "send_mail", {"to": "ann", "subject": None})
    assert told and world.ran == []


async def test_what_a_person_edits_is_what_runs(harness: Harness, home: Path, tmp_path: Path) -> None:
    world = World()
    person = Person(Answer(decision=Outcome.ALLOW, arguments={"to": "bob", "subject": "hi"}))
    async with gate_for(tmp_path, home, person) as gate:
        assert await harness.run(gate, world, "send_mail", {"to": "ann", "subject": None}) == ["sent to bob"]
    assert world.ran == [("send_mail", "bob", "hi")]


async def test_a_cancelled_run_ends_its_call(harness: Harness, home: Path, tmp_path: Path) -> None:
    world = World()
    async with gate_for(tmp_path, home) as gate:
        task = asyncio.create_task(harness.run(gate, world, "wait", {"to": "ann"}))
        await asyncio.wait_for(world.started.wait(), LIMIT_S)
        task.cancel()
        await asyncio.wait({task}, timeout=LIMIT_S)
        assert task.done()
        await asyncio.wait_for(world.ended.wait(), LIMIT_S)
        assert gate.runtime.calls.in_flight() == []
    (record,) = records(home)
    assert record["error_class"] == "cancelled"


async def test_a_call_that_somebody_stops_is_told_to_the_model(harness: Harness, home: Path, tmp_path: Path) -> None:
    world = World()
    async with gate_for(tmp_path, home) as gate:
        task = asyncio.create_task(harness.run(gate, world, "wait", {"to": "ann"}))
        await asyncio.wait_for(world.started.wait(), LIMIT_S)
        await gate.cancel()
        (told,) = await asyncio.wait_for(task, LIMIT_S)
        assert "cancel" in told.lower() or "stop" in told.lower()


async def test_a_streamed_run_is_judged_alike(harness: Harness, home: Path, tmp_path: Path) -> None:
    world, person = World(), Person(Answer(decision=Outcome.DENY, reason="not to them"))
    async with gate_for(tmp_path, home, person) as gate:
        assert await harness.run(gate, world, "look", {"to": "ann"}, stream=True) == ["found ann"]
        (told,) = await harness.run(gate, world, "send_mail", {"to": "ann", "subject": None}, stream=True)
    assert "not to them" in told
    assert world.ran == [("look", "ann")]


async def outcome(harness: Harness, gate: Gate | None, world: World, tool: str) -> Any:
    try:
        return await harness.run(gate, world, tool, {"to": "ann"})
    except Exception as error:
        return type(error), str(error)


async def test_an_error_of_a_tool_is_as_without_us(harness: Harness, home: Path, tmp_path: Path) -> None:
    bare, world = World(), World()
    expected = await outcome(harness, None, bare, "fail")
    async with gate_for(tmp_path, home) as gate:
        assert await outcome(harness, gate, world, "fail") == expected
    assert world.ran == bare.ran == [("fail", "ann")]
    (record,) = records(home)
    assert record.get("error_class") == ("execution_error" if harness.shows_errors else None)


@pytest.mark.parametrize("part", ["_plans", "running", "_decide"])
async def test_a_defect_of_the_dispatcher_runs_nothing(
    harness: Harness, home: Path, tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    async with gate_for(tmp_path, home) as gate:
        with monkeypatch.context() as broken:
            broken.setattr(gate._wired.dispatcher, part, None)
            await outcome(harness, gate, world, "look")
        assert world.ran == []


async def test_a_defect_of_the_guard_runs_nothing(
    harness: Harness, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def crash(*args: Any, **more: Any) -> Any:
        raise RuntimeError("a defect of ours")

    world = World()
    monkeypatch.setattr(Guard, "call", crash)
    async with gate_for(tmp_path, home) as gate:
        await outcome(harness, gate, world, "look")
    assert world.ran == []


async def test_a_closed_gate_runs_nothing(harness: Harness, home: Path, tmp_path: Path) -> None:
    world = World()
    async with gate_for(tmp_path, home) as gate:
        pass
    await outcome(harness, gate, world, "look")
    assert world.ran == []


async def test_the_gate_is_told_what_the_user_said(harness: Harness, home: Path, tmp_path: Path) -> None:
    async with gate_for(tmp_path, home) as gate:
        await harness.run(gate, World(), "look", {"to": "ann"})
        said = [message.content[0].text for message in await gate.messages() if message.role == "user"]
    assert said == [PROMPT]
