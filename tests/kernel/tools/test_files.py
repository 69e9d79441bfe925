"""The built-in file tools: what they answer, what they change, what they show beforehand."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from callgate.core.content import LARGEST_DIFF, FileDiff, ImageBlock, ImageSource, TextBlock
from callgate.core.effects import Capability, SideEffects, derive
from callgate.core.errors import (
    ToolCancelled,
    ToolError,
    ToolExecutionError,
    ToolPermissionDenied,
    ToolValidationError,
)
from callgate.core.local.environment import LocalEnvironment
from callgate.core.sessions import Root
from callgate.core.tools import Tool, ToolContext, ToolOutput
from callgate.tools import files as tools
from callgate.tools.files import DeleteFile, ListDir, PatchFile, ReadFile, WriteFile
from callgate.tools.search import FindFiles, SearchText
from callgate.workspace.files import WorkspaceFileAPI

Make = Callable[[], Tool]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "ws").mkdir()
    return tmp_path / "ws"


@pytest.fixture
def files(root: Path) -> WorkspaceFileAPI:
    return WorkspaceFileAPI(str(root))


@pytest.fixture
def context(files: WorkspaceFileAPI, tmp_path: Path) -> ToolContext:
    return ToolContext(
        session_id="s",
        turn_id=None,
        tool_use_id="t",
        workspace_path=files.workspace_root,
        cancel_event=asyncio.Event(),
        logger=logging.getLogger("test"),
        open_files=lambda: files,
        publish=lambda event_type, payload: None,
        artifact=lambda name: str(tmp_path / name),
    )


async def run(make: Make, context: ToolContext, /, **input: Any) -> ToolOutput:
    return await make().execute(input, context)


def text(output: ToolOutput) -> str:
    (block,) = output.content
    assert isinstance(block, TextBlock)
    return block.text


@pytest.mark.spec("S4-75")
@pytest.mark.parametrize(
    ("make", "name", "effect", "kind"),
    [
        (ReadFile, "read_file", SideEffects.READ, "read"),
        (WriteFile, "write_file", SideEffects.WRITE, "edit"),
        (PatchFile, "patch_file", SideEffects.WRITE, "edit"),
        (ListDir, "list_dir", SideEffects.READ, "read"),
        (DeleteFile, "delete_file", SideEffects.WRITE, "delete"),
        (FindFiles, "find_files", SideEffects.READ, "search"),
        (SearchText, "search_text", SideEffects.READ, "search"),
    ],
)
def test_each_tool_declares_what_it_does(make: Make, name: str, effect: SideEffects, kind: str) -> None:
    definition = make().definition
    assert (definition.name, definition.side_effects, definition.kind) == (name, effect, kind)
    assert derive(definition.capabilities) is effect
    assert (definition.source, definition.path_params) == ("builtin", ("path",))
    assert make() is not make()
    assert isinstance(make(), Tool)


def test_deleting_is_destructive_and_patching_has_its_other_name() -> None:
    assert Capability.DESTRUCTIVE in DeleteFile.definition.capabilities
    assert PatchFile.definition.aliases == ("edit_file",)


@pytest.mark.spec("S4-75")
async def test_a_file_is_read_as_it_is(context: ToolContext, root: Path) -> None:
    (root / "a.txt").write_bytes("one\r\nzwei é\nthree".encode())
    whole = await run(ReadFile, context, path="a.txt")
    assert (text(whole), whole.truncated) == ("one\r\nzwei é\nthree", False)
    part = await run(ReadFile, context, path="a.txt", offset=2, limit=1)
    assert (text(part), part.metadata) == ("zwei é\n", {"total_lines": 3})
    found = await run(ReadFile, context, path="a.txt", regex="^(t|o)")
    assert text(found) == "1:one\r\n3:three\n"


@pytest.mark.spec("S4-77")
async def test_a_long_file_is_cut_and_says_so(context: ToolContext, root: Path) -> None:
    (root / "long.txt").write_text("line\n" * 3_000_00)
    output = await run(ReadFile, context, path="long.txt")
    assert output.truncated
    assert text(output).endswith("continue with offset=2001]")


@pytest.mark.spec("S4-74", "T-4")
async def test_a_missing_file_is_named(context: ToolContext) -> None:
    for make, input in ((ReadFile, {}), (DeleteFile, {}), (PatchFile, {"old": "a", "new": "b"})):
        with pytest.raises(ToolExecutionError) as refused:
            await run(make, context, path="sub/none.txt", **input)
        assert (refused.value.reason, refused.value.is_user_visible) == ("file_not_found", True)
        assert "sub/none.txt" in refused.value.message


async def test_an_image_is_shown(context: ToolContext, root: Path) -> None:
    content = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
    (root / "a.png").write_bytes(content)
    output = await run(ReadFile, context, path="a.png")
    data = base64.b64encode(content).decode()
    assert output.content == [ImageBlock(source=ImageSource(data=data), media_type="image/png")]
    (root / "b.gif").write_bytes(b"GIF89a" + bytes(6 * 1024 * 1024))
    with pytest.raises(ToolExecutionError) as refused:
        await run(ReadFile, context, path="b.gif")
    assert refused.value.reason == "too_large"


@pytest.mark.parametrize("content", [b"\xff\xfe\0", b"ELF\0\0", b"caf\xe9"])
async def test_what_is_no_text_is_refused(context: ToolContext, root: Path, content: bytes) -> None:
    (root / "a.bin").write_bytes(content)
    with pytest.raises(ToolExecutionError) as refused:
        await run(ReadFile, context, path="a.bin")
    assert refused.value.reason == "not_text"


async def test_a_wrong_regex_is_invalid(context: ToolContext, root: Path) -> None:
    (root / "a.txt").write_text("a")
    with pytest.raises(ToolValidationError):
        await run(ReadFile, context, path="a.txt", regex="(")


@pytest.mark.spec("S4-75", "S4-76")
async def test_writing_creates_or_replaces_and_names_the_file(context: ToolContext, root: Path) -> None:
    made = await run(WriteFile, context, path="./src/a.txt", content="é\n")
    again = await run(WriteFile, context, path=str(root / "src" / "a.txt"), content="")
    assert [made.files_modified, again.files_modified] == [["src/a.txt"], ["src/a.txt"]]
    assert made.metadata == {"created": True, "bytes": 3}
    assert again.metadata == {"created": False, "bytes": 0}
    assert (root / "src" / "a.txt").read_text() == ""


@pytest.mark.spec("S4-75", "S4-76")
async def test_patching_replaces_the_one_place(context: ToolContext, root: Path) -> None:
    (root / "a.txt").write_text("one two")
    (root / "link").symlink_to("a.txt")
    output = await run(PatchFile, context, path="link", old="two", new="2")
    assert output.files_modified == ["a.txt"]
    assert (root / "a.txt").read_text() == "one 2"
    with pytest.raises(ToolExecutionError) as refused:
        await run(PatchFile, context, path="a.txt", old="two", new="2")
    assert refused.value.reason == "no_match"


@pytest.mark.spec("S4-76")
async def test_deleting_removes_one_file(context: ToolContext, root: Path) -> None:
    (root / "sub").mkdir()
    (root / "sub" / "a.txt").write_text("a")
    (root / "link").symlink_to("sub/a.txt")
    gone = [(await run(DeleteFile, context, path=path)).files_modified for path in ("link", "sub/../sub/a.txt")]
    assert gone == [["link"], ["sub/a.txt"]]
    assert [path.name for path in root.rglob("*")] == ["sub"]


async def test_a_file_of_another_root_is_named_in_full(root: Path, tmp_path: Path, context: ToolContext) -> None:
    (tmp_path / "more").mkdir()
    more = (Root(str(tmp_path / "more"), writable=True),)
    context._files = WorkspaceFileAPI(str(root), extra_roots=more)
    path = f"{tmp_path}/more/a.txt"
    assert (await run(WriteFile, context, path=path, content="a")).files_modified == [path]
    assert (await run(DeleteFile, context, path=path)).files_modified == [path]


@pytest.mark.spec("S4-75")
async def test_a_directory_is_listed_with_its_kinds(context: ToolContext, root: Path) -> None:
    empty = await run(ListDir, context)
    assert (text(empty), empty.value) == ("(empty)", [])
    (root / "b.txt").write_text("")
    (root / "a").mkdir()
    (root / "bad\nname").write_text("")
    output = await run(ListDir, context, path=".")
    assert text(output).split("\n") == ["a/", "b.txt", r"'bad\nname'"]
    assert output.value == ["a/", "b.txt", "bad\nname"]


@pytest.mark.spec("S4-77")
async def test_a_long_list_is_kept_whole_elsewhere(
    context: ToolContext, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "MAX_NAMES", 20)
    names = [f"{n:04}" for n in range(21)]
    for name in names:
        (root / name).touch()
    output = await run(ListDir, context)
    assert output.truncated
    assert len(output.value) == 20
    kept = tmp_path / "names.txt"
    mark = f"[truncated: 20 of 21 names shown; all of them: {kept}]"
    assert text(output).split("\n")[-1] == mark
    assert kept.read_text().split() == names
    assert kept.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("make", [ReadFile, WriteFile, PatchFile, ListDir, DeleteFile])
async def test_a_cancelled_call_does_nothing(context: ToolContext, root: Path, make: Make) -> None:
    (root / "a.txt").write_text("a")
    context.cancel_event.set()
    with pytest.raises(ToolCancelled):
        await run(make, context, path="a.txt", content="b", old="a", new="b")
    assert (root / "a.txt").read_text() == "a"
    assert await make().cancel() is False


@pytest.mark.spec("S4-37")
@pytest.mark.parametrize("make", [ReadFile, WriteFile, PatchFile, ListDir, DeleteFile])
async def test_no_tool_leaves_the_workspace(context: ToolContext, root: Path, make: Make) -> None:
    (root / "out").symlink_to("/etc/hostname")
    for path in ("out", "../x", "/etc/hostname"):
        with pytest.raises(ToolPermissionDenied):
            await run(make, context, path=path, content="b", old="a", new="b")


async def test_a_write_is_shown_before_it_is_allowed(files: WorkspaceFileAPI, root: Path) -> None:
    (root / "a.txt").write_text("one\n")
    (root / "b.bin").write_bytes(b"\xff")

    async def show(input: dict[str, str]) -> str:
        return (await WriteFile().preview(input, LocalEnvironment(files))).text

    assert (await show({"path": "a.txt", "content": "two\n"})).split("\n") == [
        "--- a.txt",
        "+++ a.txt",
        "@@ -1 +1 @@",
        "-one",
        "+two",
    ]
    assert (await show({"path": "new.txt", "content": "two\n"})).split("\n")[0] == "--- /dev/null"
    assert "'new.txt'" in await show({"path": "new.txt", "content": ""})
    assert "'a.txt'" in await show({"path": "a.txt", "content": "one\n"})
    assert (await show({"path": "b.bin", "content": "x\n"})).endswith("+x")
    assert "+x" in await show({"path": "../out", "content": "x\n"})
    assert (root / "a.txt").read_text() == "one\n"


async def test_a_patch_is_shown_before_it_is_allowed(files: WorkspaceFileAPI, root: Path) -> None:
    (root / "a.txt").write_text("one\ntwo\n")

    async def show(input: dict[str, str]) -> str:
        return (await PatchFile().preview(input, LocalEnvironment(files))).text

    shown = await show({"path": "a.txt", "old": "two", "new": "2"})
    assert shown.split("\n")[2:] == ["@@ -1,2 +1,2 @@", " one", "-two", "+2"]
    for path, old in (("a.txt", "none"), ("none.txt", "x"), ("../x", "x")):
        assert (await show({"path": path, "old": old, "new": ""})).startswith("Nothing would change")
    assert "'a.txt'" in await show({"path": "a.txt", "old": "one", "new": "one"})


def test_a_deletion_is_shown_before_it_is_allowed(files: WorkspaceFileAPI, root: Path) -> None:
    (root / "a.txt").write_text("x" * 1_234)
    (root / "link").symlink_to("a.txt")
    (root / "dir").mkdir()

    def show(input: dict[str, str]) -> str:
        return DeleteFile().preview(input, LocalEnvironment(files))

    assert show({"path": "a.txt"}) == "Delete 'a.txt' (1,234 bytes)"
    assert show({"path": "link"}).startswith("Delete the link 'link'")
    for path in ("dir", ".", "none", "../x", ""):
        assert show({"path": path}).startswith("Nothing would be deleted")


async def test_a_preview_never_raises_what_a_tool_would(files: WorkspaceFileAPI) -> None:
    environment = LocalEnvironment(files)
    for path in ("", "\0", "..", "/etc/passwd", "none/../../x"):
        for tool in (WriteFile(), PatchFile(), DeleteFile()):
            try:
                said = tool.preview({"path": path, "content": "c", "old": "o", "new": "n"}, environment)
                if not isinstance(said, str):
                    await said
            except ToolError:
                pytest.fail(f"{tool.definition.name} raised for {path!r}")


# --- what changed, for people to look at -----------------------------------------------------------


async def test_a_write_and_a_patch_say_what_they_changed(context: ToolContext, root: Path) -> None:
    (root / "sub").mkdir()
    (root / "link").symlink_to("sub")
    path = str(root / "sub/a.txt")
    made = await run(WriteFile, context, path="link/a.txt", content="one\n")
    replaced = await run(WriteFile, context, path="sub/a.txt", content="two\n")
    patched = await run(PatchFile, context, path=path, old="two", new="2")
    same = await run(WriteFile, context, path="sub/a.txt", content="2\n")
    empty = await run(WriteFile, context, path="empty", content="")
    assert [each.diffs for each in (made, replaced, patched, same, empty)] == [
        (FileDiff(path=path, old=None, new="one\n"),),
        (FileDiff(path=path, old="one\n", new="two\n"),),
        (FileDiff(path=path, old="two\n", new="2\n"),),
        (),
        (FileDiff(path=str(root / "empty"), old=None, new=""),),
    ]


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        (b"a" * LARGEST_DIFF, "b" * LARGEST_DIFF, 1),
        (b"a" * (LARGEST_DIFF + 1), "b", 0),
        (b"a", "b" * (LARGEST_DIFF + 1), 0),
        ("é".encode() * LARGEST_DIFF, "b", 0),
        (b"a", "é" * (LARGEST_DIFF // 2 + 1), 0),
        (b"\xff", "b", 0),
        (b"\0", "b", 0),
    ],
)
async def test_a_change_that_is_too_large_or_no_text_is_made_and_not_kept(
    context: ToolContext, root: Path, old: bytes, new: str, kept: int
) -> None:
    (root / "a").write_bytes(old)
    output = await run(WriteFile, context, path="a", content=new)
    assert (len(output.diffs), (root / "a").read_text()) == (kept, new)
    assert output.metadata["created"] is False
    environment = LocalEnvironment(context.workspace_files)
    (root / "a").write_bytes(old)
    shown = await WriteFile().preview({"path": "a", "content": new}, environment)
    assert len(shown.diffs) == kept


async def test_a_file_that_is_changed_meanwhile_is_not_overwritten(files: WorkspaceFileAPI, root: Path) -> None:
    (root / "a").write_text("one")

    def change(text: str) -> str:
        (root / "a").write_text("theirs")
        return text.upper()

    with pytest.raises(ToolExecutionError):
        await LocalEnvironment(files).edit_text("a", change)
    assert (root / "a").read_text() == "theirs"
    (root / "a").write_text("")
    assert await LocalEnvironment(files).edit_text("a", lambda text: "new") == ("", "new", None)


@pytest.mark.parametrize(
    ("line", "limit", "expected"),
    [
        (None, None, "a\r\nb\fc\n\nd"),
        (1, 1, "a\r\n"),
        (2, None, "b\fc\n\nd"),
        (2, 2, "b\fc\n\n"),
        (4, 9, "d"),
        (None, 3, "a\r\nb\fc\n\n"),
        (5, None, ""),
        (9, 1, ""),
    ],
)
async def test_lines_count_from_one_and_end_with_a_line_feed(
    files: WorkspaceFileAPI, root: Path, line: int | None, limit: int | None, expected: str
) -> None:
    (root / "a").write_bytes(b"a\r\nb\fc\n\nd")
    assert await LocalEnvironment(files).read_text("a", line=line, limit=limit) == expected


def test_a_context_without_a_dispatcher_has_the_disk_as_its_environment(
    context: ToolContext, files: WorkspaceFileAPI
) -> None:
    assert isinstance(context.environment, LocalEnvironment)
    assert context.environment.files is files
