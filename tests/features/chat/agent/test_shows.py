"""What a user interface is shown of the calls of a turn."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from callgate import tool
from callgate.core.models import ModelErrorKind, Piece, Prompt, Retrying, TextDelta
from callgate.features.chat.agent.turns import TurnLimits
from callgate.sessions.shows import Finished, Started
from tests.features.chat.agent.talks import END, TOOLS, Bench, call, calls, talk, text, uses


def cards(bench: Bench) -> list[tuple[str, str]]:
    """Each call as it was shown: what of it, and under which name the model knows it."""
    names: dict[str, str] = {}
    shown = []
    for show in bench.shows:
        if isinstance(show, Started):
            names[show.use.id] = show.use.external_id or ""
            shown.append(("started", names[show.use.id]))
        elif isinstance(show, Finished):
            error = " with an error" if show.result.is_error else ""
            shown.append((f"finished{error}", names[show.result.tool_use_id]))
    return shown


async def test_each_call_is_shown_as_it_starts_and_once_with_its_result(tmp_path: Path) -> None:
    reply = uses(("a", "look", {"what": "x"}), ("b", "put", {"what": "y"}), ("c", "fail", {}))
    async with talk(tmp_path, reply, text("Done."), native=True, mode="write") as bench:
        await bench.turn()
    assert sorted(cards(bench)) == [
        ("finished", "a"),
        ("finished", "b"),
        ("finished with an error", "c"),
        ("started", "a"),
        ("started", "b"),
        ("started", "c"),
    ]
    results = {show.result.tool_use_id for show in bench.shows if isinstance(show, Finished)}
    kept = [
        block.tool_use_id
        for prompt in bench.model.prompts[-1:]
        for message in prompt.messages
        for block in message.content
        if hasattr(block, "tool_use_id")
    ]
    assert len(results) == len(kept) == 3


async def test_what_a_model_shows_without_a_tool_is_no_call(tmp_path: Path) -> None:
    reply = calls(call("send_chat", content="Hello."), call("look", what="x"), END)
    async with talk(tmp_path, reply) as bench:
        await bench.turn()
    assert cards(bench) == [("started", "look"), ("finished", "look")]


async def test_a_call_that_is_refused_is_shown_too(tmp_path: Path) -> None:
    reply = uses(("a", "look", {"what": "x"}), ("b", "look", {"what": "y"}))
    limits = TurnLimits(calls_per_cycle=1)
    async with talk(tmp_path, reply, native=True, limits=limits) as bench:
        await bench.turn()
    assert sorted(cards(bench)) == [
        ("finished", "a"),
        ("finished with an error", "b"),
        ("started", "a"),
        ("started", "b"),
    ]


async def test_the_calls_of_a_reply_that_is_void_are_shown_to_their_end(tmp_path: Path) -> None:
    began = asyncio.Event()

    @tool(side_effects="none")
    async def dwell() -> str:
        began.set()
        await asyncio.Event().wait()
        return ""

    async def broken(prompt: Prompt) -> AsyncIterator[Piece]:
        yield TextDelta('{"toolCalls": [' + json.dumps(call("dwell", "d")) + ", ")
        async with asyncio.timeout(60):
            await began.wait()
        yield Retrying(ModelErrorKind.CUT, "cut", 0.0, 1)
        yield calls(END)

    async with talk(tmp_path, broken, tools=[dwell]) as bench:
        await bench.turn()
    assert cards(bench) == [("started", "d"), ("finished with an error", "d")]


async def test_after_a_cancel_each_call_has_been_shown_to_its_end(tmp_path: Path) -> None:
    began = asyncio.Event()

    @tool(side_effects="none")
    async def dwell() -> str:
        began.set()
        await asyncio.Event().wait()
        return ""

    reply = uses(("a", "dwell", {}), ("b", "put", {"what": "y"}))
    async with talk(tmp_path, reply, native=True, tools=[*TOOLS, dwell]) as bench:
        turn: asyncio.Task[Any] = asyncio.create_task(bench.turn())
        await began.wait()
        bench.agent.cancel(bench.gate.session.id)
        await turn
    assert cards(bench) == [
        ("started", "a"),
        ("finished with an error", "a"),
        ("started", "b"),
        ("finished with an error", "b"),
    ]
