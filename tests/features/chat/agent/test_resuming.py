"""Turns that outlive their process."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from callgate import Gate, tool
from callgate.core.content import Message, TextBlock, ToolResultBlock, ToolUseBlock
from callgate.core.models import Piece, Prompt, TextDelta
from callgate.features.chat.agent.agent import Agent
from callgate.features.chat.agent.history import INTERRUPTED, arrange, last_words
from tests.features.chat.agent.talks import (
    END,
    TOOLS,
    PlayedModel,
    call,
    calls,
    talk,
    text,
    uses,
    yes,
)

USE_A, USE_B = ToolUseBlock("tu_a", "look", {}), ToolUseBlock("tu_b", "look", {})
A, B = ToolResultBlock("tu_a", [TextBlock("a")]), ToolResultBlock("tu_b", [TextBlock("b")])


def said(role: Any, *blocks: Any) -> Message:
    return Message(role=role, content=list(blocks))


def test_results_stand_behind_their_calls_in_the_order_of_the_calls() -> None:
    go, on = TextBlock("go"), TextBlock("on")
    kept = [said("user", go), said("assistant", USE_A, USE_B), said("user", B), said("user", A), said("user", on)]
    assert arrange(kept) == [
        said("user", go),
        said("assistant", USE_A, USE_B),
        said("user", A, B, on),
    ]


@pytest.mark.parametrize("rest", [(), (said("user", TextBlock("on")),)])
def test_a_call_without_a_result_gets_one_that_says_so(rest: tuple[Message, ...]) -> None:
    kept = [said("user", TextBlock("go")), said("assistant", USE_A, USE_B), said("user", A), *rest]
    _, _, answered = arrange(kept)
    missing = ToolResultBlock("tu_b", [TextBlock(INTERRUPTED)], is_error=True)
    assert answered.content[:2] == [A, missing]


def test_a_result_that_nobody_asked_for_is_not_shown() -> None:
    assert arrange([said("user", TextBlock("go"), A)]) == [said("user", TextBlock("go"))]


async def test_a_turn_left_in_the_middle_goes_on(tmp_path: Path) -> None:
    first = uses(("x", "look", {"what": "a"}), ("y", "look", {"what": "b"}))
    async with talk(tmp_path, first, native=True) as bench:
        session, conversations = bench.gate.session, bench.gate.runtime.sessions.conversations
        await conversations.begin_turn(session, Message.text("user", "look"))
        conversations.say(session, said("assistant", USE_A, USE_B))
        await conversations.say(session, said("user", A))
        await bench.gate._wired.dispatcher._log.flush()
    model = PlayedModel([text("Both seen.")], native=True)
    async with Gate(home=tmp_path / "home", session=session.id, tools=TOOLS, confirm=yes) as gate:
        assert gate.resumed is not None
        agent = Agent(gate.runtime, model)
        end = await agent.go_on(gate.session, gate.resumed.calls)
        assert gate.session.turn_id is None
        assert await agent.go_on(gate.session, {}) is None
    assert end is not None and (end.stop, end.text) == ("end_turn", "Both seen.")
    assert [message.role for message in model.prompts[0].messages] == ["user", "assistant", "user"]


async def test_a_question_that_was_open_is_asked_again_and_its_call_runs_once(
    tmp_path: Path,
) -> None:
    asked = asyncio.Event()

    async def silent(question: Any) -> Any:
        asked.set()
        await asyncio.Event().wait()

    first = calls(call("look", what="a"), call("put", what="b"))
    async with talk(tmp_path, first, confirm=silent) as bench:
        turn = asyncio.ensure_future(bench.turn())
        await asked.wait()
        session = bench.gate.session.id
    end = await turn
    assert end.stop == "waiting"
    model = PlayedModel([calls(END)], native=False)
    async with Gate(home=tmp_path / "home", session=session, tools=TOOLS, confirm=yes) as gate:
        assert gate.resumed is not None and len(gate.resumed.calls) == 1
        agent = Agent(gate.runtime, model)
        end = await agent.go_on(gate.session, gate.resumed.calls)
    assert end is not None and end.stop == "end_turn"
    told = model.prompts[0].messages[-1].content[0]
    assert isinstance(told, TextBlock)
    results = json.loads(told.text.partition("\n")[2])
    assert [(r["type"], r["success"]) for r in results] == [("look", True), ("put", True)]


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        ([], None),
        ([said("user", TextBlock("go"))], None),
        ([said("user", TextBlock("go")), said("assistant", TextBlock("done"))], "done"),
        ([said("user", TextBlock("go")), said("assistant", USE_A)], None),
        ([said("user", TextBlock("go")), said("assistant", USE_A), said("user", A)], None),
        (
            [
                said("user", TextBlock("go")),
                said(
                    "assistant", ToolUseBlock("1", "send_chat", {"content": "bye"}), ToolUseBlock("2", "end_turn", {})
                ),
            ],
            "bye",
        ),
        (
            [
                said("user", TextBlock("go")),
                said("assistant", USE_A, ToolUseBlock("2", "end_turn", {})),
                said("user", ToolResultBlock(USE_A.id, [TextBlock("no")], is_error=True)),
            ],
            None,
        ),
        ([said("user", TextBlock("go")), said("assistant", TextBlock('```json\n{"a": 1}'))], None),
    ],
)
def test_a_turn_that_had_come_to_its_end_is_known_by_its_last_words(kept: list[Message], words: str | None) -> None:
    assert last_words(kept) == words


async def test_a_turn_whose_last_words_were_said_is_not_asked_again(tmp_path: Path) -> None:
    async with talk(tmp_path) as bench:
        session, conversations = bench.gate.session, bench.gate.runtime.sessions.conversations
        await conversations.begin_turn(session, Message.text("user", "hello"))
        await conversations.say(session, Message.text("assistant", "Good day."))
        end = await bench.agent.go_on(session, {})
        assert end is not None and (end.stop, end.text) == ("end_turn", "Good day.")
        assert bench.model.prompts == [] and session.turn_id is None


@pytest.mark.parametrize("where", ["model", "tool"])
async def test_a_turn_is_left_open_when_the_runtime_goes_away(tmp_path: Path, where: str) -> None:
    reached = asyncio.Event()

    @tool(side_effects="none")
    async def hold() -> str:
        """Wait for ever."""
        reached.set()
        await asyncio.Event().wait()
        return ""

    async def endless(prompt: Prompt) -> AsyncIterator[Piece]:
        yield TextDelta("I am")
        reached.set()
        await asyncio.Event().wait()

    step = endless if where == "model" else uses(("h", "hold", {}))
    model = PlayedModel([step], native=True)
    (tmp_path / "workspace").mkdir()
    async with Gate(tmp_path / "workspace", [hold], home=tmp_path / "home") as gate:
        turn = asyncio.ensure_future(gate.run("go", model=model))
        await reached.wait()
        session = gate.session.id
    assert (await turn).stop == "waiting"
    again = PlayedModel([text("Back.")], native=True)
    async with Gate(home=tmp_path / "home", session=session, tools=[hold]) as gate:
        assert gate.resumed is not None and gate.session.turn_id is not None
        agent = Agent(gate.runtime, again)
        end = await agent.go_on(gate.session, gate.resumed.calls)
    assert end is not None and end.text == "Back."


_PROGRAM = """
import asyncio, sys
from callgate import Gate, tool
from callgate.features.chat.agent.agent import Agent
from tests.features.chat.agent.talks import TOOLS, PlayedModel, uses, text

async def main(workspace, home):
    steps = [uses((f"x{n}", "look", {"what": str(n)}), (f"y{n}", "put", {"what": str(n)}))
             for n in range(18)]
    model = PlayedModel([*steps, text("done")], native=True)
    async with Gate(workspace, TOOLS, mode="write", home=home) as gate:
        agent = Agent(gate.runtime, model)
        gate.runtime.sessions.listen(  # before that nothing was done
            lambda event: event.type == "tool.called" and print(event.session_id, flush=True)
        )
        await agent.turn(gate.session, "go")

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("seed", range(8))
async def test_a_turn_killed_at_any_point_resumes_with_its_conversation(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    home = tmp_path / "home"
    (tmp_path / "workspace").mkdir()
    argv = [sys.executable, "-c", _PROGRAM, str(tmp_path / "workspace"), str(home)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process:
        session = process.stdout.readline().strip()
        await asyncio.sleep(chance.uniform(0, 0.1))
        os.kill(process.pid, signal.SIGKILL)
    model = PlayedModel([text("Gone on.")] * 2, native=True)
    async with Gate(home=home, session=session, tools=TOOLS, confirm=yes) as gate:
        assert gate.resumed is not None
        before = await gate.messages()
        agent = Agent(gate.runtime, model)
        end = await agent.go_on(gate.session, gate.resumed.calls)
        if end is None:  # it had come to its end
            end = await agent.turn(gate.session, "again")
        after = await gate.messages()
    assert end.text == "Gone on."
    assert after[: len(before)] == before
    prompt = model.prompts[0]
    open_uses: list[str] = []
    for message in prompt.messages:
        results = [b.tool_use_id for b in message.content if isinstance(b, ToolResultBlock)]
        assert results == open_uses
        open_uses = [b.id for b in message.content if isinstance(b, ToolUseBlock)]
