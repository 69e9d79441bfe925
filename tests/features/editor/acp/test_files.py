"""Files in the editor: what it shows counts, not what is on the disk."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from tests.features.editor.acp.editor import Editor
from tests.features.editor.acp.talks import Fault, Talk

pytestmark = pytest.mark.asyncio(loop_scope="session")

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def shown(card: dict) -> str:
    """The text of a card."""
    return "\n".join(each["content"].get("text", "") for each in card["content"] if each["type"] == "content")


def diffs(card: dict) -> list[dict]:
    return [each for each in card["content"] if each["type"] == "diff"]


def fails(code: int):
    def answer(params: dict) -> dict:
        raise Fault(code, "no")

    return answer


@pytest.mark.spec("S2-07", "S2-16")
async def test_a_file_is_read_as_the_editor_shows_it(rich: Editor, workspace: Path) -> None:
    (workspace / "a.txt").write_text("on the disk\n")
    talk = await rich.new(workspace)
    talk.buffers[str(workspace / "a.txt")] = "one\ntwo\nthree\nfour\n"
    whole = await talk.tool("read_file", '{"path": "a.txt"}')
    part = await talk.tool("read_file", json.dumps({"path": str(workspace / "a.txt"), "offset": 2, "limit": 2}))
    assert [(card["status"], "disk" in shown(card)) for card in (whole, part)] == [("completed", False)] * 2
    assert all(line in shown(whole) for line in ("one", "two", "three", "four"))
    assert ("one" in shown(part), "two" in shown(part), "three" in shown(part)) == (False, True, True)
    requests = talk.asked("fs/read_text_file")
    assert {each["path"] for each in requests} == {str(workspace / "a.txt")}
    assert {each["sessionId"] for each in requests} == {talk.id}
    assert all((each.get("line") or 1) >= 1 for each in requests)


@pytest.mark.spec("S2-07")
async def test_a_file_that_only_the_editor_has_is_read(rich: Editor, workspace: Path) -> None:
    talk = await rich.new(workspace)
    talk.buffers[str(workspace / "unsaved.txt")] = "not saved yet\n"
    card = await talk.tool("read_file", '{"path": "unsaved.txt"}')
    assert (card["status"], "not saved yet" in shown(card)) == ("completed", True)


@pytest.mark.spec("S2-08")
async def test_images_patterns_and_searches_are_read_from_the_disk(rich: Editor, workspace: Path) -> None:
    (workspace / "a.png").write_bytes(PIXEL)
    (workspace / "a.txt").write_text("a needle on the disk\nhay\n")
    talk = await rich.new(workspace)
    image = await talk.tool("read_file", '{"path": "a.png"}')
    found = await talk.tool("read_file", '{"path": "a.txt", "regex": "need"}')
    searched = await talk.tool("search_text", '{"pattern": "needle"}')
    assert [card["status"] for card in (image, found, searched)] == ["completed"] * 3
    assert "image" in [each["content"]["type"] for each in image["content"] if each["type"] == "content"]
    assert ("needle on the disk" in shown(found), "a.txt" in shown(searched)) == (True, True)
    assert "hay" not in shown(found)
    assert talk.asked("fs/read_text_file") == []


@pytest.mark.spec("S2-09", "S2-44")
async def test_a_write_goes_to_the_editor_and_shows_its_diff(rich: Editor, workspace: Path) -> None:
    path = workspace / "a.txt"
    path.write_text("old\n")
    talk = await rich.new(workspace, mode="write")
    talk.buffers[str(path)] = "older in the buffer\n"
    card = await talk.tool("write_file", '{"path": "a.txt", "content": "new\\n"}')
    assert card["status"] == "completed"
    assert talk.asked("fs/write_text_file") == [{"sessionId": talk.id, "path": str(path), "content": "new\n"}]
    assert diffs(card) == [{"type": "diff", "path": str(path), "oldText": "older in the buffer\n", "newText": "new\n"}]
    assert path.read_text() == "old\n"


@pytest.mark.spec("S2-44")
async def test_the_diff_of_a_new_file_has_no_old_text(rich: Editor, poor: Editor, workspace: Path) -> None:
    for editor in (rich, poor):
        talk = await editor.new(workspace, mode="write")
        card = await talk.tool("write_file", '{"path": "new.txt", "content": "a\\n"}')
        assert [each.get("oldText") for each in diffs(card)] == [None]
        assert [each["newText"] for each in diffs(card)] == ["a\n"]


@pytest.mark.spec("S2-09", "S2-44")
async def test_an_edit_changes_the_buffer_and_not_the_disk(rich: Editor, workspace: Path) -> None:
    path = workspace / "a.txt"
    path.write_text("x = 1\n")
    talk = await rich.new(workspace, mode="write")
    talk.buffers[str(path)] = "x = 1\ny = 2\n"
    edit = {"path": "a.txt", **_edit("y = 2", "y = 3")}
    card = await talk.tool("patch_file", json.dumps(edit))
    assert (card["status"], talk.buffers[str(path)], path.read_text()) == ("completed", "x = 1\ny = 3\n", "x = 1\n")
    assert [(each["oldText"], each["newText"]) for each in diffs(card)] == [("x = 1\ny = 2\n", "x = 1\ny = 3\n")]


@pytest.mark.spec("S2-13")
async def test_without_files_in_the_editor_the_same_calls_end_the_same_on_the_disk(
    rich: Editor, poor: Editor, workspace: Path, tmp_path: Path
) -> None:
    cards = {}
    for name, editor in (("rich", rich), ("poor", poor)):
        place = tmp_path / name / "same"
        place.mkdir(parents=True)
        (place / "a.txt").write_text("one\n")
        talk = await editor.new(place, mode="write")
        talk.buffers[str(place / "a.txt")] = "one\n"
        cards[name] = [
            await talk.tool("read_file", '{"path": "a.txt"}'),
            await talk.tool("patch_file", json.dumps({"path": "a.txt", **_edit("one", "two")})),
        ]
        assert (place / "a.txt").read_text() == {"rich": "one\n", "poor": "two\n"}[name]
    visible = [
        [
            (card["status"], card["kind"], shown(card), [(each["oldText"], each["newText"]) for each in diffs(card)])
            for card in some
        ]
        for some in cards.values()
    ]
    assert visible[0] == visible[1]


@pytest.mark.spec("S2-15")
@pytest.mark.parametrize("code", [-32603, -32602, -32601, -32000, 7])
async def test_an_error_of_the_editor_fails_the_tool_and_the_disk_is_left_alone(
    rich: Editor, workspace: Path, code: int
) -> None:
    (workspace / "a.txt").write_text("on the disk\n")
    talk = await rich.new(workspace, mode="write")
    talk.answers["fs/read_text_file"] = fails(code)
    talk.answers["fs/write_text_file"] = fails(code)
    read = await talk.tool("read_file", '{"path": "a.txt"}')
    written = await talk.tool("write_file", '{"path": "b.txt", "content": "x"}')
    assert [read["status"], written["status"]] == ["failed", "failed"]
    assert "on the disk" not in shown(read)
    assert not (workspace / "b.txt").exists()


@pytest.mark.spec("S2-15")
async def test_what_the_editor_does_not_have_comes_from_the_disk_and_a_write_says_so(
    rich: Editor, workspace: Path
) -> None:
    (workspace / "a.txt").write_text("on the disk\n")
    talk = await rich.new(workspace, mode="write")
    read = await talk.tool("read_file", '{"path": "a.txt"}')
    assert (read["status"], "on the disk" in shown(read)) == ("completed", True)
    talk.answers["fs/write_text_file"] = fails(-32002)
    written = await talk.tool("write_file", '{"path": "b.txt", "content": "x"}')
    assert (written["status"], (workspace / "b.txt").read_text()) == ("completed", "x")
    assert "disk" in shown(written)


@pytest.mark.spec("S2-16")
async def test_a_path_outside_the_workspace_never_reaches_the_editor(rich: Editor, workspace: Path) -> None:
    talk = await rich.new(workspace, mode="write")
    (workspace / "out").symlink_to("/etc")
    for path in ("../x", "/etc/passwd", "out/passwd", "a/../../x", "~/x"):
        for tool, input in (("read_file", {"path": path}), ("write_file", {"path": path, "content": ""})):
            if path == "~/x" and tool == "write_file":
                continue  # a directory of that name, inside
            assert (await talk.tool(tool, json.dumps(input)))["status"] == "failed"
    asked = talk.asked("fs/read_text_file") + talk.asked("fs/write_text_file")
    assert [each["path"] for each in asked if not Path(each["path"]).is_relative_to(workspace)] == []
    assert not any("passwd" in each["path"] for each in asked)


async def test_hostile_answers_of_the_editor_fail_the_tool_alone(rich: Editor, workspace: Path) -> None:
    talk = await rich.new(workspace)
    for answer in ({}, None, [], "text", {"content": 5}, {"content": None}, {"text": "x"}):
        talk.answers["fs/read_text_file"] = lambda params, answer=answer: answer
        assert (await talk.tool("read_file", '{"path": "a.txt"}'))["status"] == "failed", answer
    talk.answers["fs/read_text_file"] = lambda params: {"content": "fine\n", "_meta": {"content": "other"}}
    assert "fine" in shown(await talk.tool("read_file", '{"path": "a.txt"}'))


def _edit(old: str, new: str) -> dict[str, str]:
    return {"old": old, "new": new}


async def test_a_directory_that_was_added_is_as_open_as_the_first(rich: Editor, tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    for each in (first, second, third):
        each.mkdir()
        (each / "a.txt").write_text(f"of {each.name}\n")
    talk: Talk = await rich.new(first, additionalDirectories=[str(second)])
    inside = await talk.tool("read_file", json.dumps({"path": str(second / "a.txt")}))
    outside = await talk.tool("read_file", json.dumps({"path": str(third / "a.txt")}))
    assert (inside["status"], outside["status"]) == ("completed", "failed")
    assert "of second" in shown(inside)
    wrong = {"cwd": str(first), "mcpServers": [], "additionalDirectories": ["second"]}
    assert await rich.refused("session/new", wrong) == -32602
