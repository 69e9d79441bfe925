"""Questions to the person in the editor, and what their answers hold for."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.features.editor.acp.editor import CALLGATE, LIMIT_S, Editor, environment
from tests.features.editor.acp.models import Asks, Models, Says
from tests.features.editor.acp.talks import Fault, Talk
from tests.features.editor.acp.test_files import fails

pytestmark = pytest.mark.asyncio(loop_scope="session")

KINDS = ["allow_once", "allow_always", "reject_once", "reject_always"]


async def write(talk: Talk, name: str = "a.txt") -> str:
    card = await talk.tool("write_file", json.dumps({"path": name, "content": "x\n"}))
    return str(card["status"])


async def run(talk: Talk) -> str:
    return str((await talk.tool("shell", '{"command": "true"}'))["status"])


def questions(talk: Talk) -> int:
    return len(talk.asked("session/request_permission"))


@pytest.mark.spec("S2-55", "S2-42", "S2-44")
async def test_a_question_has_four_options_and_stands_on_the_card_of_its_call(rich: Editor, workspace: Path) -> None:
    talk = await rich.new(workspace)
    talk.allow("allow_once")
    await write(talk)
    [question] = talk.asked("session/request_permission")
    [card] = talk.cards()
    assert [each["kind"] for each in question["options"]] == KINDS
    assert len({each["optionId"] for each in question["options"]}) == 4
    assert all(each["name"] for each in question["options"])
    assert question["toolCall"]["toolCallId"] == card["toolCallId"]
    path = str(workspace / "a.txt")
    shown = [each for each in question["toolCall"]["content"] if each["type"] == "diff"]
    assert [(each["path"], each.get("oldText"), each["newText"]) for each in shown] == [(path, None, "x\n")]
    kinds = talk.kinds()
    assert kinds.index("tool_call") < kinds.index("session/request_permission")
    assert talk.statuses(card["toolCallId"]) == ["pending", "in_progress", "completed"]
    asked = kinds.index("session/request_permission")
    before = [said.get("status") for kind, said in talk.wire[:asked] if kind in ("tool_call", "tool_call_update")]
    assert set(before) <= {"pending", None}


@pytest.mark.spec("S2-56")
async def test_allowed_once_runs_once(rich: Editor, workspace: Path) -> None:
    talk = await rich.new(workspace)
    talk.allow("allow_once")
    assert [await write(talk), await write(talk), questions(talk)] == ["completed", "completed", 2]


@pytest.mark.spec("S2-57")
async def test_always_allowed_asks_no_more(rich: Editor, workspace: Path) -> None:
    talk = await rich.new(workspace)
    talk.allow("allow_always", "reject_once")
    assert [await write(talk), await write(talk, "b.txt"), questions(talk)] == ["completed", "completed", 1]


@pytest.mark.spec("S2-58")
async def test_a_denied_call_fails_and_the_turn_goes_on(rich: Editor, models: Models, workspace: Path) -> None:
    input = {"path": "a.txt", "content": "x"}
    play = models.play(Says(calls=[Asks("write_file", input)]), Says("Then not."))
    talk = await rich.new(workspace)
    talk.allow("reject_once")
    assert await talk.prompt(f"go {play}") == "end_turn"
    [card] = talk.cards()
    assert (card["status"], talk.text(), talk.buffers) == ("failed", "Then not.", {})
    assert talk.statuses(card["toolCallId"]) == ["pending", "failed"]
    assert [await write(talk), questions(talk)] == ["failed", 2]


@pytest.mark.spec("S2-59")
async def test_always_denied_fails_without_a_question(rich: Editor, workspace: Path) -> None:
    talk = await rich.new(workspace)
    talk.allow("reject_always", "allow_once")
    assert [await write(talk), await write(talk, "b.txt"), questions(talk)] == ["failed", "failed", 1]
    assert talk.buffers == {}


@pytest.mark.spec("S2-60")
@pytest.mark.parametrize("method", ["session/load", "session/resume"])
@pytest.mark.parametrize("kind", ["allow_always", "reject_always"])
async def test_answers_are_gone_when_the_session_was_closed(
    rich: Editor, models: Models, workspace: Path, method: str, kind: str
) -> None:
    talk = await rich.new(workspace)
    await talk.prompt(f"hello {models.play(Says('hi'))}")
    talk.allow(kind)
    await write(talk)
    await talk.close()
    again = await rich.load(talk.id, workspace, method)
    again.allow("allow_once")
    before = questions(again)
    assert [await write(again), questions(again) - before] == ["completed", 1]


@pytest.mark.spec("S2-61")
@pytest.mark.parametrize("kind", ["allow_always", "reject_always"])
async def test_an_answer_holds_for_one_session_and_one_tool(rich: Editor, workspace: Path, kind: str) -> None:
    talk, other = await rich.new(workspace), await rich.new(workspace)
    talk.allow(kind, "allow_once")
    other.allow("allow_once")
    await write(talk)
    assert [await run(talk), questions(talk)] == ["completed", 2]
    assert [await write(other), questions(other)] == ["completed", 1]


@pytest.mark.spec("S2-63")
@pytest.mark.parametrize(
    "answer",
    [
        {"outcome": {"outcome": "selected", "optionId": "sudo"}},
        {"outcome": {"outcome": "selected", "optionId": ""}},
        {"outcome": {"outcome": "selected", "optionId": None}},
        {"outcome": {"outcome": "selected", "optionId": 0}},
        {"outcome": {"outcome": "selected"}},
        {"outcome": {"outcome": "allowed", "optionId": "allow_once"}},
        {"outcome": "allow_once"},
        {"outcome": None},
        {"optionId": "allow_once"},
        {"_meta": {"outcome": {"outcome": "selected", "optionId": "allow_once"}}},
        {},
        None,
        [],
        "allow_once",
        True,
        5,
    ],
    ids=repr,
)
async def test_an_answer_that_is_none_is_a_denial(rich: Editor, models: Models, workspace: Path, answer: Any) -> None:
    input = {"path": "a.txt", "content": "x"}
    play = models.play(Says(calls=[Asks("write_file", input)]), Says("Then not."))
    talk = await rich.new(workspace)
    talk.answers["session/request_permission"] = lambda params: answer
    assert await talk.prompt(f"go {play}") == "end_turn"
    assert ([card["status"] for card in talk.cards()], talk.text(), talk.buffers) == (["failed"], "Then not.", {})


@pytest.mark.spec("S2-63")
@pytest.mark.parametrize("code", [-32603, -32601, -32800, 1])
async def test_an_error_as_the_answer_is_a_denial(rich: Editor, models: Models, workspace: Path, code: int) -> None:
    input = {"path": "a.txt", "content": "x"}
    play = models.play(Says(calls=[Asks("write_file", input)]), Says("Then not."))
    talk = await rich.new(workspace)
    talk.answers["session/request_permission"] = fails(code)
    assert await talk.prompt(f"go {play}") == "end_turn"
    assert ([card["status"] for card in talk.cards()], talk.buffers) == (["failed"], {})


async def test_an_invalid_call_asks_nobody(rich: Editor, workspace: Path) -> None:
    talk = await rich.new(workspace)
    talk.allow("allow_once")
    for input in ('{"path": 5, "content": "x"}', '{"path": "a.txt"}', '{"path": "../a.txt", "content": "x"}', "{}"):
        assert (await talk.tool("write_file", input))["status"] == "failed"
    assert questions(talk) == 0


async def test_what_is_shown_of_a_call_hides_no_control_characters(rich: Editor, workspace: Path) -> None:
    talk = await rich.new(workspace)
    talk.allow("reject_once")
    await talk.tool("shell", json.dumps({"command": "rm -rf x\r\x1b[2Kecho harmless \u202e"}))
    [question] = talk.asked("session/request_permission")
    said = [question["toolCall"].get("title") or "", *(each["title"] for each in talk.updates("tool_call"))]
    said += [each["content"]["text"] for each in question["toolCall"].get("content") or () if each["type"] == "content"]
    assert not any(mark in text for text in said for mark in ("\x1b", "\r", "\u202e"))


async def test_a_question_shows_all_of_the_arguments_whatever_the_tool_says_of_them(
    rich: Editor, workspace: Path
) -> None:
    talk = await rich.new(workspace)
    talk.allow("reject_once")
    command = "make deploy" + " " * 3_000 + "; echo the end that must be seen"
    await talk.tool("shell", json.dumps({"command": command, "timeout_seconds": 7}))
    [question] = talk.asked("session/request_permission")
    content = [each["content"]["text"] for each in question["toolCall"]["content"] if each["type"] == "content"]
    assert f'command = "{command}"' in content[0] and "timeout_seconds = 7" in content[0]
    title = question["toolCall"]["title"]
    assert "more characters" in title and len(title) < 300


async def test_a_call_whose_arguments_are_too_long_to_be_shown_is_refused(rich: Editor, workspace: Path) -> None:
    talk = await rich.new(workspace)
    talk.allow("allow_once")
    card = await talk.tool("shell", json.dumps({"command": "true #" + "x" * 65_536}))
    assert card["status"] == "failed" and "longest_arguments" in json.dumps(card["content"])
    assert questions(talk) == 0


async def test_a_late_answer_to_a_question_that_is_over_changes_nothing(
    rich: Editor, models: Models, workspace: Path
) -> None:
    talk = await rich.new(workspace)
    late: list[Any] = []

    def fault(params: dict[str, Any]) -> Any:
        late.append(params)
        raise Fault(-32603, "no")

    talk.answers["session/request_permission"] = fault
    assert await write(talk) == "failed"
    allowed = {"outcome": {"outcome": "selected", "optionId": late[0]["options"][0]["optionId"]}}
    ids = [each["id"] for each in rich.received if each.get("method") == "session/request_permission" and "id" in each]
    rich.send({"jsonrpc": "2.0", "id": ids[-1], "result": allowed})
    assert await rich.refused("session/nothing", {}) == -32601
    assert talk.buffers == {}


@pytest.mark.parametrize(("word", "end"), [("allow", "completed"), ("deny", "failed")])
async def test_whoever_answers_first_wins_and_the_editor_is_told_to_forget_the_question(
    rich: Editor, workspace: Path, word: str, end: str
) -> None:
    asked, withdrawn = asyncio.Event(), asyncio.Event()

    async def never(params: dict[str, Any]) -> Any:
        asked.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            withdrawn.set()
            raise

    talk = await rich.new(workspace)
    talk.answers["session/request_permission"] = never
    running = talk.start('/tool write_file {"path": "a.txt", "content": "x"}')
    await asyncio.wait_for(asked.wait(), LIMIT_S)
    [question] = json.loads(await _callgate(rich, "confirmations", "--session", talk.id, "--json"))["confirmations"]
    await _callgate(rich, "confirmations", word, question["id"])
    assert (await asyncio.wait_for(running, LIMIT_S))["stopReason"] == "end_turn"
    assert [card["status"] for card in talk.cards()] == [end]
    await asyncio.wait_for(withdrawn.wait(), LIMIT_S)


async def _callgate(editor: Editor, *arguments: str) -> bytes:
    """What a person at a terminal sees, who has the same home."""
    ran = await asyncio.to_thread(
        subprocess.run, [*CALLGATE, *arguments], env=environment(editor.home), capture_output=True
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
