"""Commands that an agent behind the proxy has us run."""

from __future__ import annotations

import json
from pathlib import Path

from callgate.features.agents.proxy.runners import Terminal, environment, shell_arguments
from callgate.protocol.acp.client_requests import CreateTerminal, Variable
from callgate.workspace.undo.history import History
from tests.features.agents.proxy.conftest import Open, asked, permission, play, records

WAIT = {"ask": "terminal/wait_for_exit", "params": {"terminalId": "$TERMINAL"}}
OUTPUT = {"ask": "terminal/output", "params": {"terminalId": "$TERMINAL"}}
RELEASE = {"ask": "terminal/release", "params": {"terminalId": "$TERMINAL"}}


def create(command: str, **more: object) -> dict[str, object]:
    return {"ask": "terminal/create", "params": {"command": command, **more}}


async def test_a_command_runs_in_our_sandbox_and_is_recorded(opened: Open, home: Path, workspace: Path) -> None:
    async with opened() as editor:
        talk = await editor.new(workspace)
        talk.allow("allow_once")
        _, ended, output, _, gone = await play(talk, create("echo", args=["a  b"]), WAIT, OUTPUT, RELEASE, OUTPUT)
    assert ended["result"] == {"exitCode": 0, "signal": None}
    assert output["result"]["output"] == "a  b\n"
    assert gone["error"]["code"] == -32602
    [record] = records(home)
    assert (record["tool"], record["sandbox"]) == ("shell", "workspace")


async def test_the_changes_of_a_command_are_stored_for_undo(opened: Open, home: Path, workspace: Path) -> None:
    async with opened() as editor:
        talk = await editor.new(workspace)
        talk.allow("allow_once")
        await play(talk, create("echo new > made"), WAIT, RELEASE)
    [found] = History(str(home / "undo")).latest(5)
    assert [(each.kind, each.real) for each in found.changes] == [("created", str(workspace.resolve() / "made"))]


async def test_a_denied_command_never_starts(opened: Open, workspace: Path) -> None:
    async with opened() as editor:
        talk = await editor.new(workspace)
        talk.allow("reject_once")
        [refused] = await play(talk, create("touch ran"))
    assert refused["error"]["data"]["class"] == "user_denied"
    assert not (workspace / "ran").exists()


async def test_a_kill_ends_the_command_and_keeps_its_output(opened: Open, workspace: Path) -> None:
    async with opened(settings='mode = "write"\n') as editor:
        talk = await editor.new(workspace)
        kill = {"ask": "terminal/kill", "params": {"terminalId": "$TERMINAL"}}
        _, _, ended, output = await play(talk, create("echo begun; exec sleep 600"), kill, WAIT, OUTPUT)
    assert ended["result"]["exitCode"] is None
    assert ended["result"]["signal"] == "SIGTERM"
    assert output["result"]["exitStatus"] == ended["result"]


async def test_a_cancel_ends_commands_and_questions(opened: Open, workspace: Path) -> None:
    async with opened(settings='mode = "write"\n') as editor:
        talk = await editor.new(workspace)
        steps = [create("sleep 600"), {"say": "started"}, WAIT]
        prompt = talk.start(json.dumps(steps))
        await editor.until(lambda: '"started"' in talk.text())
        talk.cancel()
        assert (await prompt)["stopReason"] == "cancelled"
        assert "SIGTERM" in talk.text()


async def test_the_card_shows_text_in_place_of_a_terminal_that_the_editor_does_not_have(
    opened: Open, workspace: Path
) -> None:
    shows = {
        "update": {
            "sessionUpdate": "tool_call",
            "toolCallId": "c1",
            "title": "run",
            "kind": "execute",
            "status": "in_progress",
            "content": [{"type": "terminal", "terminalId": "$TERMINAL"}],
        }
    }
    done = {"update": {"sessionUpdate": "tool_call_update", "toolCallId": "c1", "status": "completed"}}
    async with opened(settings='mode = "write"\n') as editor:
        talk = await editor.new(workspace)
        await play(talk, create("echo shown"), shows, WAIT, done)
        await editor.until(lambda: any("shown" in json.dumps(card.get("content")) for card in talk.cards()))
        [card] = [each for each in talk.cards() if each["toolCallId"] == "c1"]
    assert card["content"] == [{"type": "content", "content": {"type": "text", "text": "shown\n"}}]


async def test_a_yes_to_the_agents_question_covers_exactly_that_command(opened: Open, workspace: Path) -> None:
    async with opened() as editor:
        talk = await editor.new(workspace)
        talk.allow("allow_once", "reject_once")
        question = permission("t", kind="execute", rawInput={"command": "echo one"})
        _, first, other = await play(talk, question, create("echo one"), create("echo two"))
        assert "result" in first
        assert other["error"]["data"]["class"] == "user_denied"
        assert len(asked(talk)) == 2


def test_variables_that_could_choose_a_program_stand_in_the_command() -> None:
    request = CreateTerminal(
        session_id="s",
        command="git",
        args=["log"],
        env=[
            Variable(name="NO_COLOR", value="1"),
            Variable(name="GIT_PAGER", value="cat"),
            Variable(name="PAGER", value="sh -c evil"),
            Variable(name="LD_PRELOAD", value="/tmp/x.so"),
        ],
        cwd="/w",
    )
    expected = "export PAGER='sh -c evil'\nexport LD_PRELOAD=/tmp/x.so\ngit log"
    assert shell_arguments(request, "/w") == {"command": expected}
    given = environment(request)
    assert given["NO_COLOR"] == "1" and given["GIT_PAGER"] == "cat"
    assert "LD_PRELOAD" not in given


def test_output_is_cut_between_characters() -> None:
    async def cut() -> str:
        terminal = Terminal("t", 4)
        terminal.add("aäää".encode())
        return terminal.state().output

    import asyncio

    assert asyncio.run(cut()) == "ää"
