"""Cancelling: what it ends, what it leaves alone, and for how long it is kept."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.features.editor.acp.conftest import NewHome
from tests.features.editor.acp.editor import Editor
from tests.features.editor.acp.models import Asks, Held, Models, Says
from tests.features.editor.acp.talks import Fault

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.spec("S2-31", "S2-46", "S2-47")
async def test_a_cancel_ends_a_prompt_that_waits_for_its_model(rich: Editor, models: Models, workspace: Path) -> None:
    reply = Held(Says("never"))
    talk = await rich.new(workspace)
    running = talk.start(f"go {models.play(reply)}")
    await reply.reached()
    talk.cancel()
    assert (await running)["stopReason"] == "cancelled"
    await reply.dropped()


@pytest.mark.spec("S2-31", "S2-45")
async def test_a_cancel_ends_the_calls_that_run_and_those_that_wait(
    poor: Editor, models: Models, workspace: Path
) -> None:
    some = [
        Asks("shell", {"command": f"echo {number} > begun{number}; exec sleep 1000"}, id=f"c{number}")
        for number in range(3)
    ]
    talk = await poor.new(workspace, mode="write")
    running = talk.start(f"go {models.play(Says(calls=some), Says('never'))}")
    await poor.until(lambda: any(card.get("status") == "in_progress" for card in talk.cards()))
    talk.cancel()
    assert (await running)["stopReason"] == "cancelled"
    assert {card["status"] for card in talk.cards()} == {"failed"}
    assert talk.text() == ""


@pytest.mark.spec("S2-32")
async def test_a_cancel_touches_its_own_session_only(rich: Editor, models: Models, workspace: Path) -> None:
    replies = [Held(Says("one")), Held(Says("two"))]
    talks = [await rich.new(workspace) for _ in replies]
    running = [talk.start(f"go {models.play(reply)}") for talk, reply in zip(talks, replies, strict=True)]
    for reply in replies:
        await reply.reached()
    talks[0].cancel()
    assert (await running[0])["stopReason"] == "cancelled"
    assert not running[1].done()
    replies[1].go.set()
    assert (await running[1])["stopReason"] == "end_turn"
    assert talks[1].text() == "two"


@pytest.mark.spec("S2-33")
async def test_a_cancel_between_prompts_cancels_the_one_that_follows(
    rich: Editor, models: Models, workspace: Path
) -> None:
    play = models.play(Says("never"))
    talk = await rich.new(workspace)
    talk.cancel()
    assert await talk.prompt(f"go {play}") == "cancelled"
    assert play.requests == []
    assert await talk.prompt(f"again {models.play(Says('now'))}") == "end_turn"


@pytest.mark.spec("S2-33")
async def test_a_late_stop_does_not_swallow_a_later_prompt(new_home: NewHome, models: Models, workspace: Path) -> None:
    home = new_home(tables="\n[acp]\ncancel_latch_s = 0.01\n")
    async with Editor.opened(home) as editor:
        talk = await editor.new(workspace)
        talk.cancel()
        over = asyncio.get_running_loop().time() + 0.05
        while asyncio.get_running_loop().time() < over:
            await talk.set_mode("ask")
        assert await talk.prompt(f"go {models.play(Says('said'))}") == "end_turn"


@pytest.mark.spec("S2-34", "T-10")
async def test_a_cancel_that_hit_a_prompt_is_used_up(rich: Editor, models: Models, workspace: Path) -> None:
    reply = Held(Says("never"))
    talk = await rich.new(workspace)
    running = talk.start(f"go {models.play(reply)}")
    await reply.reached()
    talk.cancel()
    assert (await running)["stopReason"] == "cancelled"
    assert await talk.prompt(f"go on {models.play(Says('said'))}") == "end_turn"
    assert talk.text() == "said"


@pytest.mark.spec("S2-34", "T-10")
async def test_stopping_twice_is_used_up_too(rich: Editor, models: Models, workspace: Path) -> None:
    reply = Held(Says("never"))
    talk = await rich.new(workspace)
    running = talk.start(f"go {models.play(reply)}")
    await reply.reached()
    rich.send(*[{"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": talk.id}}] * 3)
    assert (await running)["stopReason"] == "cancelled"
    assert await talk.prompt(f"go on {models.play(Says('said'))}") == "end_turn"


@pytest.mark.spec("S2-33", "S2-34")
async def test_a_cancel_between_prompts_counts_after_a_cancelled_turn_too(
    rich: Editor, models: Models, workspace: Path
) -> None:
    """Each round has a cancel of a running turn and, when that is answered, one between prompts."""
    talk = await rich.new(workspace)
    stops = []
    for _ in range(10):
        reply = Held(Says("never"))
        running = talk.start(f"go {models.play(reply)}")
        await reply.reached()
        talk.cancel()
        first = (await running)["stopReason"]
        talk.cancel()
        second = await talk.prompt(f"go {models.play(Says('never'))}")
        third = await talk.prompt(f"go on {models.play(Says('now'))}")
        stops.append((first, second, third))
    assert stops == [("cancelled", "cancelled", "end_turn")] * 10


@pytest.mark.spec("S2-33")
async def test_a_cancel_counts_after_a_turn_that_ended_since_the_last_cancel(
    rich: Editor, models: Models, workspace: Path
) -> None:
    reply = Held(Says("never"))
    talk = await rich.new(workspace)
    running = talk.start(f"go {models.play(reply)}")
    await reply.reached()
    talk.cancel()
    assert (await running)["stopReason"] == "cancelled"
    assert await talk.prompt(f"go on {models.play(Says('now'))}") == "end_turn"
    talk.cancel()
    assert await talk.prompt(f"go {models.play(Says('never'))}") == "cancelled"


@pytest.mark.spec("S2-34", "S2-62")
async def test_a_cancel_and_the_answer_to_the_open_question_are_one_cancel(
    rich: Editor, models: Models, workspace: Path
) -> None:
    """The protocol wants both from an editor."""
    asked, stopped = asyncio.Event(), asyncio.Event()

    async def wait(params: dict[str, Any]) -> dict[str, Any]:
        asked.set()
        await stopped.wait()
        return {"outcome": {"outcome": "cancelled"}}

    play = models.play(Says(calls=[Asks("write_file", {"path": "a.txt", "content": "x"})]), Says("never"))
    talk = await rich.new(workspace, mode="ask")
    talk.answers["session/request_permission"] = wait
    running = talk.start(f"go {play}")
    await asyncio.wait_for(asked.wait(), 60)
    talk.cancel()
    stopped.set()
    assert (await running)["stopReason"] == "cancelled"
    assert await talk.prompt(f"go on {models.play(Says('said'))}") == "end_turn"


@pytest.mark.spec("S2-62")
@pytest.mark.parametrize("polite", [True, False])
async def test_a_cancel_during_a_question_ends_the_turn(
    rich: Editor, models: Models, workspace: Path, polite: bool
) -> None:
    """Whether the editor answers its open question, as the protocol wants, or never."""
    asked, stopped = asyncio.Event(), asyncio.Event()

    async def wait(params: dict[str, Any]) -> dict[str, Any]:
        asked.set()
        await stopped.wait()
        return {"outcome": {"outcome": "cancelled"}}

    play = models.play(Says(calls=[Asks("write_file", {"path": "a.txt", "content": "x"})]), Says("never"))
    talk = await rich.new(workspace, mode="ask")
    talk.answers["session/request_permission"] = wait
    running = talk.start(f"go {play}")
    await asyncio.wait_for(asked.wait(), 60)
    talk.cancel()
    if polite:
        stopped.set()
    assert (await running)["stopReason"] == "cancelled"
    assert ([card["status"] for card in talk.cards()], len(play.requests)) == (["failed"], 1)
    assert talk.buffers == {}
    stopped.set()


@pytest.mark.spec("S2-46")
async def test_a_question_that_is_cancelled_ends_the_turn(rich: Editor, models: Models, workspace: Path) -> None:
    play = models.play(Says(calls=[Asks("write_file", {"path": "a.txt", "content": "x"})]), Says("never"))
    talk = await rich.new(workspace, mode="ask")
    talk.answers["session/request_permission"] = lambda params: {"outcome": {"outcome": "cancelled"}}
    assert await talk.prompt(f"go {play}") == "cancelled"
    assert ([card["status"] for card in talk.cards()], len(play.requests), talk.buffers) == (["failed"], 1, {})


@pytest.mark.spec("S2-47")
async def test_an_error_of_the_editor_after_a_cancel_is_no_error_of_the_prompt(
    rich: Editor, models: Models, workspace: Path
) -> None:
    asked, stopped = asyncio.Event(), asyncio.Event()

    async def fail(params: dict[str, Any]) -> dict[str, Any]:
        asked.set()
        await stopped.wait()
        raise Fault(-32603, "closed")

    talk = await rich.new(workspace, mode="ask")
    talk.answers["fs/read_text_file"] = fail
    play = models.play(Says(calls=[Asks("read_file", {"path": "a.txt"})]), Says("never"))
    running = talk.start(f"go {play}")
    await asyncio.wait_for(asked.wait(), 60)
    talk.cancel()
    assert (await running)["stopReason"] == "cancelled"
    stopped.set()


async def test_a_request_that_is_cancelled_is_answered(rich: Editor, models: Models, workspace: Path) -> None:
    reply = Held(Says("never"))
    talk = await rich.new(workspace)
    blocks = [{"type": "text", "text": f"go {models.play(reply)}"}]
    talk.wire.append(("prompt", {"prompt": blocks}))
    id, answer = rich.start("session/prompt", {"sessionId": talk.id, "prompt": blocks})
    await reply.reached()
    rich.notify("$/cancel_request", {"requestId": id})
    try:
        assert (await asyncio.wait_for(answer, 60))["stopReason"] == "cancelled"
    except Fault as fault:
        assert fault.code == -32800
    for wrong in ({"requestId": 10**9}, {"requestId": None}, {}, None, {"requestId": [id]}):
        rich.notify("$/cancel_request", wrong)
    assert await talk.prompt(f"go on {models.play(Says('said'))}") == "end_turn"


@pytest.mark.spec("S2-45")
async def test_cancels_at_any_moment_leave_no_card_open(rich: Editor, models: Models, workspace: Path) -> None:
    """The cancel comes after the first, the second, ... message of a turn."""
    for moment in range(1, 12):
        input = {"path": f"{moment}.txt", "content": "x"}
        play = models.play(
            Says("Now.", calls=[Asks("write_file", input), Asks("read_file", {"path": "a"}, id="c2")]), Says("Done.")
        )
        talk = await rich.new(workspace, mode="ask")
        talk.allow("allow_once")
        before = len(talk.wire)
        running = talk.start(f"go {play}")
        await rich.until(
            lambda talk=talk, before=before, moment=moment, running=running: (
                len(talk.wire) >= before + 1 + moment or running.done()
            )
        )
        talk.cancel()
        assert (await running)["stopReason"] in ("cancelled", "end_turn")
        await talk.close()
