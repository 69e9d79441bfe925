"""Conversations that grow longer than the model's window."""

from __future__ import annotations

from pathlib import Path

import pytest

from callgate.core.content import Message, SummaryBlock, TextBlock, ToolResultBlock, ToolUseBlock
from callgate.core.events import COMPACTED
from callgate.core.models import ModelError, ModelErrorKind, Prompt
from tests.features.chat.agent.talks import Bench, call, calls, talk, text, uses

END = call("end_turn")


def plain(prompt: Prompt) -> str:
    return "\n".join(
        block.text for message in prompt.messages for block in message.content if isinstance(block, TextBlock)
    )


@pytest.mark.parametrize("native", [False, True])
async def test_a_full_window_is_summed_up_and_the_turn_goes_on(tmp_path: Path, native: bool) -> None:
    reply = uses(("a", "much", {"count": 6_000})) if native else calls(call("much", count=6_000))
    last = text("done") if native else calls(END)
    steps = [reply, reply, reply, text("THE SUMMARY"), last]
    async with talk(tmp_path, *steps, native=native) as bench:
        bench.model.context_tokens = 6_000
        end = await bench.turn("remember the blue door")
        kept = await bench.gate.messages()
    assert end.stop == "end_turn"
    asked, after = bench.model.prompts[3:]
    assert "remember the blue door" in plain(asked) and asked.tools == ()
    assert "THE SUMMARY" in plain(after) and "remember the blue door" not in plain(after)
    assert after.messages[0].role == "user"
    (compacted,) = bench.of(COMPACTED)
    assert compacted.payload["messages"] > 0
    assert sum(isinstance(b, SummaryBlock) for m in kept for b in m.content) == 1
    assert kept[0] == Message.text("user", "remember the blue door")


async def test_what_is_kept_begins_with_no_result_without_its_call(tmp_path: Path) -> None:
    reply = uses(("a", "much", {"count": 4_000}), ("b", "much", {"count": 4_000}))
    steps = [reply, reply, text("SUMMARY"), reply, text("SUMMARY 2"), text("done")]
    async with talk(tmp_path, *steps, native=True) as bench:
        bench.model.context_tokens = 5_000
        await bench.turn()
    for prompt in bench.model.prompts:
        open_uses: list[str] = []
        for message in prompt.messages:
            results = [b.tool_use_id for b in message.content if isinstance(b, ToolResultBlock)]
            assert results == open_uses
            open_uses = [b.id for b in message.content if isinstance(b, ToolUseBlock)]


async def test_a_prompt_that_the_model_finds_too_long_is_summed_up_once(tmp_path: Path) -> None:
    too_long = ModelError(ModelErrorKind.CONTEXT, "too long")
    steps = [text("one"), too_long, text("SUMMARY"), text("two"), too_long, too_long]
    async with talk(tmp_path, *steps, native=True) as bench:
        await bench.turn("first")
        end = await bench.turn("second")
        assert (end.stop, end.text) == ("end_turn", "two")
        bench.model._steps.insert(1, text("SUMMARY"))
        end = await bench.turn("third")
    assert end.stop == "error"


async def test_a_summary_outlives_the_process(tmp_path: Path) -> None:
    async with talk(tmp_path, text("one"), native=True) as bench:
        await bench.turn("the first")
        conversations = bench.gate.runtime.sessions.conversations
        summary = Message(role="user", content=[SummaryBlock("WHAT WAS", 2)])
        await conversations.say(bench.gate.session, summary)
        again = Bench(bench.gate, bench.model, bench.agent.limits)
        bench.model._steps.append(text("two"))
        await again.turn("the second")
    assert plain(bench.model.prompts[-1]) == "[Summary of the earlier conversation]\nWHAT WAS\nthe second"


async def test_a_model_that_cannot_sum_up_does_not_end_the_turn(tmp_path: Path) -> None:
    def broken(prompt: Prompt) -> ModelError:
        return ModelError(ModelErrorKind.OVERLOADED, "busy")

    reply = uses(("a", "much", {"count": 8_000}))
    async with talk(tmp_path, reply, reply, broken, text("done"), native=True) as bench:
        bench.model.context_tokens = 5_000
        end = await bench.turn()
    assert end.stop == "end_turn"
