"""`ToolDispatcher()`: a dispatcher by itself, with the defaults inside."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from callgate import Event, Session, ToolDispatcher, ToolUseBlock, tool
from callgate.audit.reading import newest_first
from callgate.core.effects import SideEffects
from tests.support import make_tool


@tool(side_effects="none")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(side_effects="write")
async def note(text: str) -> str:
    """Have an effect."""
    return text


async def yes(question: Any) -> bool:
    return True


async def test_a_dispatcher_made_without_arguments_runs_and_records(home: Path) -> None:
    async with ToolDispatcher() as dispatcher:
        dispatcher.register(add)
        session = Session(workspace=str(home))
        assert [each.name for each in dispatcher.get_definitions_for_session(session)] == ["add"]
        block = await dispatcher.dispatch(ToolUseBlock("1", "add", {"a": 1, "b": 2}), session)
        assert (block.is_error, block.content[0].text) == (False, "3")
    assert [record.tool for record, _ in newest_first(str(home / "audit.jsonl"))] == ["add"]


async def test_what_must_be_asked_is_refused_unless_somebody_confirms(home: Path) -> None:
    for confirm, refused in ((None, True), (yes, False)):
        async with ToolDispatcher(confirm=confirm) as dispatcher:
            dispatcher.register(note)
            session = Session(workspace=str(home))
            block = await dispatcher.dispatch(ToolUseBlock("1", "note", {"text": "x"}), session)
            assert block.is_error is refused


async def test_every_event_of_a_call_reaches_its_subscribers(home: Path) -> None:
    heard: list[tuple[str, Any]] = []
    all_heard: list[str] = []

    def broken(event: Event) -> None:
        raise RuntimeError("a listener that fails")

    async with ToolDispatcher(confirm=yes) as dispatcher, asyncio.timeout(60):
        dispatcher.register(note)
        session, other = Session(workspace=str(home)), Session(workspace=str(home))
        dispatcher.subscribe(broken)
        dispatcher.subscribe(lambda event: all_heard.append(event.type))
        end = dispatcher.subscribe(lambda e: heard.append((e.type, e.payload.get("tool_use_id"))), session.id)
        reader = dispatcher.events(session_id=session.id, types=["tool.completed"])
        for each, id in ((session, "a"), (other, "b")):
            block = await dispatcher.dispatch(ToolUseBlock(id, "note", {"text": "x"}), each)
            assert not block.is_error
        end()
        await dispatcher.dispatch(ToolUseBlock("c", "note", {"text": "x"}), session)
        read = []
        with reader:
            async for event in reader:
                assert isinstance(event, Event)
                read.append(event.payload["tool_use_id"])
                if len(read) == 2:
                    break
    steps = ["tool.confirmation_requested", "tool.confirmation_resolved", "tool.called", "tool.completed"]
    assert [type for type, _ in heard if type.startswith("tool.")] == steps
    assert {id for type, id in heard if type.startswith("tool.")} == {"a"}
    assert [type for type in all_heard if type.startswith("tool.")] == steps * 3
    assert read == ["a", "c"]


async def test_closing_twice_is_closing_once(home: Path) -> None:
    dispatcher = ToolDispatcher()
    await dispatcher.close()
    await dispatcher.close()
    assert len(dispatcher.running) == 0


@pytest.mark.spec("S4-52")
@pytest.mark.parametrize("has_preview", [False, True])
@pytest.mark.parametrize("allowed", [True, False])
async def test_a_tool_is_made_only_once_its_call_is_approved(home: Path, has_preview: bool, allowed: bool) -> None:
    made: list[int] = []
    asked: list[tuple[int, str | None]] = []
    Probe = make_tool("writer", SideEffects.WRITE)

    def factory() -> Any:
        made.append(1)
        tool = Probe()
        if has_preview:
            tool.preview = lambda input, environment: "It writes."
        return tool

    async def human(question: Any) -> bool:
        asked.append((len(made), question.preview))
        return allowed

    async with ToolDispatcher(confirm=human) as dispatcher:
        dispatcher.register(factory)
        registered = len(made)
        block = await dispatcher.dispatch(ToolUseBlock("1", "writer", {}), Session(workspace=str(home)))
    assert asked == [(registered, "It writes." if has_preview else None)]
    assert (block.is_error, len(made)) == (not allowed, registered + allowed)
