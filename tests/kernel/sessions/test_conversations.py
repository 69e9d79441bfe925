"""Sessions as their owner uses them: turns, messages, mode, title, and taking one up again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from callgate import (
    Gate,
    Message,
    Mode,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    tool,
)
from callgate.core.ops import Fork
from callgate.core.sessions import Session
from callgate.core.stores import SessionLocked, SessionNotFound


@tool(side_effects="write")
async def put(n: int) -> str:
    """Have an effect."""
    return f"put {n}"


@pytest.fixture
def where(tmp_path: Path) -> dict[str, Any]:
    return {"home": tmp_path / "home", "tools": [put]}


async def store_of(gate: Gate) -> Any:
    await gate._wired.log.flush()
    return await gate._wired.log.store()


async def types_of(gate: Gate) -> list[str]:
    return [e.type for e in await (await store_of(gate)).read_events(gate.session.id)]


async def test_a_conversation_is_there_after_its_process(tmp_path: Path, where: Any) -> None:
    said = [
        Message.text("user", "please put 1"),
        Message(
            role="assistant",
            content=[
                ThinkingBlock("hm", signature="s"),
                TextBlock("I put it."),
                ToolUseBlock(id="toolu_1", name="put", input={"n": 1}),
            ],
        ),
        Message(role="user", content=[ToolResultBlock("toolu_1", [TextBlock("put 1")])]),
    ]
    async with Gate(tmp_path, mode="write", **where) as gate:
        id = gate.session.id
        async with gate.turn(said[0]) as turn:
            assert (await gate.call("put", {"n": 1})).ok
            await gate.say(said[1])
            await gate.say(said[2])
        assert await types_of(gate) == [
            "session.created",
            "turn.started",
            "tool.called",
            "tool.completed",
            "turn.completed",
        ]
        events = await (await store_of(gate)).read_events(id)
        assert {event.turn_id for event in events[1:]} == {turn}
    async with Gate(session=id, **where) as again:
        assert await again.messages() == said
        assert again.session == Session(id=id, workspace=str(tmp_path), mode=Mode.WRITE, title="please put 1")
        assert again.resumed is not None and again.resumed.calls == {}


async def test_a_turn_that_fails_is_cancelled_and_the_next_may_begin(tmp_path: Path, where: Any) -> None:
    async with Gate(tmp_path, **where) as gate:
        with pytest.raises(RuntimeError):
            async with gate.turn("one"):
                with pytest.raises(ValueError):
                    async with gate.turn("two at once"):
                        pass
                raise RuntimeError
        async with gate.turn("three"):
            pass
        events = await (await store_of(gate)).read_events(gate.session.id)
        ends = [e.payload.get("reason") for e in events if e.type == "turn.cancelled"]
        assert ends == ["error"]
        assert gate.session.turn_id is None


async def test_a_session_has_one_owner_at_a_time(tmp_path: Path, where: Any) -> None:
    async with Gate(tmp_path, mode="write", **where) as gate:
        assert (await gate.call("put", {"n": 1})).ok
        with pytest.raises(SessionLocked):
            async with Gate(session=gate.session.id, **where):
                pass
        assert (await gate.call("put", {"n": 2})).ok
    with pytest.raises(SessionNotFound):
        async with Gate(session="sess_NONE", **where):
            pass


async def test_a_session_is_resumed_with_its_own_workspace_or_not_at_all(where: Any) -> None:
    with pytest.raises(ValueError):
        Gate("/tmp", session="sess_1", **where)


async def test_an_answer_for_the_session_outlives_the_process(tmp_path: Path, where: Any) -> None:
    asked: list[Any] = []

    async def always(question: Any) -> str:
        asked.append(question)
        return "always-allow-this-tool"

    async with Gate(tmp_path, confirm=always, **where) as gate:
        id = gate.session.id
        assert (await gate.call("put", {"n": 1})).ok
    async with Gate(session=id, **where) as again:
        assert (await again.call("put", {"n": 2})).ok
        await again.runtime.sessions.close(again.session)
    async with Gate(session=id, **where) as closed:
        refused = await closed.call("put", {"n": 3})
        assert refused.error is not None and refused.error.reason == "no_confirmer"
    assert len(asked) == 1


async def test_the_mode_and_the_title_are_kept_and_told(tmp_path: Path, where: Any) -> None:
    async with Gate(tmp_path, **where) as gate:
        conversations = gate.runtime.sessions.conversations
        events = gate.runtime.sessions.events(types=["mode.changed"])
        await conversations.set_mode(gate.session, Mode.READ)
        await conversations.rename(gate.session, "another")
        async for event in events:
            assert event.payload == {"from": "ask", "to": "read"}
            break
        stored = await (await store_of(gate)).get_session(gate.session.id)
        assert (stored.mode, stored.title) == (Mode.READ, "another")


async def test_a_fork_goes_on_from_the_end_of_a_turn(tmp_path: Path, where: Any) -> None:
    async with Gate(tmp_path, mode="write", **where) as gate:
        async with gate.turn("one") as first:
            await gate.call("put", {"n": 1})
        async with gate.turn("two"):
            await gate.call("put", {"n": 2})
        store = await store_of(gate)
        fork = Fork(session=gate.session.id, new="sess_FORK", turn=first, at=1.0)
        await store.commit(fork)
        async with Gate(session="sess_FORK", **where) as other:
            assert await other.messages() == [Message.text("user", "one")]
            async with other.turn("another two"):
                assert (await other.call("put", {"n": 3})).ok
        assert len(await gate.messages()) == 2


async def test_a_title_is_the_first_line_without_secrets(tmp_path: Path, where: Any) -> None:
    secret = "sk-ant-api03-" + "A1b2" * 20
    async with Gate(tmp_path, **where) as gate:
        async with gate.turn(f"use {secret}\nand more"):
            pass
        assert gate.session.title is not None
        assert secret not in gate.session.title and "more" not in gate.session.title


async def test_many_sessions_of_one_process_do_not_disturb_each_other(tmp_path: Path, where: Any) -> None:
    async def live(n: int) -> list[Message]:
        async with Gate(tmp_path, mode="write", **where) as gate:
            async with gate.turn(f"number {n}"):
                results = await asyncio.gather(*(gate.call("put", {"n": k}) for k in range(5)))
            assert all(result.ok for result in results)
            return await gate.messages()

    said = await asyncio.gather(*map(live, range(8)))
    assert said == [[Message.text("user", f"number {n}")] for n in range(8)]
