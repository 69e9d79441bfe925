"""`ToolDispatcher()`: a dispatcher by itself, with the defaults inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from callgate import Session, ToolDispatcher, ToolUseBlock, tool
from callgate.audit.reading import newest_first


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


async def test_closing_twice_is_closing_once(home: Path) -> None:
    dispatcher = ToolDispatcher()
    await dispatcher.close()
    await dispatcher.close()
    assert len(dispatcher.running) == 0
