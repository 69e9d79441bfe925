"""Sub-agents, as an editor sees them: a card of their parent."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from tests.features.editor.acp.editor import CALLGATE, Editor, environment
from tests.features.editor.acp.models import Asks, Held, Models, Play, Says
from tests.features.editor.acp.test_files import shown

pytestmark = pytest.mark.asyncio(loop_scope="session")


def parent(models: Models, *children: Play) -> Play:
    calls = [Asks("spawn_agent", {"task": f"do {child}"}, id=f"s{number}") for number, child in enumerate(children)]
    return models.play(Says(calls=calls), Says("All reported."))


@pytest.mark.spec("S2-72")
async def test_its_words_are_not_streamed_and_its_report_is_the_result_of_the_card(
    rich: Editor, models: Models, workspace: Path
) -> None:
    child = models.play(
        Says("A secret thought.", thinking="Hm.", calls=[Asks("read_file", {"path": "a.txt"})]), Says("The report.")
    )
    talk = await rich.new(workspace)
    talk.buffers[str(workspace / "a.txt")] = "alpha\n"
    assert await talk.prompt(f"go {parent(models, child)}") == "end_turn"
    assert (talk.text(), talk.text("agent_thought_chunk")) == ("All reported.", "")
    [card] = talk.cards()
    assert (card["status"], card["kind"], "The report." in shown(card)) == ("completed", "think", True)
    assert "secret" not in json.dumps(card)


@pytest.mark.spec("S2-72")
async def test_its_progress_is_on_the_card_of_its_parent(rich: Editor, models: Models, workspace: Path) -> None:
    second = Held(Says("The report."))
    child = models.play(Says(calls=[Asks("read_file", {"path": "progress.txt"})]), second)
    talk = await rich.new(workspace)
    talk.buffers[str(workspace / "progress.txt")] = "alpha\n"
    running = talk.start(f"go {parent(models, child)}")
    await rich.until(lambda: any("read_file" in json.dumps(each) for each in talk.updates("tool_call_update")))
    assert len(talk.cards()) == 1
    second.go.set()
    assert (await running)["stopReason"] == "end_turn"


@pytest.mark.spec("S2-73")
async def test_what_it_asks_of_the_editor_carries_the_session_of_its_parent(
    rich: Editor, models: Models, workspace: Path
) -> None:
    """The editor knows no other session: anything else would be a problem of its own."""
    child = models.play(
        Says(
            calls=[
                Asks("read_file", {"path": "a.txt"}, id="c1"),
                Asks("write_file", {"path": "b.txt", "content": "x\n"}, id="c2"),
                Asks("shell", {"command": "true"}, id="c3"),
            ]
        ),
        Says("The report."),
    )
    talk = await rich.new(workspace, mode="ask")
    talk.buffers[str(workspace / "a.txt")] = "alpha\n"
    talk.allow("allow_once")
    assert await talk.prompt(f"go {parent(models, child)}") == "end_turn"
    methods = ("fs/read_text_file", "fs/write_text_file", "terminal/create", "session/request_permission")
    assert [bool(talk.asked(method)) for method in methods] == [True] * 4
    assert len(talk.asked("session/request_permission")) == 2
    assert talk.buffers[str(workspace / "b.txt")] == "x\n"
    known = {card["toolCallId"] for card in talk.cards()}
    assert {each["toolCall"]["toolCallId"] for each in talk.asked("session/request_permission")} <= known


@pytest.mark.spec("S2-27")
async def test_it_is_in_no_list_and_cannot_be_opened(poor: Editor, models: Models, workspace: Path) -> None:
    child = models.play(Says("The report."))
    talk = await poor.new(workspace)
    assert await talk.prompt(f"go {parent(models, child)}") == "end_turn"
    listed = (await poor.ask("session/list", {"cwd": str(workspace)}))["sessions"]
    assert [each["sessionId"] for each in listed] == [talk.id]
    command = [*CALLGATE, "sessions", "list", "--workspace", workspace, "--workers", "--json"]
    ran = await asyncio.to_thread(subprocess.run, command, env=environment(poor.home), capture_output=True, check=True)
    [worker] = {each["id"] for each in json.loads(ran.stdout)["sessions"]} - {talk.id}
    for method in ("session/load", "session/resume"):
        assert await poor.refused(method, {"sessionId": worker, "cwd": str(workspace), "mcpServers": []}) == -32602


@pytest.mark.spec("S2-74")
async def test_it_cannot_start_another(rich: Editor, models: Models, workspace: Path) -> None:
    grandchild = models.play(Says("never"))
    child = models.play(Says(calls=[Asks("spawn_agent", {"task": f"do {grandchild}"})]), Says("I could not."))
    talk = await rich.new(workspace)
    assert await talk.prompt(f"go {parent(models, child)}") == "end_turn"
    assert grandchild.requests == []
    assert "spawn_agent" not in {each["name"] for each in child.requests[0]["tools"]}
    assert "I could not." in shown(talk.cards()[0])


@pytest.mark.spec("S2-75")
async def test_cancelling_its_parent_cancels_it_first(rich: Editor, models: Models, workspace: Path) -> None:
    replies = [Held(Says("never")), Held(Says("never"))]
    play = parent(models, *(models.play(reply) for reply in replies))
    talk = await rich.new(workspace)
    running = talk.start(f"go {play}")
    for reply in replies:
        await reply.reached()
    talk.cancel()
    assert (await running)["stopReason"] == "cancelled"
    await asyncio.gather(*(reply.dropped() for reply in replies))
    assert ([card["status"] for card in talk.cards()], len(play.requests)) == (["failed", "failed"], 1)


@pytest.mark.spec("S2-75")
async def test_cancelling_its_parent_ends_the_command_that_it_runs(
    rich: Editor, models: Models, workspace: Path
) -> None:
    child = models.play(Says(calls=[Asks("shell", {"command": "echo begun; exec sleep 1000"})]), Says("never"))
    talk = await rich.new(workspace, mode="write")
    running = talk.start(f"go {parent(models, child)}")
    await asyncio.wait_for(talk.terminals.said(b"begun"), 60)
    talk.cancel()
    assert (await running)["stopReason"] == "cancelled"
    assert talk.terminals.methods[-1] == "terminal/release"
    assert "terminal/kill" in talk.terminals.methods


async def test_a_mode_below_its_parents_holds_and_one_above_does_not(
    rich: Editor, models: Models, workspace: Path
) -> None:
    write = Asks("write_file", {"path": "a.txt", "content": "x"})
    for mode, asked in (("read", "write"), ("write", "read")):
        child = models.play(Says(calls=[write]), Says("Done."))
        play = models.play(Says(calls=[Asks("spawn_agent", {"task": f"do {child}", "mode": asked})]), Says("ok"))
        talk = await rich.new(workspace, mode=mode)
        assert await talk.prompt(f"go {play}") == "end_turn"
        assert (talk.buffers, talk.asked("session/request_permission")) == ({}, [])
