"""The built-in search tools: what they answer and how they end."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from callgate.core.content import TextBlock
from callgate.core.errors import ToolCancelled, ToolPermissionDenied, ToolValidationError
from callgate.core.tools import ToolContext, ToolOutput
from callgate.tools.search import FindFiles, SearchText
from callgate.workspace import search as bounds
from callgate.workspace.files import WorkspaceFileAPI


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "ws").mkdir()
    return tmp_path / "ws"


@pytest.fixture
def context(root: Path, tmp_path: Path) -> ToolContext:
    return ToolContext(
        session_id="s",
        turn_id=None,
        tool_use_id="t",
        workspace_path=str(root),
        cancel_event=asyncio.Event(),
        logger=logging.getLogger("test"),
        open_files=lambda: WorkspaceFileAPI(str(root)),
        publish=lambda event_type, payload: None,
        artifact=lambda name: str(tmp_path / name),
    )


async def run(make: type[FindFiles] | type[SearchText], context: ToolContext, /, **input: Any) -> ToolOutput:
    return await make().execute(input, context)


def lines(output: ToolOutput) -> list[str]:
    (block,) = output.content
    assert isinstance(block, TextBlock)
    return block.text.split("\n")


async def test_files_are_found(context: ToolContext, root: Path) -> None:
    (root / "src").mkdir()
    for name in ("a.py", "src/b.py", "src/odd\nname.py", "c.txt"):
        (root / name).write_text("")
    output = await run(FindFiles, context, pattern="*.py")
    assert lines(output) == ["a.py", "src/b.py", r"'src/odd\nname.py'"]
    assert output.value == ["a.py", "src/b.py", "src/odd\nname.py"]
    assert (output.metadata, output.truncated) == ({"count": 3, "complete": True}, False)
    assert (await run(FindFiles, context, pattern="*.py", path="src")).value == output.value[1:]
    none = await run(FindFiles, context, pattern="*.rs")
    assert (lines(none), none.value) == (["No file matches"], [])


@pytest.mark.spec("S4-77")
async def test_what_is_found_beyond_the_limit_is_kept_elsewhere(
    context: ToolContext, root: Path, tmp_path: Path
) -> None:
    for n in range(5):
        (root / f"{n}.txt").write_text("needle\n")
    files = await run(FindFiles, context, pattern="*", limit=2)
    kept = tmp_path / "files.txt"
    assert lines(files) == [
        "0.txt",
        "1.txt",
        f"[truncated: 2 of 5 files shown; all of them: {kept}]",
    ]
    assert (files.value, files.truncated) == (["0.txt", "1.txt"], True)
    assert kept.read_text().split() == [f"{n}.txt" for n in range(5)]

    matches = await run(SearchText, context, pattern="needle", limit=4)
    assert len(matches.value) == 4
    assert lines(matches)[3:] == [
        "3.txt:1:needle",
        f"[truncated: 4 of 5 lines shown; all of them: {tmp_path}/matches.txt]",
    ]
    assert (tmp_path / "matches.txt").read_text().split("\n")[4] == "4.txt:1:needle"


async def test_without_a_place_to_keep_it_only_the_mark_remains(context: ToolContext, root: Path) -> None:
    context._given = (*context._given[:2], lambda name: None)
    for n in range(3):
        (root / f"{n}.txt").write_text("")
    output = await run(FindFiles, context, pattern="*", limit=2)
    assert lines(output)[2] == "[truncated: 2 of 3 files shown]"


async def test_lines_are_found_with_those_around_them(context: ToolContext, root: Path) -> None:
    (root / "a.txt").write_text("1\nx2\n3\nx4\n5\n6\n7\nx8\n")
    (root / "b.txt").write_text("x")
    plain = await run(SearchText, context, pattern="X", ignore_case=True, glob="a.*")
    assert lines(plain) == ["a.txt:2:x2", "a.txt:4:x4", "a.txt:8:x8"]
    assert plain.value == [{"path": "a.txt", "line": line, "text": f"x{line}"} for line in (2, 4, 8)]
    assert plain.metadata == {"count": 3, "complete": True, "files_searched": 1}
    around = await run(SearchText, context, pattern="(x)", context=1)
    assert lines(around) == [
        "a.txt-1-1",
        "a.txt:2:x2",
        "a.txt-3-3",
        "a.txt:4:x4",
        "a.txt-5-5",
        "--",
        "a.txt-7-7",
        "a.txt:8:x8",
        "--",
        "b.txt:1:x",
    ]
    assert lines(await run(SearchText, context, pattern="y")) == ["No line matches"]


async def test_what_was_not_searched_is_told(context: ToolContext, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MAX_FILE", 3)
    (root / "large.txt").write_text("needle")
    (shown, mark) = lines(await run(SearchText, context, pattern="needle"))
    assert shown == "No line matches"
    assert "large.txt" in mark


async def test_a_search_ends_when_its_call_is_cancelled(context: ToolContext, root: Path) -> None:
    (root / "a.txt").write_text("a" * 1_900 + "!")
    tool = SearchText()
    work = asyncio.create_task(tool.execute({"pattern": "(a+)+$"}, context))
    await asyncio.sleep(0)
    assert await tool.cancel() is True
    with pytest.raises(ToolCancelled):
        await asyncio.wait_for(work, 60)
    assert await tool.cancel() is False


async def test_a_search_that_was_cancelled_before_does_not_begin(context: ToolContext) -> None:
    context.cancel_event.set()
    for make in (FindFiles, SearchText):
        with pytest.raises(ToolCancelled):
            await run(make, context, pattern="x")


async def test_the_loop_goes_on_while_a_pattern_takes_forever(context: ToolContext, root: Path) -> None:
    (root / "a.txt").write_text("a" * 1_900 + "!")
    turns = 0
    work = asyncio.create_task(run(SearchText, context, pattern="(a+)+$"))
    while turns < 100:
        await asyncio.sleep(0)
        turns += 1
    assert not work.done()
    context.cancel_event.set()
    with pytest.raises(ToolCancelled):
        await asyncio.wait_for(work, 60)


async def test_no_search_leaves_the_workspace(context: ToolContext, root: Path) -> None:
    (root / "out").symlink_to("/etc")
    for path in ("..", "/etc", "out"):
        for make in (FindFiles, SearchText):
            with pytest.raises(ToolPermissionDenied):
                await run(make, context, pattern="x", path=path)


async def test_a_wrong_pattern_is_invalid(context: ToolContext) -> None:
    with pytest.raises(ToolValidationError):
        await run(SearchText, context, pattern="(")
    with pytest.raises(ToolValidationError):
        await run(FindFiles, context, pattern="{a,b}" * 30)
