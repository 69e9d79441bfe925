"""A turn is one of its session, and can be stopped at every moment, once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from callgate import tool
from callgate.core.content import Message
from callgate.core.events import TURN_CANCELLED
from callgate.core.models import Piece, Prompt
from callgate.core.sessions import Session
from callgate.sessions.shows import TurnEnd
from tests.features.chat.agent.talks import Bench, Step, talk, text, uses


def silent(asked: asyncio.Event) -> Step:
    """A model that never answers."""

    async def pieces() -> AsyncIterator[Piece]:
        asked.set()
        await asyncio.Event().wait()
        yield text("never")

    def step(prompt: Prompt) -> AsyncIterator[Piece]:
        return pieces()

    return step


@pytest.mark.spec("S3-43")
async def test_a_turn_cancelled_before_it_began_leaves_the_session_free(tmp_path: Path) -> None:
    async with talk(tmp_path, text("one"), text("two"), native=True) as bench:
        await bench.turn()
        second = asyncio.create_task(bench.turn())
        asyncio.get_running_loop().call_soon(bench.agent.cancel, bench.gate.session.id)
        async with asyncio.timeout(60):
            assert await second == TurnEnd(stop="cancelled")
        assert bench.gate.session.turn_id is None
        assert (await bench.turn()).text == "two"


@pytest.mark.spec("S3-43")
async def test_a_turn_of_before_that_is_cancelled_before_it_goes_on_is_over(tmp_path: Path) -> None:
    async with talk(tmp_path, text("never"), native=True) as bench:
        session = bench.gate.session
        await bench.gate.runtime.sessions.conversations.begin_turn(session, Message.text("user", "go"))
        going_on = asyncio.create_task(bench.agent.go_on(session, {}))
        asyncio.get_running_loop().call_soon(bench.agent.cancel, session.id)
        async with asyncio.timeout(60):
            assert await going_on == TurnEnd(stop="cancelled")
        assert session.turn_id is None
        assert [event.payload["reason"] for event in bench.of(TURN_CANCELLED)] == ["user_cancel"]
        assert bench.model.prompts == []


async def test_of_two_prompts_at_once_one_is_a_turn_that_can_be_cancelled(tmp_path: Path) -> None:
    asked = asyncio.Event()
    async with talk(tmp_path, silent(asked), native=True) as bench, asyncio.timeout(60):
        await bench.gate.runtime.sessions.conversations.keep(bench.gate.session)
        turns = [asyncio.create_task(bench.turn("one")), asyncio.create_task(bench.turn("two"))]
        await asked.wait()
        assert bench.agent.cancel(bench.gate.session.id)
        first, second = await asyncio.gather(*turns, return_exceptions=True)
        assert isinstance(first, TurnEnd)
        assert first.stop == "cancelled"
        assert isinstance(second, ValueError)


async def test_a_turn_under_way_is_not_gone_on_with(tmp_path: Path) -> None:
    asked = asyncio.Event()
    async with talk(tmp_path, silent(asked), native=True) as bench, asyncio.timeout(60):
        turn = asyncio.create_task(bench.turn())
        await asked.wait()
        with pytest.raises(ValueError):
            await bench.agent.go_on(bench.gate.session, {})
        bench.agent.cancel(bench.gate.session.id)
        await turn


async def test_what_is_forgotten_while_it_works_can_still_be_cancelled(tmp_path: Path) -> None:
    asked = asyncio.Event()
    async with talk(tmp_path, silent(asked), native=True) as bench, asyncio.timeout(60):
        turn = asyncio.create_task(bench.turn())
        await asked.wait()
        bench.agent.forget(bench.gate.session.id)
        assert bench.agent.cancel(bench.gate.session.id)
        assert (await turn).stop == "cancelled"


@pytest.mark.parametrize("how", ["agent", "task"])
@pytest.mark.spec("S3-43")
async def test_a_second_cancel_does_not_leave_a_call_behind(tmp_path: Path, how: str) -> None:
    started, stopping, may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()
    ended: list[str] = []

    @tool(side_effects="read")
    async def slow() -> str:
        """Take long, also to stop."""
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopping.set()
            await may_end.wait()
            ended.append("slow")
        return ""

    reply = uses(("1", "slow", {}))
    async with talk(tmp_path, reply, native=True, tools=(slow,)) as bench, asyncio.timeout(60):
        turn = asyncio.create_task(bench.turn())
        await started.wait()
        bench.agent.cancel(bench.gate.session.id)
        await stopping.wait()
        _cancel_again(bench, turn, how)
        asyncio.get_running_loop().call_later(0.05, may_end.set)
        await asyncio.wait([turn])
        assert ended == ["slow"]


def _cancel_again(bench: Bench, turn: asyncio.Task[TurnEnd], how: str) -> None:
    if how == "agent":
        assert bench.agent.cancel(bench.gate.session.id)
    else:
        turn.cancel()


async def test_instructions_that_cannot_be_had_end_the_turn(tmp_path: Path) -> None:
    def extra_instructions(session: Session) -> str:
        raise OSError

    async with talk(tmp_path, native=True) as bench:
        bench.agent._extra_instructions = extra_instructions
        with pytest.raises(OSError):
            await bench.turn()
        assert bench.gate.session.turn_id is None
