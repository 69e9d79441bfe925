"""Modes: what runs in each, and how they change."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.features.editor.acp.conftest import NewHome
from tests.features.editor.acp.editor import Editor
from tests.features.editor.acp.models import Asks, Held, Models, Says

pytestmark = pytest.mark.asyncio(loop_scope="session")

EACH = [
    Asks("read_file", {"path": "a.txt"}, id="c1"),
    Asks("write_file", {"path": "b.txt", "content": "x"}, id="c2"),
    Asks("shell", {"command": "touch c.txt"}, id="c3"),
]


async def _outcome(editor: Editor, models: Models, workspace: Path, mode: str) -> dict[str, Any]:
    (workspace / "a.txt").write_text("a\n")
    talk = await editor.new(workspace, mode=mode)
    talk.allow("allow_once")
    assert await talk.prompt(f"go {models.play(Says(calls=EACH), Says('Done.'))}") == "end_turn"
    return {
        "ended": {card["rawInput"].get("path") or "shell": card["status"] for card in talk.cards()},
        "asked": len(talk.asked("session/request_permission")),
        "written": (workspace / "b.txt").exists(),
        "touched": (workspace / "c.txt").exists(),
    }


@pytest.mark.spec("S2-52")
async def test_in_mode_none_nothing_runs(poor: Editor, models: Models, workspace: Path) -> None:
    assert await _outcome(poor, models, workspace, "none") == {
        "ended": {"a.txt": "failed", "b.txt": "failed", "shell": "failed"},
        "asked": 0,
        "written": False,
        "touched": False,
    }


@pytest.mark.spec("S2-53")
async def test_in_mode_read_nothing_is_written(poor: Editor, models: Models, workspace: Path) -> None:
    outcome = await _outcome(poor, models, workspace, "read")
    outcome["ended"].pop(
        "shell"
    )  # in the read-only sandbox, if this machine has one: it fails either way or does nothing
    assert outcome == {
        "ended": {"a.txt": "completed", "b.txt": "failed"},
        "asked": 0,
        "written": False,
        "touched": False,
    }


@pytest.mark.spec("S2-55")
async def test_in_mode_ask_writes_and_commands_ask_and_reads_do_not(
    poor: Editor, models: Models, workspace: Path
) -> None:
    assert await _outcome(poor, models, workspace, "ask") == {
        "ended": {"a.txt": "completed", "b.txt": "completed", "shell": "completed"},
        "asked": 2,
        "written": True,
        "touched": True,
    }


@pytest.mark.spec("S2-54")
async def test_in_mode_write_nobody_is_asked(poor: Editor, models: Models, workspace: Path) -> None:
    assert await _outcome(poor, models, workspace, "write") == {
        "ended": {"a.txt": "completed", "b.txt": "completed", "shell": "completed"},
        "asked": 0,
        "written": True,
        "touched": True,
    }


@pytest.mark.spec("S2-35")
async def test_a_change_of_mode_is_told_and_holds_for_the_next_call_of_the_turn(
    rich: Editor, models: Models, workspace: Path
) -> None:
    second = Held(Says(calls=[Asks("write_file", {"path": "b.txt", "content": "x"}, id="c2")]))
    play = models.play(
        Says(calls=[Asks("write_file", {"path": "a.txt", "content": "x"}, id="c1")]), second, Says("Done.")
    )
    talk = await rich.new(workspace, mode="write")
    running = talk.start(f"go {play}")
    await second.reached()
    await talk.set_mode("read")
    assert not running.done()
    await talk.seen("current_mode_update", 2)
    second.go.set()
    assert (await running)["stopReason"] == "end_turn"
    assert [card["status"] for card in talk.cards()] == ["completed", "failed"]
    assert [each["currentModeId"] for each in talk.updates("current_mode_update")] == ["write", "read"]


@pytest.mark.spec("S2-35")
async def test_a_mode_that_widens_during_a_turn_asks_no_longer(rich: Editor, models: Models, workspace: Path) -> None:
    second = Held(Says(calls=[Asks("write_file", {"path": "b.txt", "content": "x"}, id="c2")]))
    play = models.play(
        Says(calls=[Asks("write_file", {"path": "a.txt", "content": "x"}, id="c1")]), second, Says("Done.")
    )
    talk = await rich.new(workspace, mode="ask")
    talk.allow("allow_once")
    running = talk.start(f"go {play}")
    await second.reached()
    await talk.set_mode("write")
    second.go.set()
    assert (await running)["stopReason"] == "end_turn"
    assert [card["status"] for card in talk.cards()] == ["completed", "completed"]
    assert len(talk.asked("session/request_permission")) == 1


@pytest.mark.spec("S2-36")
async def test_an_unknown_mode_is_refused_and_changes_nothing(rich: Editor, workspace: Path) -> None:
    talk = await rich.new(workspace, mode="read")
    for wrong in ("sudo", "", "READ", "write ", 5, None, True, ["write"], {"id": "write"}):
        assert await talk.refused("session/set_mode", modeId=wrong) == -32602, wrong
    assert await talk.refused("session/set_mode") == -32602
    assert [each["currentModeId"] for each in talk.updates("current_mode_update")] == ["read"]
    assert (await talk.tool("write_file", '{"path": "a.txt", "content": ""}'))["status"] == "failed"


@pytest.mark.spec("S2-36", "S2-51")
async def test_a_mode_that_the_settings_leave_out_is_not_there(
    new_home: NewHome, models: Models, workspace: Path
) -> None:
    home = new_home(settings='mode = "read"\n', tables='\n[acp]\nmodes = ["read", "ask"]\n')
    async with Editor.opened(home) as editor:
        talk = await editor.new(workspace)
        await talk.prompt(f"hello {models.play(Says('hi'))}")
        opened = [talk.opened]
        for wrong in ("write", "none"):
            assert await talk.refused("session/set_mode", modeId=wrong) == -32602
        for open_again in (editor.load, editor.resume):
            await talk.close()
            talk = await open_again(talk.id, workspace)
            opened.append(talk.opened)
    said = [
        (each["modes"]["currentModeId"], [mode["id"] for mode in each["modes"]["availableModes"]]) for each in opened
    ]
    assert said == [("read", ["read", "ask"])] * 3
    offered = [option["value"] for each in opened for option in each["configOptions"][0]["options"]]
    assert offered == ["read", "ask"] * 3


@pytest.mark.spec("S2-37")
async def test_a_mode_belongs_to_one_session(rich: Editor, workspace: Path) -> None:
    first, second = await rich.new(workspace), await rich.new(workspace)
    await first.set_mode("write")
    third = await rich.new(workspace)
    assert [each.opened["modes"]["currentModeId"] for each in (second, third)] == ["ask", "ask"]
    assert second.updates("current_mode_update") == []
    for talk in (second, third):
        talk.allow("reject_once")
        assert (await talk.tool("write_file", '{"path": "a.txt", "content": ""}'))["status"] == "failed"
        assert len(talk.asked("session/request_permission")) == 1


async def test_the_mode_of_the_command_line_is_the_first(new_home: NewHome, workspace: Path) -> None:
    async with Editor.opened(new_home(), "--mode", "write") as editor:
        talk = await editor.new(workspace)
        assert talk.opened["modes"]["currentModeId"] == "write"
        assert (await talk.tool("write_file", '{"path": "a.txt", "content": ""}'))["status"] == "completed"


async def test_changing_the_mode_while_a_person_is_asked_answers_at_once(rich: Editor, workspace: Path) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def later(params: dict[str, Any]) -> dict[str, Any]:
        asked.set()
        await answer.wait()
        return {"outcome": {"outcome": "selected", "optionId": params["options"][0]["optionId"]}}

    talk = await rich.new(workspace, mode="ask")
    talk.answers["session/request_permission"] = later
    running = talk.start('/tool write_file {"path": "a.txt", "content": ""}')
    await asyncio.wait_for(asked.wait(), 60)
    await talk.set_mode("none")
    answer.set()
    assert (await running)["stopReason"] == "end_turn"
    assert [card["status"] for card in talk.cards()] == ["failed"]
    assert talk.buffers == {}
