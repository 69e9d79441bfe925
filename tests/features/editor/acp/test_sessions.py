"""Sessions: opened, found again, taken over, closed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.features.editor.acp.conftest import NewHome
from tests.features.editor.acp.editor import EVERYTHING, Editor
from tests.features.editor.acp.models import Asks, Held, Models, Says, texts
from tests.features.editor.acp.talks import Fault, Talk
from tests.features.editor.acp.test_files import diffs, shown

pytestmark = pytest.mark.asyncio(loop_scope="session")

MODES = ["none", "read", "ask", "write"]


@pytest.mark.spec("S2-18", "S2-51")
async def test_a_new_session_has_an_id_and_the_four_modes(rich: Editor, workspace: Path) -> None:
    talk = await rich.new(workspace)
    modes = talk.opened["modes"]
    assert (modes["currentModeId"], [each["id"] for each in modes["availableModes"]]) == ("ask", MODES)
    assert all(each["name"] and each["description"] for each in modes["availableModes"])
    listed = (await rich.ask("session/list", {"cwd": str(workspace)}))["sessions"]
    assert [each["sessionId"] for each in listed] == [talk.id]


@pytest.mark.spec("S2-51")
async def test_the_mode_is_also_an_option_and_both_say_the_same(rich: Editor, workspace: Path) -> None:
    talk = await rich.new(workspace, mode="write")
    [mode] = [each for each in talk.opened["configOptions"] if each.get("category") == "mode"]
    assert [each["value"] for each in mode["options"]] == MODES
    changed = await talk.ask("session/set_config_option", configId=mode["id"], value="read")
    assert [each["currentValue"] for each in changed["configOptions"] if each["id"] == mode["id"]] == ["read"]
    assert len(changed["configOptions"]) == len(talk.opened["configOptions"])
    assert [each["currentModeId"] for each in talk.updates("current_mode_update")] == ["write", "read"]
    told = talk.updates("config_option_update")[0]["configOptions"]
    assert [each["currentValue"] for each in told if each["id"] == mode["id"]] == ["write"]
    for wrong in ("sudo", "", 5, None, True, ["read"]):
        assert await talk.refused("session/set_config_option", configId=mode["id"], value=wrong) == -32602
    assert await talk.refused("session/set_config_option", configId="nothing", value="read") == -32602


@pytest.mark.spec("S2-19")
@pytest.mark.parametrize(
    "cwd", ["", ".", "here", "./here", "../here", "~", "C:\\here", "file:///tmp", 5, None, ["/tmp"], {}]
)
async def test_a_directory_that_is_not_absolute_is_refused(rich: Editor, cwd: Any) -> None:
    assert await rich.refused("session/new", {"cwd": cwd, "mcpServers": []}) == -32602


@pytest.mark.spec("S2-19")
async def test_a_directory_that_is_missing_or_no_directory_is_refused(rich: Editor, workspace: Path) -> None:
    (workspace / "file").write_text("")
    for cwd in (workspace / "nothing", workspace / "file"):
        assert await rich.refused("session/new", {"cwd": str(cwd), "mcpServers": []}) == -32602


@pytest.mark.spec("S2-20", "S2-37")
async def test_sessions_have_their_own_directory_mode_and_conversation(
    rich: Editor, models: Models, tmp_path: Path
) -> None:
    talks = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        talks.append(await rich.new(tmp_path / name))
        talks[-1].buffers[str(tmp_path / name / "a.txt")] = f"of {name}\n"
    one, two = talks
    await one.set_mode("none")
    plays = [models.play(Says(calls=[Asks("read_file", {"path": "a.txt"})]), Says("Done.")) for _ in talks]
    for talk, play in zip(talks, plays, strict=True):
        assert await talk.prompt(f"look {play}") == "end_turn"
    assert [card["status"] for talk in talks for card in talk.cards()] == ["failed", "completed"]
    assert "of two" in shown(two.cards()[0])
    assert two.updates("current_mode_update") == []
    said = ["\n".join(texts(each) for each in play.requests[-1]["messages"]) for play in plays]
    assert [str(plays[1]) in said[0], str(plays[0]) in said[1]] == [False, False]


@pytest.mark.spec("S2-21")
async def test_prompts_of_two_sessions_run_side_by_side(rich: Editor, models: Models, workspace: Path) -> None:
    slow_reply = Held(Says("slow"))
    slow, fast = models.play(slow_reply), models.play(Says("fast"))
    first, second = await rich.new(workspace), await rich.new(workspace)
    running = first.start(f"go {slow}")
    await slow_reply.reached()
    assert await second.prompt(f"go {fast}") == "end_turn"
    assert not running.done()
    slow_reply.go.set()
    assert (await running)["stopReason"] == "end_turn"
    assert (first.text(), second.text()) == ("slow", "fast")


@pytest.mark.spec("S2-22")
async def test_a_busy_session_takes_no_second_prompt(rich: Editor, models: Models, workspace: Path) -> None:
    reply = Held(Says("one"))
    play = models.play(reply)
    talk = await rich.new(workspace)
    running = talk.start(f"go {play}")
    await reply.reached()
    with pytest.raises(Fault) as caught:
        await talk.prompt("again")
    assert caught.value.code == -32602
    reply.go.set()
    assert (await running)["stopReason"] == "end_turn"
    assert (talk.text(), len(play.requests)) == ("one", 1)


@pytest.mark.spec("S2-18", "S2-23")
async def test_a_session_is_open_in_one_process_and_its_lock_dies_with_it(
    new_home: NewHome, models: Models, workspace: Path
) -> None:
    home = new_home()
    async with Editor.opened(home) as first, Editor.opened(home) as second:
        talk = await first.new(workspace)
        await talk.prompt(f"hello {models.play(Says('hi'))}")
        for method in ("session/load", "session/resume"):
            asked = {"sessionId": talk.id, "cwd": str(workspace), "mcpServers": []}
            with pytest.raises(Fault) as caught:
                await second.ask(method, asked)
            assert (caught.value.code, caught.value.data["reason"]) == (-32603, "locked")
        os.kill(first.process.pid, signal.SIGKILL)
        await first.process.wait()
        taken = await second.resume(talk.id, workspace)
        assert await taken.prompt(f"still there? {models.play(Says('yes'))}") == "end_turn"


async def _history(editor: Editor, models: Models, workspace: Path) -> Talk:
    """A session with everything that a conversation can hold."""
    play = models.play(
        Says("Let me look.", thinking="What is in it?", calls=[Asks("read_file", {"path": "a.txt"}, id="c1")]),
        Says(calls=[Asks("write_file", {"path": "b.txt", "content": "new\n"}, id="c2")]),
        Says(calls=[Asks("read_file", {"path": "missing.txt"}, id="c3")]),
        Says("All done."),
    )
    (workspace / "a.txt").write_text("alpha\n")
    talk = await editor.new(workspace, mode="write")
    assert await talk.prompt(f"work {play}") == "end_turn"
    assert await talk.prompt(f"more {models.play(Says('Again.'))}") == "end_turn"
    return talk


def _told(talk: Talk) -> list[Any]:
    """A conversation as an editor shows it, without when and in which pieces."""
    shown_: list[Any] = []
    for kind, said in talk.wire:
        if kind == "prompt":
            shown_.append(["user_message_chunk", said["prompt"][0]["text"]])
        elif kind.endswith("_chunk"):
            text = said["content"].get("text", "")
            if shown_ and shown_[-1][0] == kind:
                shown_[-1][1] += text
            else:
                shown_.append([kind, text])
        elif kind == "tool_call":
            shown_.append(["tool_call", said["toolCallId"]])
    return shown_


@pytest.mark.spec("S2-24", "S2-76")
async def test_loading_tells_the_whole_history_before_it_answers(poor: Editor, models: Models, workspace: Path) -> None:
    talk = await _history(poor, models, workspace)
    await talk.close()
    again = await poor.load(talk.id, workspace)
    kinds = again.kinds()
    answered = kinds.index("answer session/load")
    assert not {
        "user_message_chunk",
        "agent_message_chunk",
        "agent_thought_chunk",
        "tool_call",
        "tool_call_update",
    } & set(kinds[answered:])
    assert _told(again) == _told(talk)
    assert [kind for kind, _ in _told(again)].count("user_message_chunk") == 2
    fields = ("toolCallId", "kind", "title", "status", "rawInput", "locations")
    before, after = ([{name: card.get(name) for name in fields} for card in each.cards()] for each in (talk, again))
    assert after == before
    assert [card["status"] for card in again.cards()] == ["completed", "completed", "failed"]
    assert diffs(again.cards()[1]) == diffs(talk.cards()[1]) != []
    assert again.opened["modes"]["availableModes"] == talk.opened["modes"]["availableModes"]


@pytest.mark.spec("S2-25")
async def test_a_call_that_never_ended_is_loaded_as_failed(new_home: NewHome, models: Models, workspace: Path) -> None:
    home = new_home()
    play = models.play(Says("Now.", calls=[Asks("shell", {"command": "echo begun > begun; exec sleep 1000"})]))
    async with Editor.opened(home) as first:
        talk = await first.new(workspace, mode="write")
        running = talk.start(f"go {play}")
        await first.until(lambda: any(card.get("status") == "in_progress" for card in talk.cards()))
        os.kill(first.process.pid, signal.SIGKILL)
        with pytest.raises(ConnectionError):
            await running
        await first.process.wait()
    async with Editor.opened(home) as second:
        again = await second.load(talk.id, workspace)
        assert [card["status"] for card in again.cards()] == ["failed"]
        assert list(second.broken()) == []


@pytest.mark.spec("S2-26")
@pytest.mark.parametrize("method", ["session/load", "session/resume"])
async def test_another_directory_takes_the_place_of_the_stored_one(
    poor: Editor, models: Models, tmp_path: Path, method: str
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for place in (old, new):
        place.mkdir()
        (place / "a.txt").write_text(f"in {place.name}\n")
    talk = await poor.new(old)
    await talk.prompt(f"hello {models.play(Says('hi'))}")
    await talk.close()
    again = await poor.load(talk.id, new, method)
    assert "in new" in shown(await again.tool("read_file", '{"path": "a.txt"}'))
    listed = [
        [each["sessionId"] for each in (await poor.ask("session/list", {"cwd": str(place)}))["sessions"]]
        for place in (old, new)
    ]
    assert listed == [[], [talk.id]]
    assert await poor.refused(method, {"sessionId": talk.id, "cwd": "new", "mcpServers": []}) == -32602


async def _walk(editor: Editor, **asked: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor: dict[str, Any] = {}
    for _ in range(100):
        page = await editor.ask("session/list", {**asked, **cursor})
        found += page["sessions"]
        if page.get("nextCursor") is None:
            return found
        assert page["sessions"], "an empty page that is not the last"
        cursor = {"cursor": page["nextCursor"]}
    raise AssertionError("the list has no end")


@pytest.mark.spec("S2-27")
async def test_the_list_is_complete_page_by_page_and_filtered_by_directory(new_home: NewHome, tmp_path: Path) -> None:
    places = [tmp_path / "one", tmp_path / "two", tmp_path / "none"]
    for place in places:
        place.mkdir()
    async with Editor.opened(new_home()) as editor:
        opened = [await editor.new(places[number % 2]) for number in range(120)]
        everything = await _walk(editor)
        assert sorted(each["sessionId"] for each in everything) == sorted(talk.id for talk in opened)
        assert len((await editor.ask("session/list", {}))["sessions"]) < 120
        for place in places:
            listed = await _walk(editor, cwd=str(place))
            assert {each["cwd"] for each in listed} <= {str(place)}
            assert sorted(each["sessionId"] for each in listed) == sorted(t.id for t in opened if t.cwd == place)
        for wrong in ("", "nonsense", 5, {}, ["a"], "AAAA", "💥"):
            assert await editor.refused("session/list", {"cursor": wrong}) == -32602
        assert await editor.refused("session/list", {"cwd": "one"}) == -32602


@pytest.mark.spec("S2-27")
async def test_a_listed_session_is_named_after_what_was_said_first(
    poor: Editor, models: Models, workspace: Path
) -> None:
    talk = await poor.new(workspace)
    await talk.prompt(f"Count the words of the book {models.play(Says('ok'))}")
    [listed] = await _walk(poor, cwd=str(workspace))
    assert listed["title"].startswith("Count the words of the book")
    assert listed["updatedAt"][:2] == "20" and listed["updatedAt"][10] == "T"


@pytest.mark.spec("S2-28")
async def test_a_resumed_session_tells_nothing_and_remembers_everything(
    poor: Editor, models: Models, workspace: Path
) -> None:
    talk = await _history(poor, models, workspace)
    await talk.close()
    again = await poor.resume(talk.id, workspace)
    assert again.kinds()[0] == "answer session/resume"
    assert again.cards() == []
    play = models.play(Says("I remember."))
    assert await again.prompt(f"and now {play}") == "end_turn"
    told = "\n".join(texts(each) for each in play.requests[0]["messages"])
    assert all(each in told for each in ("Let me look.", "alpha", "All done.", "Again."))
    assert "user_message_chunk" not in again.kinds()


@pytest.mark.spec("S2-29")
@pytest.mark.parametrize("method", ["session/load", "session/resume"])
async def test_an_id_that_is_malformed_unknown_or_open_is_refused(
    rich: Editor, models: Models, workspace: Path, method: str
) -> None:
    reply = Held(Says("fine"))
    talk = await rich.new(workspace)
    running = talk.start(f"go {models.play(reply)}")
    await reply.reached()
    editor = rich
    unknown = talk.id[:-4] + ("0000" if not talk.id.endswith("0000") else "1111")
    for id in (unknown, "", "x", "../../etc/passwd", "a" * 5000, "\x00", "s'; DROP TABLE sessions"):
        asked = {"sessionId": id, "cwd": str(workspace), "mcpServers": []}
        assert await editor.refused(method, asked) == -32602, id
    kept = editor.talks[talk.id]
    assert await editor.refused(method, {"sessionId": talk.id, "cwd": str(workspace), "mcpServers": []}) == -32602
    editor.talks[talk.id] = kept
    reply.go.set()
    assert (await running)["stopReason"] == "end_turn"
    assert kept is talk and talk.text() == "fine"


@pytest.mark.spec("S2-30")
async def test_closing_cancels_the_prompt_frees_the_lock_and_forgets(
    rich: Editor, models: Models, workspace: Path
) -> None:
    reply = Held(Says("never"))
    talk = await rich.new(workspace)
    running = talk.start(f"go {models.play(reply)}")
    await reply.reached()
    await talk.close()
    assert (await running)["stopReason"] == "cancelled"
    await reply.dropped()
    for method, more in (
        ("session/prompt", {"prompt": [{"type": "text", "text": "hello"}]}),
        ("session/close", {}),
        ("session/set_mode", {"modeId": "read"}),
    ):
        assert await talk.refused(method, **more) == -32602
    again = await rich.load(talk.id, workspace)
    assert await again.prompt(f"hello {models.play(Says('hi'))}") == "end_turn"


async def test_a_deleted_session_is_gone_and_deleting_twice_is_no_error(
    poor: Editor, models: Models, workspace: Path
) -> None:
    talk = await poor.new(workspace)
    await talk.prompt(f"hello {models.play(Says('hi'))}")
    assert await talk.ask("session/delete") == {}
    assert await talk.ask("session/delete") == {}
    assert await _walk(poor, cwd=str(workspace)) == []
    assert await poor.refused("session/load", {"sessionId": talk.id, "cwd": str(workspace), "mcpServers": []}) == -32602


async def test_what_is_asked_of_an_unknown_session_is_refused(rich: Editor) -> None:
    for method, more in (
        ("session/prompt", {"prompt": [{"type": "text", "text": "hello"}]}),
        ("session/close", {}),
        ("session/set_mode", {"modeId": "read"}),
        ("session/set_config_option", {"configId": "mode", "value": "read"}),
    ):
        assert await rich.refused(method, {"sessionId": "nobody", **more}) == -32602
    rich.notify("session/cancel", {"sessionId": "nobody"})
    rich.notify("session/cancel", {})
    rich.notify("session/cancel", None)
    assert await rich.refused("session/nothing", {}) == -32601  # it is still there


async def test_a_pending_question_holds_up_no_other_session(rich: Editor, models: Models, workspace: Path) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def later(params: dict[str, Any]) -> dict[str, Any]:
        asked.set()
        await answer.wait()
        return {"outcome": {"outcome": "selected", "optionId": params["options"][0]["optionId"]}}

    first, second = await rich.new(workspace, mode="ask"), await rich.new(workspace, mode="ask")
    first.answers["session/request_permission"] = later
    second.allow("allow_once")
    running = first.start('/tool write_file {"path": "a.txt", "content": "x"}')
    await asyncio.wait_for(asked.wait(), 60)
    assert (await second.tool("write_file", json.dumps({"path": "b.txt", "content": "x"})))["status"] == "completed"
    assert await second.ask("session/set_mode", modeId="read") == {}
    assert await rich.new(workspace) is not None
    answer.set()
    assert (await running)["stopReason"] == "end_turn"


async def test_the_same_session_goes_on_with_an_editor_that_can_do_more(
    new_home: NewHome, models: Models, workspace: Path
) -> None:
    home = new_home()
    async with Editor.opened(home) as first:
        talk = await first.new(workspace)
        await talk.prompt(f"hello {models.play(Says('hi'))}")
    async with Editor.opened(home, capabilities=EVERYTHING) as second:
        again = await second.load(talk.id, workspace)
        again.buffers[str(workspace / "a.txt")] = "in the buffer\n"
        assert "in the buffer" in shown(await again.tool("read_file", '{"path": "a.txt"}'))


async def test_what_is_not_stable_is_there_only_when_it_is_asked_for(
    new_home: NewHome, models: Models, workspace: Path
) -> None:
    async with Editor.opened(new_home(), "--unstable", unstable=True) as editor:
        assert editor.greeting["agentCapabilities"]["sessionCapabilities"]["fork"] == {}
        talk = await editor.new(workspace)
        play = models.play(Says("hi", usage=(1000, 50, 200, 0)))
        result = await talk.start(f"hello {play}")
        assert (result["stopReason"], result["usage"]["outputTokens"]) == ("end_turn", 50)
        forked = await editor.ask("session/fork", {"sessionId": talk.id, "cwd": str(workspace), "mcpServers": []})
        assert forked["sessionId"] != talk.id
        other = editor.talks[forked["sessionId"]]
        after = models.play(Says("yes"))
        assert await other.prompt(f"still there? {after}") == "end_turn"
        assert "hi" in [texts(each) for each in after.requests[0]["messages"]]
    async with Editor.opened(new_home()) as editor:
        assert await editor.refused("session/fork", {"sessionId": talk.id, "cwd": str(workspace)}) == -32601
