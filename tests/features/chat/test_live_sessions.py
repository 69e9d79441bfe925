"""Turns of sessions that an instance holds, stopped at the worst moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate
from callgate.core.sessions import Session
from callgate.features.chat.agent.agent import Agent
from callgate.features.chat.live_sessions import LiveSessions
from tests.features.chat.agent.talks import PlayedModel, text


async def hang(prompt: Any) -> AsyncIterator[Any]:
    await asyncio.Event().wait()
    yield text("never")


@pytest.mark.parametrize("how", ["cancel", "close"])
@pytest.mark.parametrize("steps", range(6))
async def test_a_turn_that_is_stopped_as_it_begins_ends(tmp_path: Path, how: str, steps: int) -> None:
    async with Gate(tmp_path, [], home=tmp_path / "home") as gate:
        runtime = gate.runtime
        agent = Agent(runtime, PlayedModel([hang], native=True))
        live = LiveSessions(runtime, lambda cwd, id: Session(workspace=str(tmp_path), id=id), lambda model: agent)
        session = await live.open(None, None, None)
        await live.begin_turn(session.id, "go", None)
        for _ in range(steps):
            await asyncio.sleep(0)
        async with asyncio.timeout(60):
            if how == "cancel":
                assert live.cancel_turn(session.id)
                while live.turn_of(session.id) is not None:
                    await asyncio.sleep(0.005)
            else:
                await live.close(session.id)
        assert session.turn_id is None
        await live.stop(1.0)
