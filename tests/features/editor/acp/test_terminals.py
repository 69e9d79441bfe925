"""Commands in the editor's terminal."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.features.editor.acp.conftest import NewHome
from tests.features.editor.acp.editor import EVERYTHING, Editor
from tests.features.editor.acp.models import Asks, Models, Says, texts
from tests.features.editor.acp.talks import Talk
from tests.features.editor.acp.test_files import shown
from tests.needs import needs

pytestmark = pytest.mark.asyncio(loop_scope="session")

ONCE = ["terminal/create", "terminal/wait_for_exit", "terminal/output", "terminal/release"]
FOREVER = "printf 'be%s\\n' gun; exec sleep 1000"
"""It says something that does not stand in the command."""


def command(line: str, **more: Any) -> str:
    return json.dumps({"command": line, **more})


@pytest.mark.spec("S2-10", "S2-16")
@pytest.mark.parametrize("mode", ["ask", "write"])
async def test_a_command_runs_in_the_editors_terminal(rich: Editor, models: Models, workspace: Path, mode: str) -> None:
    play = models.play(Says(calls=[Asks("shell", {"command": "echo said; pwd; exit 3"})]), Says("Done."))
    talk = await rich.new(workspace, mode=mode)
    talk.allow("allow_once")
    assert await talk.prompt(f"go {play}") == "end_turn"
    [card] = talk.cards()
    made = talk.terminals.requests[0][1]
    assert talk.terminals.methods == ONCE
    assert (made["sessionId"], made["cwd"]) == (talk.id, str(workspace))
    assert made["outputByteLimit"] > 0
    assert [each["terminalId"] for _, each in talk.terminals.requests[1:]] == ["t1"] * 3
    assert f"said\n{workspace}" in play.told()
    assert {"type": "terminal", "terminalId": "t1"} in card["content"]
    assert (len(talk.asked("session/request_permission")) == 1) == (mode == "ask")


@pytest.mark.spec("S2-10")
async def test_the_terminal_is_on_the_card_while_the_command_runs(rich: Editor, workspace: Path) -> None:
    talk = await rich.new(workspace, mode="write")
    running = talk.start("/tool shell " + command(FOREVER))
    at = {"type": "terminal", "terminalId": "t1"}
    await rich.until(lambda: any(at in (card.get("content") or []) for card in talk.cards()))
    assert not running.done()
    talk.cancel()
    assert (await running)["stopReason"] == "cancelled"


@pytest.mark.spec("S2-11")
async def test_a_cancelled_command_is_killed_read_and_released(rich: Editor, models: Models, workspace: Path) -> None:
    play = models.play(Says(calls=[Asks("shell", {"command": FOREVER})]), Says("never said"))
    talk = await rich.new(workspace, mode="write")
    running = talk.start(f"go {play}")
    await _begun(talk)
    talk.cancel()
    assert (await running)["stopReason"] == "cancelled"
    methods = [method for method in talk.terminals.methods if method != "terminal/wait_for_exit"]
    # While it ran, its output may have been looked at.
    assert methods[0] == "terminal/create"
    assert methods[-3:] == ["terminal/kill", "terminal/output", "terminal/release"]
    assert methods.count("terminal/release") == methods.count("terminal/kill") == 1
    assert [card["status"] for card in talk.cards()] == ["failed"]
    after = models.play(Says("I see."))
    assert await talk.prompt(f"what was it? {after}") == "end_turn"
    assert "begun" in "\n".join(texts(each) for each in after.requests[0]["messages"])


@pytest.mark.spec("S2-11")
async def test_a_command_whose_time_is_up_is_killed_read_and_released(
    rich: Editor, models: Models, workspace: Path
) -> None:
    play = models.play(Says(calls=[Asks("shell", {"command": FOREVER, "timeout_seconds": 1})]), Says("I see."))
    talk = await rich.new(workspace, mode="write")
    assert await talk.prompt(f"go {play}") == "end_turn"
    methods = [method for method in talk.terminals.methods if method != "terminal/wait_for_exit"]
    assert methods[-3:] == ["terminal/kill", "terminal/output", "terminal/release"]
    assert ([card["status"] for card in talk.cards()], "begun" in play.told()) == (["failed"], True)


@pytest.mark.spec("S2-12", "T-13")
async def test_mode_read_runs_no_command_in_the_editor(rich: Editor, workspace: Path) -> None:
    talk = await rich.new(workspace, mode="read")
    card = await talk.tool("shell", command("echo local; echo x > made.txt"))
    assert talk.terminals.requests == []
    assert not (workspace / "made.txt").exists()
    assert talk.asked("session/request_permission") == []
    assert card["status"] in ("completed", "failed")


@needs("bwrap")
@pytest.mark.spec("S2-12")
async def test_in_mode_read_a_command_runs_here_and_can_only_read(rich: Editor, workspace: Path) -> None:
    (workspace / "a.txt").write_text("on the disk\n")
    talk = await rich.new(workspace, mode="read")
    card = await talk.tool("shell", command("cat a.txt; touch made.txt || echo not made"))
    assert (card["status"], talk.terminals.requests) == ("completed", [])
    lines = shown(card).splitlines()
    assert ("on the disk" in lines, "not made" in lines) == (True, True), lines
    assert not (workspace / "made.txt").exists()


@pytest.mark.spec("S2-12", "T-13")
async def test_a_mode_that_becomes_read_while_a_person_is_asked_keeps_the_command_out_of_the_editor(
    rich: Editor, workspace: Path
) -> None:
    talk = await rich.new(workspace, mode="ask")
    asked, answer = asyncio.Event(), asyncio.Event()

    async def later(params: dict[str, Any]) -> dict[str, Any]:
        asked.set()
        await answer.wait()
        return {"outcome": {"outcome": "selected", "optionId": params["options"][0]["optionId"]}}

    talk.answers["session/request_permission"] = later
    running = talk.start("/tool shell " + command("echo x > made.txt"))
    await asyncio.wait_for(asked.wait(), 60)
    await talk.set_mode("read")
    answer.set()
    assert (await running)["stopReason"] == "end_turn"
    assert talk.terminals.requests == []
    assert not (workspace / "made.txt").exists()


@pytest.mark.spec("S2-13")
async def test_without_a_terminal_in_the_editor_the_command_runs_here(
    poor: Editor, rich: Editor, models: Models, workspace: Path
) -> None:
    seen = []
    for editor in (poor, rich):
        play = models.play(Says(calls=[Asks("shell", {"command": "printf 'sa%s\\n' me; pwd; exit 2"})]), Says("I see."))
        talk = await editor.new(workspace, mode="write")
        assert await talk.prompt(f"go {play}") == "end_turn"
        [card] = talk.cards()
        seen.append((card["status"], card["kind"], card["title"], play.told()))
    assert seen[0] == seen[1]
    assert f"same\n{workspace}" in seen[0][3]


@pytest.mark.spec("S2-14")
@pytest.mark.parametrize("method", ["terminal/create", "terminal/wait_for_exit", "terminal/output"])
async def test_an_error_of_the_terminal_fails_the_call_and_not_the_turn(
    rich: Editor, models: Models, workspace: Path, method: str
) -> None:
    play = models.play(Says(calls=[Asks("shell", {"command": "echo x"})]), Says("I go on."))
    talk = await rich.new(workspace, mode="write")
    talk.terminals.fault[method] = -32603
    assert await talk.prompt(f"go {play}") == "end_turn"
    [card] = talk.cards()
    assert (card["status"], talk.text()) == ("failed", "I go on.")
    released = 0 if method == "terminal/create" else 1
    assert talk.terminals.methods.count("terminal/release") == released


@pytest.mark.spec("S2-14")
async def test_a_terminal_that_cannot_be_killed_or_released_ends_the_call_all_the_same(
    rich: Editor, workspace: Path
) -> None:
    talk = await rich.new(workspace, mode="write")
    talk.terminals.fault |= {"terminal/kill": -32603, "terminal/release": -32603}
    running = talk.start("/tool shell " + command(FOREVER))
    await _begun(talk)
    talk.cancel()
    await rich.until(lambda: "terminal/kill" in talk.terminals.methods)
    await talk.terminals.close()  # it ends by itself
    assert (await asyncio.wait_for(running, 60))["stopReason"] == "cancelled"


@pytest.mark.spec("S2-17")
async def test_a_setting_keeps_commands_out_of_the_editor(new_home: NewHome, workspace: Path) -> None:
    home = new_home(tables="\n[acp]\ndelegate_terminal = false\n")
    async with Editor.opened(home, capabilities=EVERYTHING) as editor:
        talk = await editor.new(workspace, mode="write")
        card = await talk.tool("shell", command("printf 'he%s' re"))
        assert (talk.terminals.requests, card["status"], "here" in shown(card)) == ([], "completed", True)


@pytest.mark.spec("T-13")
async def test_the_question_says_that_the_command_leaves_the_sandbox(
    rich: Editor, poor: Editor, workspace: Path
) -> None:
    said = []
    for editor in (rich, poor):
        talk = await editor.new(workspace, mode="ask")
        talk.allow("reject_once")
        await talk.tool("shell", command("echo x"))
        said.append("outside the sandbox" in json.dumps(talk.asked("session/request_permission")))
    assert said == [True, False]


async def test_output_that_is_no_text_or_much_of_it_is_taken(rich: Editor, workspace: Path) -> None:
    talk = await rich.new(workspace, mode="write")
    lines = r"""printf '\377\000\033[31m\n'; yes 0123456789 | head -c 3000000"""
    card = await talk.tool("shell", command(lines))
    assert card["status"] == "completed"
    assert len(json.dumps(card)) < 1_500_000


async def _begun(talk: Talk) -> None:
    """Until the command has written its first line into the terminal."""
    await asyncio.wait_for(talk.terminals.said(b"begun"), 60)


async def test_a_command_that_runs_here_is_shown_live_where_the_editor_knows_how(
    new_home: NewHome, workspace: Path
) -> None:
    """By the convention in `_meta` that some editors advertise."""
    async with Editor.opened(new_home(), capabilities={"_meta": {"terminal_output": True}}) as editor:
        talk = await editor.new(workspace, mode="write")
        running = talk.start("/tool shell " + command(FOREVER))

        def told() -> list[dict[str, Any]]:
            return [each["_meta"] for each in talk.updates("tool_call_update") if each.get("_meta")]

        await editor.until(lambda: any("begun" in each.get("terminal_output", {}).get("data", "") for each in told()))
        talk.cancel()
        assert (await running)["stopReason"] == "cancelled"
        ids = {each["terminal_id"] for meta in told() for each in meta.values()}
        assert ({name for meta in told() for name in meta}, len(ids)) == (
            {"terminal_info", "terminal_output", "terminal_exit"},
            1,
        )


@pytest.mark.parametrize(
    ("line", "code", "signal"), [("true", 0, None), ("exit 3", 3, None), ("kill -KILL $$", None, "SIGKILL")]
)
async def test_how_a_command_that_runs_here_ended_is_told_too(
    new_home: NewHome, workspace: Path, line: str, code: int | None, signal: str | None
) -> None:
    async with Editor.opened(new_home(), capabilities={"_meta": {"terminal_output": True}}) as editor:
        talk = await editor.new(workspace, mode="write")
        card = await talk.tool("shell", command(line))
    assert (card["status"], card["_meta"]["terminal_exit"]) == (
        "completed" if code == 0 else "failed",
        {"terminal_id": card["toolCallId"], "exit_code": code, "signal": signal},
    )


async def test_what_a_command_writes_is_on_its_card_while_it_runs(poor: Editor, workspace: Path) -> None:
    talk = await poor.new(workspace, mode="write")
    running = talk.start("/tool shell " + command(FOREVER))
    await poor.until(
        lambda: any("begun" in shown(each) for each in talk.updates("tool_call_update") if each.get("content"))
    )
    talk.cancel()
    assert (await running)["stopReason"] == "cancelled"


ORDINARY = ["ls", "git init -q .", "mkdir sub", "printf 'te%s\\n' xt > sub/a.txt", "cat sub/a.txt", "wc -l sub/a.txt"]
"""None of them appears in what the user wrote."""


@needs("bwrap")
@pytest.mark.spec("S2-10", "S2-16")
async def test_ordinary_commands_of_a_turn_need_no_approval_in_mode_write(
    rich: Editor, models: Models, workspace: Path
) -> None:
    """After the first command the guard takes the session for one that read untrusted content."""
    talk = await rich.new(workspace, mode="write")
    talk.allow("reject_once")
    for line in ORDINARY:
        play = models.play(Says(calls=[Asks("shell", {"command": line})]), Says("Done."))
        assert await talk.prompt(f"set it up {play}") == "end_turn"
    assert talk.asked("session/request_permission") == []
    assert [card["status"] for card in talk.cards()] == ["completed"] * len(ORDINARY)
    assert "text" in shown(talk.cards()[4])
    assert (workspace / "sub/a.txt").read_text() == "text\n"
    in_terminal = talk.terminals.methods.count("terminal/create")
    said = ["runs in callgate's sandbox, not in the editor's terminal" in shown(card) for card in talk.cards()]
    assert said == [False] * in_terminal + [True] * (len(ORDINARY) - in_terminal)
    assert 0 < in_terminal < len(ORDINARY)


@needs("bwrap")
async def test_a_command_that_the_guard_keeps_out_of_the_terminal_reaches_no_network(
    rich: Editor, models: Models, workspace: Path
) -> None:
    """It needs approval if it asks for the network in the sandbox, too."""
    fetch = "exec 3<>/dev/tcp/127.0.0.1/1 || echo offline"
    play = models.play(
        Says(calls=[Asks("shell", {"command": "ls"})]),
        Says(calls=[Asks("shell", {"command": fetch})]),
        Says(calls=[Asks("shell", {"command": "ls -a", "network": True})]),
        Says("Done."),
    )
    talk = await rich.new(workspace, mode="write")
    talk.allow("reject_once")
    assert await talk.prompt(f"set it up {play}") == "end_turn"
    assert talk.terminals.methods.count("terminal/create") == 1
    [question] = talk.asked("session/request_permission")
    assert question["toolCall"]["rawInput"]["command"] == "ls -a"
    assert "instead of the editor's terminal" in json.dumps(question)
    assert [card["status"] for card in talk.cards()][1:] == ["completed", "failed"]


async def test_a_command_in_the_users_words_runs_in_the_terminal_also_after_others(
    rich: Editor, models: Models, workspace: Path
) -> None:
    play = models.play(
        Says(calls=[Asks("shell", {"command": "ls"})]),
        Says(calls=[Asks("shell", {"command": "ls -la"})]),
        Says("Done."),
    )
    talk = await rich.new(workspace, mode="write")
    assert await talk.prompt(f"run `ls -la` {play}") == "end_turn"
    assert talk.terminals.methods.count("terminal/create") == 2
    assert talk.asked("session/request_permission") == []


@needs("bwrap")
async def test_commands_of_one_reply_that_wait_for_a_slot_need_no_approval(
    rich: Editor, models: Models, workspace: Path
) -> None:
    """Those that run first make the guard object to the others, which wait."""
    calls = [Asks("shell", {"command": f"echo {number} > {number}.txt"}, id=f"c{number}") for number in range(9)]
    talk = await rich.new(workspace, mode="write")
    talk.allow("reject_once")
    assert await talk.prompt(f"go {models.play(Says(calls=calls), Says('Done.'))}") == "end_turn"
    assert talk.asked("session/request_permission") == []
    assert [card["status"] for card in talk.cards()] == ["completed"] * 9
    assert len(list(workspace.glob("*.txt"))) == 9
